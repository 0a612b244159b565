"""Compare the answers of two retrievers."""

from __future__ import annotations

from collections.abc import Sequence

from retrieval.retriever import Retriever

COMPARED_MATCHES = 10  # matches per query


def decision_diff(
    before: Retriever, after: Retriever, images: Sequence[bytes]
) -> list[tuple[int, list[str], list[str]]]:
    """Return the queries that two retrievers answer differently: index, item ids matched before and after."""
    changed = []
    for number, image in enumerate(images):
        item_ids_before, item_ids_after = (
            [match.item_id for match in retriever.search(image, top_k=COMPARED_MATCHES).matches]
            for retriever in (before, after)
        )
        if item_ids_before != item_ids_after:
            changed.append((number, item_ids_before, item_ids_after))
    return changed
