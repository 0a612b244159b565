"""Fields that several requests and responses have."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from retrieval.images.formats import NAMES

Verdict = Literal["right", "wrong", "unknown"]
TopK = Annotated[int, Field(ge=1, le=100, description="Largest number of matches.")]
Where = Annotated[
    str | None,
    Field(max_length=2000, description="A filter over declared columns, such as \"brand = 'x' and price < 10\"."),
]
Fields = Annotated[
    list[Annotated[str, Field(max_length=200)]] | None,
    Field(max_length=64, description="Metadata keys to return with each match; all by default."),
]
NUMBER = r"\d{1,6}(\.\d{1,3})?"
SIDES = Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=4, max_length=4)]
BBOX = "left, upper, right, lower in pixels of the upright photo."
Base64 = Annotated[str, Field(description=f"A {NAMES} file, base64.")]
