"""Convert search results to JSON, without reserved metadata keys (those that begin with an underscore)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from retrieval.search.result import SearchResult


class AnswerResponse(Response):
    """JSON response of a search, written by pydantic, which is faster than the standard library."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the content as JSON."""
        return to_json(content, inf_nan_mode="null")


def answer_of(result: SearchResult, request_id: str, fields: Collection[str] | None = None) -> dict[str, Any]:
    """Return a search result as a JSON object; `fields` selects metadata keys, None selects all."""
    values = result.to_dict() | {"request_id": request_id}
    explained = values["explanation"] and values["explanation"]["plain_nearest"]
    found = (*values["matches"], *values["ranked"], *values["review"])
    for match in (*found, values["nearest"], explained):
        if match:
            match["metadata"] = public(match["metadata"], fields)
    return values


def public(metadata: dict[str, Any], fields: Collection[str] | None = None) -> dict[str, Any]:
    """Return metadata without reserved keys, restricted to `fields` if given."""
    return {
        key: value for key, value in metadata.items() if not key.startswith("_") and (fields is None or key in fields)
    }
