"""An answer as JSON: without the reserved metadata keys, which begin with an underscore."""

from __future__ import annotations

from typing import Any

from retrieval.result import SearchResult


def answer_of(result: SearchResult, request_id: str) -> dict[str, Any]:
    """Return what a client is told."""
    values = result.to_dict() | {"request_id": request_id}
    explained = values["explanation"] and values["explanation"]["plain_nearest"]
    for match in (*values["matches"], values["nearest"], explained):
        if match:
            match["metadata"] = public(match["metadata"])
    return values


def public(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return metadata without reserved keys."""
    return {key: value for key, value in metadata.items() if not key.startswith("_")}
