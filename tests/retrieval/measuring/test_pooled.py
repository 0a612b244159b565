"""Labelled photos add to the own draws of a gallery: they never replace them, and cost next to no TPIR."""

from __future__ import annotations

import numpy as np
import pytest

from index.photos.arrays import ArrayPhotos
from index.search.item_distance import ItemDistance
from retrieval.measuring.drawing import Drawing
from retrieval.measuring.draws import LABELLED, OWN, UNKNOWN, Probes
from retrieval.measuring.labelled import query_shift
from tests.retrieval.measuring.samples import draws, set_point

from .simulated import simulated

ITEMS, KNOWN, PHOTOS, LABELS, TARGET = 90, 40, 3, 25, 0.05
DIVISIONS = 30


def division(seed: int) -> list[tuple[float, float]]:
    """Return FPIR and TPIR of the threshold without and with 25 labelled photos of known and of unknown items."""
    vectors, labels = simulated(ITEMS, PHOTOS, seed=seed, crowds=8, dim=8)
    order = np.random.default_rng(seed).permutation(ITEMS)
    known, turn = np.isin(labels, order[:KNOWN]), np.arange(len(labels)) % PHOTOS
    kept = known & (turn < PHOTOS - 1)
    drawing = Drawing(ArrayPhotos(vectors[kept], [f"i{label}" for label in labels[kept]]), ItemDistance())
    own = drawing.own()
    last = (turn == PHOTOS - 1).nonzero()[0]
    mine, others = last[np.isin(labels[last], order[:KNOWN])], last[np.isin(labels[last], order[KNOWN:])]
    mated, strange = (
        drawing.probes(Probes(vectors[rows], [f"q{row}" for row in rows], [f"i{item}" for item in labels[rows]]))
        for rows in (mine, others)
    )
    first = {OWN: own}
    pooled = {OWN: own, LABELLED: mated.where(np.arange(KNOWN) < LABELS)}
    pooled[UNKNOWN] = strange.where(np.arange(ITEMS - KNOWN) < LABELS)
    rates = []
    for sources in (first, pooled):
        threshold = set_point(sources, TARGET, items=KNOWN, shift=query_shift(sources)).threshold
        rest, new = mated.where(np.arange(KNOWN) >= LABELS), strange.where(np.arange(ITEMS - KNOWN) >= LABELS)
        found = (rest.own <= threshold) & np.isinf(rest.wrong)
        rates.append((float((new.distances <= threshold).mean()), float(found.mean())))
    return rates


def test_fifty_labelled_photos_keep_tpir_and_fpir_over_thirty_divisions() -> None:
    (fpir_before, tpir_before), (fpir, tpir) = np.mean([division(seed) for seed in range(DIVISIONS)], axis=0)
    assert 0.03 < fpir < 0.07
    assert abs(fpir - fpir_before) < 0.015
    assert tpir_before > 0.2
    assert tpir >= 0.95 * tpir_before


@pytest.mark.parametrize("count", [1, 5, 40])
def test_labelled_photos_like_the_own_ones_hardly_move_the_threshold_however_many_there_are(count: int) -> None:
    distances = np.linspace(0.5, 1, 100)
    own, spread = draws(distances, np.arange(100)), np.quantile(distances, (np.arange(count) + 0.5) / count)
    labelled = draws(spread, 100 + np.arange(count))
    alone, pooled = (set_point(sources, TARGET, items=100) for sources in ({OWN: own}, {OWN: own, LABELLED: labelled}))
    assert pooled.basis.items_drawn == 100 + count
    assert pooled.threshold == pytest.approx(alone.threshold, abs=0.02)
