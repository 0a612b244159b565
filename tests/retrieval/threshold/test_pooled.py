"""Labelled photos add to the own draws of a gallery: they never replace them, and cost next to no TPIR."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from index.gallery import Gallery
from index.photos import NONE
from index.search.item_distance import ItemDistance
from index.search.item_search import ItemSearch
from retrieval.measuring.drawing import Drawing
from retrieval.measuring.draws import LABELLED, OWN, UNKNOWN, Draws, Probes
from retrieval.measuring.labelled import query_shift
from retrieval.measuring.rule import set_threshold

from .simulated import simulated

ITEMS, KNOWN, PHOTOS, LABELS, TARGET = 90, 40, 3, 25, 0.05
DIVISIONS = 30


def asked(drawer: Drawing, numbers: dict[str, int], vectors: np.ndarray, items: np.ndarray) -> Draws:
    """Return the draws of photos from elsewhere, of items that may be in the gallery."""
    names = [f"i{item}" for item in items]
    probes = Probes(vectors, [f"q{row}" for row in range(len(names))], names)
    return drawer.probes(probes, numbers=[numbers.get(name, NONE) for name in names])


def division(folder: Path, seed: int) -> list[tuple[float, float]]:
    """Return FPIR and TPIR of the threshold without and with 25 labelled photos of known and of unknown items."""
    vectors, labels = simulated(ITEMS, PHOTOS, seed=seed, crowds=8, dim=8)
    order = np.random.default_rng(seed).permutation(ITEMS)
    known, turn = np.isin(labels, order[:KNOWN]), np.arange(len(labels)) % PHOTOS
    kept = known & (turn < PHOTOS - 1)
    with Gallery.create(folder / f"g{seed}", dim=vectors.shape[1], embedding_id="e") as gallery:
        names = [f"i{label}" for label in labels[kept]]
        gallery.add([f"p{row}" for row in np.flatnonzero(kept)], names, vectors[kept])
        drawer = Drawing(ItemSearch(gallery.snapshot(), ItemDistance()))
        numbers = gallery.item_numbers(sorted(set(names)))
        own = drawer.own()
        last = (turn == PHOTOS - 1).nonzero()[0]
        mine, others = last[np.isin(labels[last], order[:KNOWN])], last[np.isin(labels[last], order[KNOWN:])]
        mated, strange = (asked(drawer, numbers, vectors[rows], labels[rows]) for rows in (mine, others))
    first = {OWN: own}
    pooled = {OWN: own, LABELLED: mated.where(np.arange(KNOWN) < LABELS)}
    pooled[UNKNOWN] = strange.where(np.arange(ITEMS - KNOWN) < LABELS)
    rates = []
    for sources in (first, pooled):
        threshold = set_threshold(sources, TARGET, gallery_items=KNOWN, shift=query_shift(sources)).threshold
        rest, new = mated.where(np.arange(KNOWN) >= LABELS), strange.where(np.arange(ITEMS - KNOWN) >= LABELS)
        found = (rest.own <= threshold) & np.isinf(rest.wrong)
        rates.append((float((new.distances <= threshold).mean()), float(found.mean())))
    return rates


def test_fifty_labelled_photos_keep_tpir_and_fpir_over_thirty_divisions(tmp_path: Path) -> None:
    (fpir_before, tpir_before), (fpir, tpir) = np.mean([division(tmp_path, seed) for seed in range(DIVISIONS)], axis=0)
    assert 0.03 < fpir < 0.07
    assert abs(fpir - fpir_before) < 0.015
    assert tpir_before > 0.2
    assert tpir >= 0.95 * tpir_before


@pytest.mark.parametrize("count", [1, 5, 40])
def test_labelled_photos_like_the_own_ones_hardly_move_the_threshold_however_many_there_are(count: int) -> None:
    distances = np.linspace(0.5, 1, 100)
    own = as_draws(distances, "own")
    labelled = as_draws(np.quantile(distances, (np.arange(count) + 0.5) / count), "labelled")
    alone, pooled = (
        set_threshold(sources, TARGET, gallery_items=100) for sources in ({OWN: own}, {OWN: own, LABELLED: labelled})
    )
    assert pooled.evidence["items_drawn"] == 100 + count
    assert pooled.threshold == pytest.approx(alone.threshold, abs=0.02)


def as_draws(distances: np.ndarray, prefix: str) -> Draws:
    """Return one draw for each of some items."""
    count = len(distances)
    names, nobody = np.array([f"{prefix}{row}" for row in range(count)]), np.full(count, NONE)
    empty, none = np.full(count, ""), np.full(count, np.inf)
    return Draws(
        *(names, names, nobody, distances, nobody, empty, distances),
        *(none, nobody, none, none, nobody),
    )
