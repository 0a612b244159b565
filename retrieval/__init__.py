"""Image search that returns catalogue items within a calibrated threshold, or no match.

The public names are imported lazily, on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .shadowed import check_package

if TYPE_CHECKING:
    from .bundle.bundle import Bundle
    from .bundle.embedder import Embedder
    from .promise.promise import Promise
    from .retriever import Retriever
    from .search.result import Match, SearchResult

__all__ = ["Bundle", "Embedder", "Match", "Promise", "Retriever", "SearchResult"]

_HOMES = {
    "Bundle": "bundle.bundle",
    "Embedder": "bundle.embedder",
    "Match": "search.result",
    "Promise": "promise.promise",
    "Retriever": "retriever",
    "SearchResult": "search.result",
}

check_package("index")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'retrieval' has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
