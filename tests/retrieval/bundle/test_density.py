from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.gallery import Gallery
from index.search.distance import PLAIN, plain_distance
from retrieval.bundle.density import (
    ADDITIVE,
    LOCAL_SCALING,
    PHOTOS_OF_AN_ITEM,
    Cohort,
    LocalDensity,
    pack_cohort,
    unpack_distance_form,
)
from retrieval.errors import BundleCorrupt, InvalidParameter
from retrieval.metrics.identification import search_scores

FORMS = (ADDITIVE, LOCAL_SCALING)


def crowded(items: int, photos: int, *, seed: int = 0, dim: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors and labels of items, every second one in a crowd."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(items, dim))
    centres[::2] = 3 * np.eye(dim)[0] + 0.8 * centres[::2]
    labels = np.repeat(np.arange(items), photos)
    vectors = centres[labels] + 0.4 * generator.normal(size=(len(labels), dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    return Cohort.of(*crowded(30, 12, seed=1))


def test_a_cohort_holds_so_many_photos_of_each_item(cohort: Cohort) -> None:
    assert cohort.size == 30
    assert (np.bincount(cohort.items) == PHOTOS_OF_AN_ITEM).all()
    assert PHOTOS_OF_AN_ITEM == 8


def test_density_is_the_mean_of_the_next_k_items(cohort: Cohort) -> None:
    vectors, _ = crowded(5, 2)
    cosines = vectors.astype(float) @ cohort.vectors.astype(float).T
    by_item = np.stack([cosines[:, cohort.items == p].max(axis=1) for p in range(30)], axis=1)
    expected = np.sort(by_item, axis=1)[:, ::-1][:, 1:5].mean(axis=1)
    assert cohort.density(vectors, 4) == pytest.approx(expected, rel=1e-12)


def test_items_of_the_cohort_are_hardly_denser_than_others(cohort: Cohort) -> None:
    (trained, _), (others, _) = crowded(30, 12, seed=1), crowded(30, 12, seed=2)
    nearest = cohort.nearest(trained)[:, 0].mean() - cohort.nearest(others)[:, 0].mean()
    density = cohort.density(trained, 4).mean() - cohort.density(others, 4).mean()
    assert density < nearest / 2


@pytest.mark.parametrize("form", FORMS)
def test_a_crowd_is_farther_apart(cohort: Cohort, form: str) -> None:
    distance_form = LocalDensity.fit(form, 4, cohort)
    dense, sparse = 0.9, 0.1
    assert distance_form.transform(np.array([0.5]), dense, dense) > distance_form.transform(
        np.array([0.5]), sparse, sparse
    )


@pytest.mark.parametrize("form", FORMS)
@given(seed=st.integers(0, 2**32 - 1))
def test_it_is_monotone_and_zero_only_at_zero(cohort: Cohort, form: str, seed: int) -> None:
    distance_form = LocalDensity.fit(form, 4, cohort)
    generator = np.random.default_rng(seed)
    squared = np.concatenate([[0.0], np.sort(generator.uniform(0, 4, 50))])
    query, photo = generator.uniform(-1, 1, 2)
    distances = distance_form.transform(squared, query, photo)
    assert distances[0] == 0
    assert (np.diff(distances) > 0).all()
    assert (distance_form.transform(squared, query, photo + 0.1) >= distances).all()
    assert np.isfinite(distances).all()


@pytest.mark.parametrize("form", [*FORMS, "plain"])
def test_a_gallery_answers_as_a_look_at_every_photo(cohort: Cohort, form: str, tmp_path: Path) -> None:
    distance_form = PLAIN if form == "plain" else LocalDensity.fit(form, 4, cohort)
    vectors, labels = crowded(200, 5, seed=3)
    with Gallery.create(tmp_path / "gallery", dim=16, embedding_id="e") as gallery:
        for half in (slice(0, 700), slice(700, 1000)):
            names = [f"p{i}" for i in range(1000)[half]]
            gallery.add(names, [f"i{label}" for label in labels[half]], vectors[half])
        gallery.remove(item_ids=["i3"])
        queries, _ = crowded(20, 1, seed=4)
        answers = gallery.search(queries, 5, distance_form=distance_form)
        gallery.rebuild()
        assert gallery.search(queries, 5, distance_form=distance_form) == answers
    kept = labels != 3
    for query, answer in zip(queries, answers, strict=True):
        squared = plain_distance(query[None], vectors[kept]) ** 2
        own, others = distance_form.densities(query[None]), distance_form.densities(vectors[kept])
        distances = distance_form.transform(squared, own, others)
        best = {label: distances[labels[kept] == label].min() for label in np.unique(labels[kept])}
        expected = sorted(best.items(), key=lambda pair: pair[1])[:5]
        assert [neighbour.item_id for neighbour in answer] == [f"i{label}" for label, _ in expected]
        assert [neighbour.distance for neighbour in answer] == pytest.approx([d for _, d in expected], abs=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_a_photo_in_the_gallery_is_zero_away_from_itself(cohort: Cohort, form: str, tmp_path: Path) -> None:
    vectors, labels = crowded(40, 3, seed=5)
    with Gallery.create(tmp_path / "gallery", dim=16, embedding_id="e") as gallery:
        gallery.add([f"p{i}" for i in range(120)], [f"i{label}" for label in labels], vectors)
        answers = gallery.search(vectors, 1, distance_form=LocalDensity.fit(form, 4, cohort))
    assert [(a[0].item_id, a[0].distance) for a in answers] == [(f"i{label}", 0.0) for label in labels]


@pytest.mark.parametrize("form", FORMS)
def test_scores_are_what_the_gallery_says(cohort: Cohort, form: str, tmp_path: Path) -> None:
    distance_form = LocalDensity.fit(form, 8, cohort)
    vectors, labels = crowded(60, 4, seed=6)
    asked, kept = np.arange(240) % 4 == 0, np.arange(240) % 4 > 0
    scores = search_scores(vectors[asked], labels[asked], vectors[kept], labels[kept], distance_form=distance_form)
    with Gallery.create(tmp_path / "gallery", dim=16, embedding_id="e") as gallery:
        gallery.add([f"p{i}" for i in range(180)], [f"i{label}" for label in labels[kept]], vectors[kept])
        answers = gallery.search(vectors[asked], 60, distance_form=distance_form)
    for label, own, impostor, answer in zip(labels[asked], scores.own, scores.impostor, answers, strict=True):
        distances = {neighbour.item_id: neighbour.distance for neighbour in answer}
        assert distances.pop(f"i{label}") == pytest.approx(own, abs=1e-12)
        assert min(distances.values()) == pytest.approx(impostor, abs=1e-12)


def test_it_survives_a_bundle(cohort: Cohort) -> None:
    distance_form = LocalDensity.fit(LOCAL_SCALING, 8, cohort)
    again = unpack_distance_form(distance_form.to_dict(), pack_cohort(cohort))
    vectors, _ = crowded(5, 2)
    assert again.key == distance_form.key
    assert (again.densities(vectors) == distance_form.densities(vectors)).all()
    assert unpack_distance_form({"form": "plain"}, None) is PLAIN


@pytest.mark.parametrize(
    ("form", "k", "message"),
    [("other", 4, "form"), (ADDITIVE, 0, "between 1 and 29"), (ADDITIVE, 30, "between 1 and 29")],
)
def test_broken_rules_are_named(cohort: Cohort, form: str, k: int, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        LocalDensity(form, k, 0.1, cohort)


def test_photos_of_a_cohort_keep_their_items() -> None:
    vectors, labels = crowded(30, 12, seed=1)
    items_of = {vector.tobytes(): label for vector, label in zip(vectors, labels, strict=True)}
    made = Cohort.of(vectors.tolist(), [f"item-{label:02d}" for label in labels])
    assert [items_of[vector.tobytes()] for vector in made.vectors] == made.items.tolist()
    assert len(np.unique(made.vectors, axis=0)) == 30 * PHOTOS_OF_AN_ITEM  # none twice
    assert made.vectors.dtype == np.float32


def test_a_cohort_is_drawn_at_random_and_the_same_again() -> None:
    world = crowded(30, 12, seed=1)
    first = Cohort.of(*world)
    assert Cohort.of(*world).key == first.key
    other = Cohort.of(*world, seed=1)
    assert other.key != first.key
    drawn = {row.tobytes() for row in first.vectors} & {row.tobytes() for row in other.vectors}
    assert 0.5 < len(drawn) / len(first.vectors) < 0.9  # two draws of 8 of 12 share two thirds


def test_of_many_items_a_cohort_holds_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.bundle.density.ITEMS", 10)
    world = crowded(30, 12, seed=1)
    cohorts = [Cohort.of(*world, seed=seed) for seed in range(8)]
    assert {cohort.size for cohort in cohorts} == {10}
    assert {item for cohort in cohorts for item in cohort.items.tolist()} > set(range(25))
    assert all((np.bincount(cohort.items)[cohort.items] == PHOTOS_OF_AN_ITEM).all() for cohort in cohorts)


def test_the_key_is_of_the_vectors_and_of_the_items(cohort: Cohort) -> None:
    moved = cohort.items.copy()
    moved[-1] += 1
    assert len({cohort.key, Cohort(cohort.vectors, moved).key, Cohort(-cohort.vectors, cohort.items).key}) == 3


@pytest.mark.parametrize("items", [[0, 0, 1, 1], [1, 0, 1], [0, 2, 1], [0, 1]])
def test_items_of_a_cohort_are_sorted_one_a_vector(items: list[int]) -> None:
    with pytest.raises(InvalidParameter, match="items must be ascending, one a vector"):
        Cohort(np.eye(3, dtype=np.float32), np.array(items))


def test_a_cohort_may_begin_with_any_item() -> None:
    cohort = Cohort(np.eye(3, dtype=np.float32), np.array([1, 1, 5]))
    assert cohort.size == 2
    assert cohort.nearest(np.eye(3, dtype=np.float32)).tolist() == [[1, 0], [1, 0], [1, 0]]


def test_all_photos_of_few_are_kept_and_no_more_than_2000_items() -> None:
    vectors, labels = crowded(30, 8, seed=1)
    assert (np.bincount(Cohort.of(vectors, labels).items) == 8).all()
    many = np.tile(np.eye(2, dtype=np.float32), (1001, 1))
    assert Cohort.of(many, np.arange(2002)).size == 2000


@pytest.mark.parametrize("block", [1, 240, 1000])
def test_the_size_of_a_block_changes_no_cosine(cohort: Cohort, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, _ = crowded(5, 3)
    whole = cohort.nearest(vectors)
    monkeypatch.setattr("retrieval.bundle.density.BLOCK", block)
    assert cohort.nearest(vectors) == pytest.approx(whole, abs=1e-15)
    assert (np.diff(whole, axis=1) <= 0).all()
    assert whole.shape == (15, 30)


def own_densities(cohort: Cohort, k: int) -> np.ndarray:
    return np.sort(cohort.nearest(cohort.vectors), axis=1)[:, ::-1][:, 1 : 1 + k].mean(axis=1)


def test_the_floor_is_a_low_percentile_of_the_cohort() -> None:
    cohort = Cohort.of(*crowded(30, 12, seed=1))
    own = own_densities(cohort, 4)
    additive, scaled = (LocalDensity.fit(form, 4, cohort) for form in FORMS)
    assert additive.floor == pytest.approx(np.quantile(own, 0.02))
    assert scaled.floor == pytest.approx(np.quantile(1 - own, 0.02))
    assert additive.sparsest == scaled.sparsest == pytest.approx(np.quantile(own, 0.001))
    assert LocalDensity.fit(ADDITIVE, 4, cohort, nearest=cohort.nearest(cohort.vectors)) == additive
    assert LocalDensity.fit(ADDITIVE, 4, cohort, nearest=np.full((5, 30), 0.25)).floor == 0.25


def test_where_all_photos_are_alike_the_floor_stays_positive() -> None:
    alike = np.tile(np.eye(4, dtype=np.float32)[:1], (12, 1))
    distance_form = LocalDensity.fit(LOCAL_SCALING, 2, Cohort.of(alike, np.arange(12) // 2))
    assert distance_form.floor == 1e-3
    assert distance_form.transform(np.array([0.01]), 1.0, 1.0)[0] == pytest.approx(np.sqrt(0.01 / 1e-3))


def test_numbers_a_reader_can_check(cohort: Cohort) -> None:
    """Local scaling divides by the root of both sparsities, 1 - b; additive adds what exceeds the floor."""
    scaled = LocalDensity(LOCAL_SCALING, 4, 0.25, cohort)
    assert scaled.transform(np.array([0.3]), 0.5, 0.28)[0] == pytest.approx(np.sqrt(0.3 / np.sqrt(0.5 * 0.72)))
    assert scaled.transform(np.array([0.3]), 0.9, 0.75)[0] == pytest.approx(np.sqrt(0.3 / 0.25))  # the floor
    added = LocalDensity(ADDITIVE, 4, 0.4, cohort)
    assert added.transform(np.array([0.3]), 0.5, 0.7)[0] == pytest.approx(np.sqrt(0.3 + 0.1 + 0.3))
    assert added.transform(np.array([0.3]), 0.3, 0.7)[0] == pytest.approx(np.sqrt(0.3 + 0.3))  # below the floor
    assert added.transform(np.array([0.01]), 0.5, 0.7)[0] == pytest.approx(np.sqrt(0.01 + 0.4 * 0.2))  # x / 0.05
    assert added.transform(np.array([0.05]), 0.5, 0.7)[0] == pytest.approx(np.sqrt(0.05 + 0.4))


def test_hardly_a_photo_of_the_cohort_is_outside(cohort: Cohort) -> None:
    distance_form = LocalDensity.fit(LOCAL_SCALING, 4, cohort)
    assert distance_form.is_outside(cohort.vectors).sum() == 1  # 0.001 of 240, interpolated
    opposite = -cohort.vectors.mean(axis=0, keepdims=True)
    assert distance_form.is_outside((opposite / np.linalg.norm(opposite)).astype(np.float32)).all()
    at = LocalDensity(LOCAL_SCALING, 4, 0.1, cohort, sparsest=float(distance_form.densities(cohort.vectors[:1])[0]))
    assert not at.is_outside(cohort.vectors[:1]).any()
    assert not LocalDensity(LOCAL_SCALING, 4, 0.1, cohort).is_outside(-cohort.vectors).any()  # unknown: none is


def test_a_floor_is_positive_where_it_divides(cohort: Cohort) -> None:
    for floor in (0.0, -0.1, float("nan")):
        with pytest.raises(InvalidParameter, match="floor must be positive"):
            LocalDensity(LOCAL_SCALING, 4, floor, cohort)
    assert LocalDensity(ADDITIVE, 1, -0.1, cohort).floor == -0.1
    assert LocalDensity(ADDITIVE, 29, 0.0, cohort).k == 29


def test_a_manifest_tells_everything_of_a_measure(cohort: Cohort) -> None:
    distance_form = LocalDensity.fit(ADDITIVE, 8, cohort)
    again = unpack_distance_form(distance_form.to_dict(), pack_cohort(cohort))
    assert isinstance(again, LocalDensity)
    assert (again.form, again.k, again.floor, again.sparsest) == (
        ADDITIVE,
        8,
        distance_form.floor,
        distance_form.sparsest,
    )
    assert (again.cohort.items == cohort.items).all()
    assert unpack_distance_form({"form": "plain"}, pack_cohort(cohort)) is PLAIN
    with pytest.raises(BundleCorrupt, match="the distance form is additive and the manifest lists no cohort"):
        unpack_distance_form(distance_form.to_dict(), None)  # never the plain distance, which another threshold is for
    keys = {LocalDensity(form, k, floor, cohort).key for form in FORMS for k in (4, 8) for floor in (0.1, 0.2)}
    assert len(keys) == 8


def test_a_cohort_is_numbers_and_never_objects() -> None:
    """Objects in npz are pickles, which run what they say when they are read."""
    file = io.BytesIO()
    np.savez(file, vectors=np.eye(2, dtype=np.float32), products=np.array([0, 1], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        unpack_distance_form({"form": ADDITIVE, "k": 1, "floor": 0.1, "sparsest": -1.0}, file.getvalue())


def test_densities_may_be_lists(cohort: Cohort) -> None:
    for form in FORMS:
        distance_form = LocalDensity(form, 4, 0.25, cohort)
        one = distance_form.transform(np.array([0.3]), [0.5], [0.28])
        assert one == distance_form.transform(np.array([0.3]), 0.5, np.array([0.28]))


def test_a_floor_of_additive_density_is_any_number() -> None:
    """In a cohort of orthogonal photos every density is 0."""
    distance_form = LocalDensity.fit(ADDITIVE, 4, Cohort(np.eye(12, dtype=np.float32), np.arange(12)))
    assert distance_form.floor == 0.0


def test_without_a_limit_nothing_is_outside() -> None:
    """The photo opposite to all of the cohort has a density of -1, the least there is."""
    alike = Cohort(np.tile(np.eye(4, dtype=np.float32)[:1], (4, 1)), np.arange(4))
    opposite = -np.eye(4, dtype=np.float32)[:1]
    assert LocalDensity(ADDITIVE, 2, 0.1, alike).densities(opposite).tolist() == [-1.0]
    assert not LocalDensity(ADDITIVE, 2, 0.1, alike).is_outside(opposite).any()
