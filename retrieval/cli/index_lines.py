"""Lines on the index of a gallery."""

from __future__ import annotations

from typing import TYPE_CHECKING

from index.ann.kinds import KINDS, choose_kind

if TYPE_CHECKING:
    from index.ann.kinds import Choice
    from index.gallery import Rebuilt
    from index.protocol import GalleryProtocol

EXACT = "it is exact"


def describe_index(gallery: GalleryProtocol) -> str:
    """Return a sentence on the current index: kind, memory and recall."""
    index = gallery.index()
    if index["kind"] not in KINDS:
        return f"Index: {index['kind']}, which maintains it."
    recall = index.get("recall")
    choice = choose_kind(len(gallery), gallery.dim, kind=index["kind"])
    accuracy = _decision_recall(recall["value"], recall["lower"]) if recall else EXACT
    scanned = f"{index['scanned_photos']:,} photos outside it are scanned"
    return f"Index: {choice.kind}; {_memory(choice)}; {accuracy}; {scanned}."


def describe_rebuild(rebuilt: Rebuilt) -> str:
    """Return a sentence on a newly built index: kind, reason, memory and recall."""
    choice, recall = rebuilt.choice, rebuilt.recall
    if recall is None:
        accuracy = EXACT
    elif recall.expected:
        accuracy = _decision_recall(recall.value, recall.lower)
    else:
        accuracy = "its recall is unknown, because no photo has another item within the threshold"
    return f"Index: {choice.kind}, {choice.why}; {_memory(choice)}; {accuracy}."


def _memory(choice: Choice) -> str:
    held, rebuilding = choice.bytes / 2**20, choice.rebuild_bytes / 2**20
    return f"about {held:,.0f} MiB in memory, {rebuilding:,.0f} MiB while it is rebuilt"


def _decision_recall(value: float, lower: float) -> str:
    return f"decision recall {value:.4f} (at least {lower:.4f}, with 95 % confidence)"
