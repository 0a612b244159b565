import numpy as np
import pytest

from retrieval.errors import InvalidParameter
from retrieval.metrics import identification
from retrieval.metrics.identification import (
    SearchScores,
    det_curve,
    identification_rates,
    rates_by,
    search_scores,
    threshold_at_fpir,
)


def world(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)

    def unit(count: int) -> np.ndarray:
        rows = generator.normal(size=(count, 6))
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    return unit(40), generator.integers(0, 8, 40), unit(60), generator.integers(0, 7, 60)


def slow(queries: np.ndarray, asked: np.ndarray, gallery: np.ndarray, kept: np.ndarray) -> tuple[list, list]:
    own, impostor = [], []
    for query, label in zip(queries.astype(float), asked, strict=True):
        asking = query / np.linalg.norm(query)
        best = {True: np.inf, False: np.inf}
        for photo, other in zip(gallery.astype(float), kept, strict=True):
            distance = np.linalg.norm(asking - photo / np.linalg.norm(photo))
            best[bool(label == other)] = min(best[bool(label == other)], distance)
        own.append(best[True])
        impostor.append(best[False])
    return own, impostor


@pytest.mark.parametrize("block", [60, 10**6])
def test_equals_a_loop_whatever_the_block(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identification, "BLOCK", block)
    queries, asked, gallery, kept = world()
    scores = search_scores(queries, asked, gallery, kept)
    own, impostor = slow(queries, asked, gallery, kept)
    assert scores.own == pytest.approx(own, abs=1e-12)
    assert scores.impostor == pytest.approx(impostor, abs=1e-12)
    assert scores.gallery_items == 7
    assert not scores.mated.all()  # item 7 is in no gallery photo


def test_a_photo_never_finds_itself() -> None:
    _, _, photos, labels = world()
    ids = np.arange(60)
    scores = search_scores(photos, labels, photos, labels, query_ids=ids, gallery_ids=ids)
    assert (scores.own > 0).all()
    assert (search_scores(photos, labels, photos, labels).own == 0).all()


def test_near_duplicates_are_told_apart_below_float32() -> None:
    generator = np.random.default_rng(0)
    centre = generator.normal(size=(1, 6))
    queries = (centre / np.linalg.norm(centre)).astype(np.float32).repeat(40, axis=0)
    gallery = queries[:1] + 2e-4 * generator.normal(size=(60, 6))
    gallery = (gallery / np.linalg.norm(gallery, axis=1, keepdims=True)).astype(np.float32)
    asked, kept = generator.integers(0, 8, 40), generator.integers(0, 7, 60)
    scores = search_scores(queries, asked, gallery, kept)
    own, impostor = slow(queries, asked, gallery, kept)
    assert scores.own == pytest.approx(own, abs=1e-12)
    assert scores.impostor == pytest.approx(impostor, abs=1e-12)


def by_hand() -> SearchScores:
    own = np.array([0.1, 0.3, 0.5, 0.4, np.inf])
    impostor = np.array([0.5, 0.3, 0.2, 0.9, 0.6])
    return SearchScores(np.array([0, 0, 1, 1, 2]), own, impostor, 3)


def test_rates_by_hand() -> None:
    rates = identification_rates(by_hand(), 0.4)
    assert rates.fpir == pytest.approx(2 / 5)  # impostors at 0.3 and 0.2
    assert rates.tpir == pytest.approx(2 / 4)  # 0.1 and 0.4; the tie at 0.3 is wrong, the fifth has no mate
    assert rates.fnir == pytest.approx(1 / 2)
    assert rates.fnir_any_rank == pytest.approx(1 / 4)
    assert rates.misidentification == pytest.approx(2 / 4)
    assert (rates.queries, rates.mated_queries) == (5, 4)


@pytest.mark.parametrize(("fpir", "errors"), [(0.0, 0), (0.2, 1), (0.4, 2), (0.5, 2), (0.99, 4), (1.0, 5)])
def test_the_threshold_keeps_the_fpir_and_no_larger_one_does(fpir: float, errors: int) -> None:
    scores = by_hand()
    threshold = threshold_at_fpir(scores, fpir)
    assert identification_rates(scores, threshold).fpir == pytest.approx(errors / 5)
    if errors < 5:
        larger = float(np.nextafter(threshold, 3))
        assert identification_rates(scores, larger).fpir > fpir


def test_tied_impostors_are_all_kept_out() -> None:
    scores = SearchScores(np.zeros(4, int), np.full(4, 0.1), np.array([0.2, 0.2, 0.2, 0.9]), 2)
    assert identification_rates(scores, threshold_at_fpir(scores, 0.5)).fpir == 0


def test_bad_input_is_refused() -> None:
    queries, asked, gallery, kept = world()
    with pytest.raises(InvalidParameter, match="one value a vector"):
        search_scores(queries, asked[:3], gallery, kept)
    with pytest.raises(InvalidParameter, match="given together"):
        search_scores(queries, asked, gallery, kept, query_ids=np.arange(40))
    with pytest.raises(InvalidParameter, match="at least one photo"):
        search_scores(queries, asked, gallery[:0], kept[:0])


def test_the_det_curve_holds_every_threshold() -> None:
    scores = by_hand()
    curve = det_curve(scores)
    for threshold, fpir, fnir in zip(curve.thresholds, curve.fpir, curve.fnir, strict=True):
        rates = identification_rates(scores, threshold)
        assert (rates.fpir, rates.fnir) == (pytest.approx(fpir), pytest.approx(fnir))
    for fpir in (0.0, 0.2, 0.4, 0.8):
        assert curve.fnir_at(fpir) == pytest.approx(identification_rates(scores, threshold_at_fpir(scores, fpir)).fnir)


def test_rates_of_groups_add_up() -> None:
    queries, asked, gallery, kept = world()
    scores = search_scores(queries, asked, gallery, kept)
    families = asked % 3
    by_family, whole = rates_by(scores, 0.8, families), identification_rates(scores, 0.8)
    assert set(by_family) == {0, 1, 2}
    assert sum(rates.queries for rates in by_family.values()) == whole.queries
    assert sum(rates.fpir * rates.queries for rates in by_family.values()) == pytest.approx(whole.fpir * whole.queries)
    with pytest.raises(InvalidParameter, match="one value a query"):
        rates_by(scores, 0.8, families[1:])


def test_true_unknowns_are_told_apart() -> None:
    rates = identification_rates(by_hand(), 0.65)
    unknown = np.isinf(by_hand().own)
    assert rates.fpir_unknown == (by_hand().impostor[unknown] <= 0.65).mean()
