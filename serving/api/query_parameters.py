"""Query parameters of the search routes."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query

from .fields import BBOX, NUMBER

TopK = Annotated[int, Query(ge=1, le=100, description="Largest number of matches.")]
Where = Annotated[str | None, Query(max_length=2000, description="A filter, such as \"brand = 'x' and price < 10\".")]
Box = Annotated[str, Query(pattern=f"^{NUMBER}(,{NUMBER}){{3}}$", description=f"Part of the photo to search: {BBOX}")]
Fields = Annotated[
    list[Annotated[str, Query(max_length=200)]] | None,
    Query(
        max_length=64,
        description="Metadata key to return with each match; repeat it for several keys. All are returned by default.",
    ),
]


@dataclass(frozen=True)
class RegionsQuery:
    """Query parameters of every search route."""

    top_k: TopK = 10
    where: Where = None
    fields: Fields = None


@dataclass(frozen=True)
class SearchQuery(RegionsQuery):
    """Query parameters of the search routes whose answers can be explained."""

    explain: bool = False


OfRegions = Annotated[RegionsQuery, Depends()]
OfSearch = Annotated[SearchQuery, Depends()]
