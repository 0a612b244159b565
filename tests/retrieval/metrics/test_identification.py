import json

import numpy as np
import pytest

from index.photos import arrays
from index.search import left_out
from index.search.item_distance import ItemDistance
from retrieval.errors import InvalidParameter
from retrieval.metrics.identification import (
    SearchScores,
    det_curve,
    identification_rates,
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


@pytest.mark.parametrize("batch", [7, 10**6])
def test_equals_a_loop_whatever_the_batch(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    queries, asked, gallery, kept = world()
    monkeypatch.setattr(left_out, "TOGETHER", batch)
    monkeypatch.setattr(arrays, "COMPARED", 3 * len(gallery))
    scores = search_scores(queries, asked, gallery, kept)
    own, impostor = slow(queries, asked, gallery, kept)
    assert scores.own == pytest.approx(own, abs=1e-12)
    assert scores.impostor == pytest.approx(impostor, abs=1e-12)
    assert scores.gallery_items == 7
    assert not scores.mated.all()  # item 7 is in no gallery photo


def test_items_of_one_group_do_not_match_each_other() -> None:
    """As in a gallery: the others of its group are neither false matches of a query nor rivals."""
    queries, asked, gallery, kept = world()
    groups = np.array(["", "twins", "", "others", "twins", "others", "twins"])[kept]
    scores = search_scores(queries, asked, gallery, kept, gallery_groups=groups)
    for row, item in enumerate(asked.tolist()):
        mates = set(kept[groups == groups[kept == item][0]]) if (groups[kept == item] != "").any() else {item}
        without = ~np.isin(kept, list(mates - {item}))
        alone = search_scores(queries[[row]], asked[[row]], gallery[without], kept[without])
        assert (scores.own[row], scores.impostor[row]) == pytest.approx((alone.own[0], alone.impostor[0]))
        assert scores.misled[row] == pytest.approx(alone.misled[0])
    assert (scores.impostor > search_scores(queries, asked, gallery, kept).impostor).any()
    with pytest.raises(InvalidParameter, match="gallery_groups"):
        search_scores(queries, asked, gallery, kept, gallery_groups=groups[:-1])


@pytest.mark.parametrize("place", [0, 2])
def test_vectors_that_are_not_finite_are_refused(place: int) -> None:
    arrays = list(world())
    arrays[place][3, 2] = np.nan
    with pytest.raises(InvalidParameter, match="vectors must be finite"):
        search_scores(*arrays)


def test_a_photo_never_finds_itself() -> None:
    _, _, photos, labels = world()
    ids = np.arange(60)
    scores = search_scores(photos, labels, photos, labels, query_ids=ids, gallery_ids=ids)
    assert (scores.own > 0).all()
    assert (search_scores(photos, labels, photos, labels).own == 0).all()


def test_some_queries_keep_all_that_is_known_of_them() -> None:
    queries, asked, gallery, kept = world()
    scores = search_scores(queries, asked, gallery, kept)
    chosen = asked % 2 == 0
    some = scores.where(chosen)
    alone = search_scores(queries[chosen], asked[chosen], gallery, kept)
    for name in ("labels", "own", "impostor"):
        np.testing.assert_array_equal(getattr(some, name), getattr(alone, name))
    assert some.gallery_items == alone.gallery_items


@pytest.mark.parametrize("factor", [1e-4, 3e-4, 1e-3])
def test_every_candidate_that_rounding_might_hide_is_measured(factor: float) -> None:
    """400 photos around one point, nearer to each other than a float32 item can tell, in 300 numbers."""
    generator = np.random.default_rng(1)
    centre = generator.normal(size=300)
    photos = centre + factor * np.linalg.norm(centre) / np.sqrt(300) * generator.normal(size=(400, 300))
    photos = (photos / np.linalg.norm(photos, axis=1, keepdims=True)).astype(np.float32)
    labels = np.arange(400) % 130
    scores = search_scores(photos[:20], labels[:20], photos[20:], labels[20:])
    own, impostor = slow(photos[:20], labels[:20], photos[20:], labels[20:])
    assert scores.own == pytest.approx(own, abs=1e-12)
    assert scores.impostor == pytest.approx(impostor, abs=1e-12)


def test_by_the_item_distance_the_own_item_may_be_nearer_without_its_rivals() -> None:
    """The scores are those of searches: the own item is measured among its rivals, the first other item without it."""
    photos = np.array([[1, 0, 0], [0.8, 0.6, 0], [0, 0, 1], [0, 1, 0]], np.float32)
    query = np.array([[0.98, 0.199, 0]], np.float32)
    distance = ItemDistance()
    scores = search_scores(query, [0], photos, [0, 1, 2, 3], item_distance=distance)
    unit = query.astype(float) / np.linalg.norm(query)
    apart = np.linalg.norm(photos.astype(float) - unit, axis=1)
    own = distance.own(apart, apart)
    order = np.argsort(own)
    assert order[0] == 0
    together = distance.with_rivals(own[order][None], order[None])[0]
    alone = distance.with_rivals(own[order][None, 1:], order[None, 1:])[0]
    assert scores.own == pytest.approx(together[0], abs=1e-6)
    assert scores.impostor == pytest.approx(alone[0], abs=1e-6)
    assert np.isinf(scores.misled).all()


def test_another_item_that_comes_first_counts_as_wrong_even_if_it_is_nearer_only_together_with_the_own_one() -> None:
    scores = SearchScores(np.arange(3), np.array([0.3, 0.3, 0.3]), np.full(3, 0.2), 3, np.array([np.inf, 0.25, 0.6]))
    rates = identification_rates(scores, 0.4)
    assert rates.tpir == pytest.approx(1 / 3)  # the first, although its impostor is nearer without it
    assert rates.misidentification == pytest.approx(1 / 3)  # the second; the third returns nothing first
    assert rates.fpir == 1


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
    assert rates.queries == 5
    assert json.loads(json.dumps(vars(rates))) == vars(rates)


@pytest.mark.parametrize(("fpir", "errors"), [(0.0, 0), (0.2, 1), (0.4, 2), (0.5, 2), (0.99, 4), (1.0, 5)])
def test_the_threshold_keeps_the_fpir_and_no_larger_one_does(fpir: float, errors: int) -> None:
    scores = by_hand()
    threshold = threshold_at_fpir(scores, fpir)
    assert identification_rates(scores, threshold).fpir == pytest.approx(errors / 5)
    if errors < 5:
        larger = float(np.nextafter(threshold, 3))
        assert identification_rates(scores, larger).fpir > fpir


def test_where_too_few_return_anything_the_threshold_is_the_largest_distance() -> None:
    """A distance that is corrected by the density may exceed 2."""

    def threshold(impostor: list[float], fpir: float) -> float:
        count = len(impostor)
        return threshold_at_fpir(SearchScores(np.zeros(count, int), np.full(count, 0.1), np.array(impostor), 2), fpir)

    assert threshold([0.3, 0.4], 1.0) == 2.0
    assert threshold([0.3, 3.5], 1.0) == 3.5
    assert threshold([np.inf, np.inf], 0.05) == 2.0
    assert threshold([0.3, 3.5, np.inf], 0.9) == 3.5
    assert threshold([3.5, 0.0, 3.0], 0.4) == np.nextafter(3.0, 0)
    assert threshold([0.0, 0.5], 0.1) == np.nextafter(0.0, -1)  # not even an equal photo is let in
    for impossible in (-0.01, 1.01, float("nan")):
        with pytest.raises(InvalidParameter, match="fpir must lie in"):
            threshold([0.3, 0.4], impossible)


@pytest.mark.parametrize("count", [7, 10, 30, 49, 100])
def test_a_share_that_rounding_spoils_allows_all_its_errors(count: int) -> None:
    """0.29 times 100 is 28.999999999999996: 29 errors are allowed."""
    scores = SearchScores(np.zeros(count, int), np.full(count, 0.1), np.linspace(0.2, 1, count), 2)
    for errors in range(count):
        threshold = threshold_at_fpir(scores, errors / count)
        assert (scores.impostor <= threshold).sum() == errors


def test_tied_impostors_are_all_kept_out() -> None:
    scores = SearchScores(np.zeros(4, int), np.full(4, 0.1), np.array([0.2, 0.2, 0.2, 0.9]), 2)
    assert identification_rates(scores, threshold_at_fpir(scores, 0.5)).fpir == 0


def test_bad_input_is_refused() -> None:
    queries, asked, gallery, kept = world()
    with pytest.raises(InvalidParameter, match="one value per vector"):
        search_scores(queries, asked[:3], gallery, kept)
    with pytest.raises(InvalidParameter, match="one value per vector"):
        search_scores(queries, asked, gallery, kept[:3])
    with pytest.raises(InvalidParameter, match="one value per vector"):
        search_scores(queries, asked, gallery[:3], kept)
    with pytest.raises(InvalidParameter, match="given together"):
        search_scores(queries, asked, gallery, kept, query_ids=np.arange(40))
    with pytest.raises(InvalidParameter, match="given together"):
        search_scores(queries, asked, gallery, kept, gallery_ids=np.arange(60))
    with pytest.raises(InvalidParameter, match="at least one photo"):
        search_scores(queries, asked, gallery[:0], kept[:0])


def test_the_det_curve_holds_every_threshold() -> None:
    scores = by_hand()
    curve = det_curve(scores)
    for threshold, fpir, fnir in zip(curve.thresholds, curve.fpir, curve.fnir, strict=True):
        rates = identification_rates(scores, threshold)
        assert (rates.fpir, rates.fnir) == (pytest.approx(fpir), pytest.approx(fnir))


def test_without_a_mated_search_there_is_no_fnir() -> None:
    curve = det_curve(SearchScores(np.arange(3), np.full(3, np.inf), np.array([0.2, 0.4, np.inf]), 2))
    assert curve.thresholds.tolist() == [0.2, 0.4]
    assert curve.fpir.tolist() == pytest.approx([1 / 3, 2 / 3])
    assert np.isnan(curve.fnir).all()
