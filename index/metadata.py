"""Metadata of photos: JSON of a limited size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .errors import InvalidParameter

MAX_METADATA = 64 * 1024  # bytes of JSON per photo; each search reads and returns the metadata of its matches


def encode_metadata(metadata: Mapping[str, Any]) -> str:
    """Return metadata as JSON text with sorted keys; raise InvalidParameter if it is invalid or too long."""
    try:
        text = json.dumps(dict(metadata), sort_keys=True, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParameter("metadata", f"hold JSON values ({error})", metadata) from error
    if size > MAX_METADATA:
        raise InvalidParameter(
            "metadata",
            f"have at most {MAX_METADATA:,} bytes as JSON",
            size,
            remedy="Keep long texts elsewhere, under the photo's id",
        )
    return text
