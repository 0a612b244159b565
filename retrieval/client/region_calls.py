"""Client requests for the items in the regions of a photo."""

from __future__ import annotations

from collections.abc import Sequence

from retrieval.images import Source
from retrieval.regions.boxes import bbox_text, check_bboxes

from .calls import Call, image_bytes, media_type, parsed_as, search_query
from .models import RegionsAnswer


def search_regions(
    image: Source,
    regions: str | Sequence[Sequence[float]],
    *,
    top_k: int,
    where: str | None,
    fields: Sequence[str] | None,
) -> Call[RegionsAnswer]:
    """Search for the items in the regions of a photo."""
    data = image_bytes(image)
    query = dict(search_query(top_k, where, fields, explain=False))
    del query["explain"]
    if isinstance(regions, str):
        query["regions"] = regions
    else:
        query["bbox"] = [bbox_text(bbox) for bbox in check_bboxes(regions)]
    read = parsed_as(RegionsAnswer)
    return Call("POST", "/v1/search/regions", read, query=query, body=data, media_type=media_type(data))
