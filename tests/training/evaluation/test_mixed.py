"""The mixed gallery: who is in it, what its metrics are, and that a model which memorizes is judged worse."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from index.search.item_distance import ItemDistance
from retrieval.catalogue.read import Photo
from retrieval.catalogue.splits import EvaluationProtocol, photos_by_hash, photos_in_protocol, photos_to_hold_out
from retrieval.errors import DataError
from retrieval.metrics.consistency import consistency, threshold_at_tpir
from retrieval.metrics.identification import SearchScores, threshold_at_fpir
from training.evaluation.evaluate import item_labels
from training.evaluation.mixed import (
    BOTH,
    FITTED,
    LEAST_JUDGED,
    UNFITTED,
    MixedGallery,
    worse,
)

ALONE = EvaluationProtocol()
TARGET = 0.1
DIM = 24


def make_photos(sizes: dict[str, int], *, roles: bool = False) -> list[Photo]:
    """Return photos in random order, whose ids say nothing of their items."""
    items = [item for item, count in sizes.items() for _ in range(count)]
    numbers = np.random.default_rng(1).permutation(len(items)).tolist()
    role = ("gallery", "query") if roles else ("", "")
    photos = [
        Photo(f"photo-{number:03d}", Path(f"{number}.png"), item, role=role[row % 2])
        for row, (number, item) in enumerate(zip(numbers, items, strict=True))
    ]
    return [photos[row] for row in np.random.default_rng(2).permutation(len(photos))]


@pytest.fixture
def sizes() -> dict[str, int]:
    """Return the photos per item, from 1 to 11: items f* are fitted, u* are not."""
    return {f"f{number:02d}": 3 + number % 5 for number in range(20)} | {
        f"u{number}": 1 + number for number in range(11)
    }


@pytest.fixture
def photos(sizes: dict[str, int]) -> list[Photo]:
    return make_photos(sizes)


def mixed_of(photos: list[Photo]) -> MixedGallery:
    items = sorted({photo.item_id for photo in photos})
    fitted, unfitted = ([item for item in items if item.startswith(letter)] for letter in "fu")
    held_out = photos_to_hold_out(photos, fitted, ALONE)
    return MixedGallery.of(photos, held_out=held_out, unfitted=unfitted, protocol=ALONE)


def vectors_of(photos: list[Photo], *, noise: float, seed: int = 0) -> np.ndarray:
    """Return unit vectors around the centre of each item."""
    generator = np.random.default_rng(seed)
    labels = item_labels(photos)
    centres = generator.normal(size=(labels.max() + 1, DIM))
    vectors = centres[labels] + noise * generator.normal(size=(len(photos), DIM))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def test_one_photo_of_each_item_with_four_photos_is_held_out(photos: list[Photo], sizes: dict[str, int]) -> None:
    fitted = sorted(item for item in sizes if item.startswith("f"))
    held_out = photos_to_hold_out(photos, fitted, ALONE)
    of_item = {photo.photo_id: photo.item_id for photo in photos}
    assert sorted(of_item[name] for name in held_out) == [item for item in fitted if sizes[item] >= 4]
    assert set(held_out) == set(photos_to_hold_out(photos[::-1], fitted, ALONE))
    left = Counter(photo.item_id for photo in photos_in_protocol(photos, fitted, ALONE, left_out=held_out))
    assert left == {item: sizes[item] - (sizes[item] >= 4) for item in fitted}


def test_a_photo_that_an_earlier_run_has_seen_is_not_held_out(photos: list[Photo]) -> None:
    items = sorted({photo.item_id for photo in photos})
    first = photos_to_hold_out(photos, items, ALONE)
    later = photos_to_hold_out(photos, items, ALONE, seen=first)
    assert len(later) == len(first)
    assert not set(first) & set(later)
    assert photos_to_hold_out(photos, items, ALONE, seen=[photo.photo_id for photo in photos]) == []


@pytest.mark.parametrize(("items", "held_out"), [(39, 39), (150, 40), (230, 46), (1100, 200)])
def test_photos_of_a_fifth_of_the_items_are_held_out_of_forty_to_two_hundred(items: int, held_out: int) -> None:
    many = make_photos({f"f{number}": 4 for number in range(items)})
    assert len(photos_to_hold_out(many, sorted({photo.item_id for photo in many}), ALONE)) == held_out


def test_a_held_out_photo_is_a_query_photo_of_an_item_with_a_gallery_photo() -> None:
    photos = make_photos({"f1": 6, "f2": 5, "f3": 4}, roles=True)
    photos = [photo for photo in photos if (photo.item_id, photo.role) != ("f2", "gallery")]
    held_out = photos_to_hold_out(photos, ["f1", "f2", "f3"], EvaluationProtocol("gallery", "query"))
    chosen = [photo for photo in photos if photo.photo_id in held_out]
    assert sorted((photo.item_id, photo.role) for photo in chosen) == [("f1", "query"), ("f3", "query")]


def test_the_gallery_has_no_new_photo_of_a_fitted_item_and_at_most_eight_of_any(
    photos: list[Photo], sizes: dict[str, int]
) -> None:
    mixed = mixed_of(photos)
    fitted = [item for item in sizes if item.startswith("f")]
    held_out = set(photos_to_hold_out(photos, fitted, ALONE))
    shown = [mixed.photos[place] for place in mixed.split.gallery]
    asked = [mixed.photos[place] for place in mixed.split.queries]
    assert not held_out & {photo.photo_id for photo in shown}
    assert {photo.photo_id for photo in asked if photo.item_id.startswith("f")} == held_out
    assert Counter(photo.item_id for photo in asked if photo.item_id.startswith("u")) == {
        item: count for item, count in sizes.items() if item.startswith("u")
    }
    counts = Counter(photo.item_id for photo in shown)
    assert {item: counts[item] for item in sizes if item.startswith("u")} == {
        item: min(8, count) for item, count in sizes.items() if item.startswith("u")
    }
    expected = {photo.item_id[0] for photo in asked}
    assert expected == {"f", "u"}
    assert [part == FITTED for part in mixed.parts] == [photo.item_id.startswith("f") for photo in asked]


def by_hand(mixed: MixedGallery, scores: SearchScores) -> dict[str, float]:
    """Return the metrics by loops over items."""
    unfitted = [label for label in np.unique(scores.labels) if (mixed.parts[scores.labels == label] == UNFITTED).all()]
    candidates = np.nextafter(np.sort(scores.impostor), -np.inf)

    def fpir(threshold: float) -> float:
        return float(np.mean([(scores.impostor[scores.labels == label] <= threshold).mean() for label in unfitted]))

    threshold = max(value for value in candidates if fpir(value) <= TARGET)
    values = {"unfitted FPIR": fpir(threshold)}
    for part in (FITTED, UNFITTED):
        for name, ends in (("R@1", np.inf), ("TPIR", threshold)):
            found = []
            for label in np.unique(scores.labels):
                own = (scores.labels == label) & (mixed.parts == part) & np.isfinite(scores.own)
                if own.any():
                    within = np.isfinite(scores.correct) & (scores.correct <= ends)
                    found.append(within[own].mean())
            values[f"{part} {name}"] = float(np.mean(found))
    return values


def test_metrics_of_uneven_items_are_those_of_loops_over_items(photos: list[Photo]) -> None:
    mixed = mixed_of(photos)
    scores = mixed.search(vectors_of(list(mixed.photos), noise=0.9))
    metrics, expected = mixed.metrics(scores, TARGET), by_hand(mixed, scores)
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value), name
    for name in ("R@1", "TPIR"):
        assert metrics[name] == pytest.approx((expected[f"fitted {name}"] + expected[f"unfitted {name}"]) / 2)
    assert 0 < metrics["unfitted FPIR"] <= TARGET
    assert 0.2 < metrics["TPIR"] < metrics["R@1"] < 1


def test_with_items_of_one_size_threshold_and_opis_are_those_of_the_searches() -> None:
    photos = make_photos({f"f{number}": 5 for number in range(9)} | {f"u{number}": 5 for number in range(12)})
    mixed = mixed_of(photos)
    scores = mixed.search(vectors_of(list(mixed.photos), noise=0.9))
    unknown = scores.where(mixed.parts == UNFITTED)
    metrics = mixed.metrics(scores, TARGET)
    alike = consistency(unknown, threshold_at_tpir(unknown, metrics["unfitted TPIR"]))
    assert metrics["unfitted OPIS"] == pytest.approx(alike.opis)
    assert metrics["unfitted equal TPIR"] == pytest.approx(metrics["unfitted TPIR"])
    within = unknown.correct <= threshold_at_fpir(unknown, TARGET)
    assert metrics["unfitted TPIR"] == pytest.approx(within.mean())


def test_opis_is_that_where_both_models_find_equally_many(photos: list[Photo]) -> None:
    """A model that finds less does not gain by it."""
    mixed = mixed_of(photos)
    good, poor = (mixed.search(vectors_of(list(mixed.photos), noise=noise)) for noise in (0.7, 1.5))
    compared = mixed.compare(good, poor, TARGET)[UNFITTED]
    assert compared["TPIR"]["after"] < compared["TPIR"]["before"] - 0.1
    assert compared["equal TPIR"]["before"] == pytest.approx(compared["equal TPIR"]["after"], abs=0.05)
    unfitted = good.where(mixed.parts == UNFITTED)
    alike = consistency(unfitted, threshold_at_tpir(unfitted, compared["TPIR"]["after"]))
    assert compared["OPIS"]["before"] == pytest.approx(alike.opis)
    assert compared["OPIS by chance"]["before"] == alike.opis_by_chance
    assert compared["TPIR of the worse half"]["before"] == pytest.approx(alike.worse_half)
    assert compared["never found"]["before"] == pytest.approx(alike.never_found)
    assert compared["OPIS"]["low"] < compared["OPIS"]["high"]


def test_a_model_that_never_finds_as_much_as_before_has_the_greatest_opis(photos: list[Photo]) -> None:
    mixed = mixed_of(photos)
    good, poor = (mixed.search(vectors_of(list(mixed.photos), noise=noise)) for noise in (0.7, 9.0))
    assert mixed.metrics(poor, TARGET)["unfitted OPIS"] < 0.1
    assert mixed.metrics(poor, TARGET, good)["unfitted OPIS"] == 0.25


def test_searches_are_by_the_item_distance(photos: list[Photo], monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = mixed_of(photos)
    vectors = vectors_of(list(mixed.photos), noise=0.9)
    served = mixed.search(vectors)
    monkeypatch.setattr(ItemDistance, "default", classmethod(lambda cls: ItemDistance(1, 0, 0, 0, 0)))
    assert not np.allclose(served.impostor, mixed.search(vectors).impostor)


def test_a_model_that_memorizes_the_photos_it_was_fitted_on_is_worse(photos: list[Photo]) -> None:
    """All fitted photos of an item are at one place that has nothing to do with its new photo."""
    mixed = mixed_of(photos)
    before = vectors_of(list(mixed.photos), noise=0.5)
    memorized, labels = before.copy(), item_labels(mixed.photos)
    trained = np.array([photo.item_id.startswith("f") for photo in mixed.photos])
    trained[mixed.split.queries[mixed.parts == FITTED]] = False
    places = np.random.default_rng(3).normal(size=(labels.max() + 1, DIM))[labels[trained]]
    memorized[trained] = places / np.linalg.norm(places, axis=1, keepdims=True)
    compared = mixed.compare(mixed.search(before), mixed.search(memorized), TARGET)
    assert compared[FITTED]["R@1"]["after"] < 0.2 < 0.9 < compared[FITTED]["R@1"]["before"]
    assert compared[UNFITTED]["R@1"]["after"] == pytest.approx(compared[UNFITTED]["R@1"]["before"], abs=0.05)
    assert [text.partition(" ")[0] for text in worse(compared)] == ["R@1", "TPIR"]


def test_of_models_that_are_equally_good_few_are_called_worse(photos: list[Photo]) -> None:
    """The interval has 95 %, so 2.5 % of the changes are below it, for each of two metrics."""
    mixed = mixed_of(photos)
    found = [mixed.search(vectors_of(list(mixed.photos), noise=0.8, seed=seed)) for seed in range(21)]
    compared = [mixed.compare(one, two, TARGET) for one, two in itertools.pairwise(found)]
    assert all(each[BOTH]["TPIR"]["low"] < each[BOTH]["TPIR"]["high"] for each in compared)
    assert sum(bool(worse(each)) for each in compared) <= 3
    same = mixed.compare(found[0], found[0], TARGET)
    assert all(values[name]["low"] == values[name]["high"] == 0 for values in same.values() for name in ("R@1", "TPIR"))


def test_nothing_is_worse_by_a_handful_of_unfitted_items() -> None:
    photos = make_photos({f"f{n}": 5 for n in range(9)} | {f"u{n}": 9 for n in range(LEAST_JUDGED)})
    for kept, found in ((photos, ["R@1", "TPIR"]), ([photo for photo in photos if photo.item_id != "u0"], [])):
        mixed = mixed_of(kept)
        good, bad = (mixed.search(vectors_of(list(mixed.photos), noise=noise)) for noise in (0.3, 4.0))
        assert [text.partition(" ")[0] for text in worse(mixed.compare(good, bad, TARGET))] == found


@pytest.mark.parametrize("unfitted", [["alone-0", "alone-1"], ["gone"]], ids=["one photo each", "gone"])
def test_unfitted_items_that_no_photo_can_find_are_refused(unfitted: list[str]) -> None:
    photos = make_photos({"alone-0": 1, "alone-1": 1, "fitted-0": 5, "fitted-1": 4})
    held_out = photos_to_hold_out(photos, ["fitted-0", "fitted-1"], ALONE)
    with pytest.raises(DataError, match=r"no photo of the \d unfitted items"):
        MixedGallery.of(photos, held_out=held_out, unfitted=unfitted, protocol=ALONE)


def test_ids_that_are_not_utf_8_have_a_place_among_the_photos() -> None:
    photos = make_photos({"caf\udce9": 3, "mug": 2})
    assert {item: len(own) for item, own in photos_by_hash(photos).items()} == {"caf\udce9": 3, "mug": 2}


def test_calibration_items_set_the_threshold_where_there_are_any(photos: list[Photo]) -> None:
    items = sorted({photo.item_id for photo in photos if photo.item_id.startswith("u")})
    held_out = photos_to_hold_out(photos, sorted({p.item_id for p in photos if p.item_id.startswith("f")}), ALONE)
    mixed = MixedGallery.of(photos, held_out=held_out, unfitted=items[:5], calibration=items[5:], protocol=ALONE)
    scores = mixed.search(vectors_of(list(mixed.photos), noise=0.9))
    calibration = mixed.parts == "calibration"
    assert set(scores.labels[calibration].tolist()).isdisjoint(scores.labels[~calibration])
    nearer = np.where(calibration, scores.impostor - 0.2, scores.impostor)
    shifted = SearchScores(scores.labels, scores.own, nearer, scores.gallery_items, scores.wrong)
    before, after = (mixed.metrics(each, TARGET) for each in (scores, shifted))
    assert after["TPIR"] < before["TPIR"]
    assert after["unfitted FPIR"] < before["unfitted FPIR"] or before["unfitted FPIR"] == 0
    unfitted = np.where(mixed.parts == UNFITTED, scores.impostor - 0.2, scores.impostor)
    moved = SearchScores(scores.labels, scores.own, unfitted, scores.gallery_items, scores.wrong)
    assert mixed.metrics(moved, TARGET)["fitted TPIR"] == before["fitted TPIR"]
    assert mixed.metrics(moved, TARGET)["unfitted FPIR"] > before["unfitted FPIR"]
