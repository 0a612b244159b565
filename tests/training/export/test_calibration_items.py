"""The threshold that drawn calibration items set: estimated, or certified on request, and none of too few."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from index.search.item_distance import NEAREST_PHOTO
from retrieval.catalogue.photos import Photo
from retrieval.catalogue.splits import EvaluationProtocol
from retrieval.errors import CalibrationError
from retrieval.measuring.draws import PROBE
from retrieval.measuring.fpir import DrawnDistances
from retrieval.measuring.rule import best_threshold
from retrieval.metrics.consistency import search_curves
from training.evaluation.evaluate import item_labels, make_evaluation_split, score_split
from training.export.calibration_items import CalibrationItems

PHOTOS, DIM, SPREAD = 4, 24, 0.7


def drawn_items(count: int, *, groups: int = 0, seed: int = 0) -> CalibrationItems:
    """Return calibration items of four photos each, whose items lie in crowds, some of them in groups."""
    generator = np.random.default_rng(seed)
    crowds = generator.normal(size=(8, DIM))
    centres = crowds[generator.integers(8, size=count)] + 0.8 * generator.normal(size=(count, DIM))
    vectors = np.repeat(centres, PHOTOS, axis=0) + SPREAD * generator.normal(size=(count * PHOTOS, DIM))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    photos = [
        Photo(f"{item}/{number}", Path("x.jpg"), f"item-{item}", group=f"group {item % groups}" if groups else "")
        for item in range(count)
        for number in range(PHOTOS)
    ]
    split = make_evaluation_split(
        "calibration", photos, [f"item-{item}" for item in range(count)], EvaluationProtocol()
    )
    labels = item_labels(photos)
    model: Any = SimpleNamespace()  # it is not asked
    return CalibrationItems(
        photos=photos,
        split=split,
        model=model,
        vectors=vectors,
        looks=np.zeros_like(vectors),
        certainties=np.ones(len(split.queries)),
        appearances=np.zeros((len(photos), 3)),
        searches=score_split(split, vectors, labels, item_distance=NEAREST_PHOTO),
        raw=vectors,
        item_distance=NEAREST_PHOTO,
    )


def test_sixty_items_estimate_a_threshold_that_finds_more_than_a_certified_one() -> None:
    items = drawn_items(60)
    estimated, certified = (items.point(0.05, certify=certify) for certify in (False, True))
    assert (estimated.status, certified.status) == ("estimated", "certified")
    assert (estimated.origin, estimated.served_status) == ("bundle", "unanchored")
    assert estimated.rates.fpir_expected is not None
    assert estimated.rates.fpir_upper is not None
    assert certified.rates.fpir_upper is not None
    assert estimated.rates.tpir is not None
    assert certified.rates.tpir is not None
    assert estimated.rates.fpir_expected <= 0.05 + 1e-9 < estimated.rates.fpir_upper
    assert certified.rates.fpir_upper <= 0.05
    assert estimated.rates.tpir > 1.2 * certified.rates.tpir > 0
    assert (estimated.basis.clusters, estimated.basis.items_needed, estimated.basis.least_items) == (60, 59, 50)


def test_thresholds_below_the_limit_are_compared_by_opis() -> None:
    items = drawn_items(60)
    limit = DrawnDistances.of({PROBE: items._draws()}).limit(0.3, certified=False)
    assert limit is not None
    point = items.point(0.3, certify=False)
    assert point.threshold < limit  # a tenth of the searches more find nothing new
    candidates = np.append(np.nextafter(np.unique(items.searches.impostor), -np.inf), limit)
    expected = best_threshold(search_curves(items.searches, candidates[candidates <= limit]))
    assert point.threshold == expected


@pytest.mark.parametrize(("count", "groups"), [(19, 0), (60, 19)])
def test_too_few_independent_items_set_no_threshold_and_certify_none(count: int, groups: int) -> None:
    items = drawn_items(count, groups=groups)
    point = items.point(0.2, certify=False)
    assert (point.decides, point.target_fpir, point.origin) == (False, 0.2, "bundle")
    with pytest.raises(CalibrationError, match="19 items can be used to set a threshold, and 20 are needed"):
        items.point(0.2, certify=True)
    more = drawn_items(count + 1, groups=groups and groups + 1)
    assert more.point(0.2, certify=False).status == "estimated"


def test_a_target_that_the_items_do_not_support_is_left_to_galleries_or_refused() -> None:
    items = drawn_items(60)
    assert not items.point(0.01, certify=False).decides
    assert items.point(0.02, certify=False).decides
    with pytest.raises(CalibrationError, match=r"60 items cannot certify an FPIR of 0\.02: .* are needed") as caught:
        items.point(0.02, certify=True)
    assert "leave --certify out" in caught.value.remedy
