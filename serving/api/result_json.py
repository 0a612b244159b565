"""An answer as JSON: without the reserved metadata keys, which begin with an underscore."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from retrieval.result import SearchResult


def answer_of(result: SearchResult, request_id: str, fields: Collection[str] | None = None) -> dict[str, Any]:
    """Return what a client is told; `fields` are the metadata keys that it asks for, None for all."""
    values = result.to_dict() | {"request_id": request_id}
    explained = values["explanation"] and values["explanation"]["plain_nearest"]
    for match in (*values["matches"], values["nearest"], explained):
        if match:
            match["metadata"] = public(match["metadata"], fields)
    return values


def public(metadata: dict[str, Any], fields: Collection[str] | None = None) -> dict[str, Any]:
    """Return metadata without reserved keys, and no more than the fields where some are named."""
    return {
        key: value for key, value in metadata.items() if not key.startswith("_") and (fields is None or key in fields)
    }
