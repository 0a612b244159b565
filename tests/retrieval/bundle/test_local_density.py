from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.distance import PLAIN, plain_distance
from index.gallery import Gallery
from retrieval.bundle.local_density import (
    ADDITIVE,
    LOCAL_SCALING,
    PHOTOS_OF_A_PRODUCT,
    Cohort,
    LocalDensity,
    pack_cohort,
    unpack_measure,
)
from retrieval.errors import InvalidParameter
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


def test_a_cohort_holds_so_many_photos_of_each_product(cohort: Cohort) -> None:
    assert cohort.size == 30
    assert (np.bincount(cohort.products) == PHOTOS_OF_A_PRODUCT).all()


def test_density_is_the_mean_of_the_next_k_products(cohort: Cohort) -> None:
    vectors, _ = crowded(5, 2)
    cosines = vectors.astype(float) @ cohort.vectors.astype(float).T
    by_product = np.stack([cosines[:, cohort.products == p].max(axis=1) for p in range(30)], axis=1)
    expected = np.sort(by_product, axis=1)[:, ::-1][:, 1:5].mean(axis=1)
    assert cohort.density(vectors, 4) == pytest.approx(expected, rel=1e-12)


def test_products_of_the_cohort_are_hardly_denser_than_others(cohort: Cohort) -> None:
    (trained, _), (others, _) = crowded(30, 12, seed=1), crowded(30, 12, seed=2)
    nearest = cohort.nearest(trained)[:, 0].mean() - cohort.nearest(others)[:, 0].mean()
    density = cohort.density(trained, 4).mean() - cohort.density(others, 4).mean()
    assert density < nearest / 2


@pytest.mark.parametrize("form", FORMS)
def test_a_crowd_is_farther_apart(cohort: Cohort, form: str) -> None:
    measure = LocalDensity.fit(form, 4, cohort)
    dense, sparse = 0.9, 0.1
    assert measure.transform(np.array([0.5]), dense, dense) > measure.transform(np.array([0.5]), sparse, sparse)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_it_is_monotone_and_zero_only_at_zero(cohort: Cohort, form: str, seed: int) -> None:
    measure = LocalDensity.fit(form, 4, cohort)
    generator = np.random.default_rng(seed)
    squared = np.concatenate([[0.0], np.sort(generator.uniform(0, 4, 50))])
    query, photo = generator.uniform(-1, 1, 2)
    distances = measure.transform(squared, query, photo)
    assert distances[0] == 0
    assert (np.diff(distances) > 0).all()
    assert (measure.transform(squared, query, photo + 0.1) >= distances).all()
    assert np.isfinite(distances).all()


@pytest.mark.parametrize("form", [*FORMS, "plain"])
def test_a_gallery_answers_as_a_look_at_every_photo(cohort: Cohort, form: str, tmp_path: Path) -> None:
    measure = PLAIN if form == "plain" else LocalDensity.fit(form, 4, cohort)
    vectors, labels = crowded(200, 5, seed=3)
    with Gallery.create(tmp_path / "gallery", dim=16, embedding_id="e") as gallery:
        for half in (slice(0, 700), slice(700, 1000)):
            names = [f"p{i}" for i in range(1000)[half]]
            gallery.add(names, [f"i{label}" for label in labels[half]], vectors[half])
        gallery.remove(item_ids=["i3"])
        queries, _ = crowded(20, 1, seed=4)
        answers = gallery.search(queries, 5, measure=measure)
        gallery.merge()
        assert gallery.search(queries, 5, measure=measure) == answers
    kept = labels != 3
    for query, answer in zip(queries, answers, strict=True):
        squared = plain_distance(query[None], vectors[kept]) ** 2
        own, others = measure.densities(query[None]), measure.densities(vectors[kept])
        distances = measure.transform(squared, own, others)
        best = {label: distances[labels[kept] == label].min() for label in np.unique(labels[kept])}
        expected = sorted(best.items(), key=lambda pair: pair[1])[:5]
        assert [neighbour.item_id for neighbour in answer] == [f"i{label}" for label, _ in expected]
        assert [neighbour.distance for neighbour in answer] == pytest.approx([d for _, d in expected], abs=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_a_photo_in_the_gallery_is_zero_away_from_itself(cohort: Cohort, form: str, tmp_path: Path) -> None:
    vectors, labels = crowded(40, 3, seed=5)
    with Gallery.create(tmp_path / "gallery", dim=16, embedding_id="e") as gallery:
        gallery.add([f"p{i}" for i in range(120)], [f"i{label}" for label in labels], vectors)
        answers = gallery.search(vectors, 1, measure=LocalDensity.fit(form, 4, cohort))
    assert [(a[0].item_id, a[0].distance) for a in answers] == [(f"i{label}", 0.0) for label in labels]


@pytest.mark.parametrize("form", FORMS)
def test_scores_are_what_the_gallery_says(cohort: Cohort, form: str, tmp_path: Path) -> None:
    measure = LocalDensity.fit(form, 8, cohort)
    vectors, labels = crowded(60, 4, seed=6)
    asked, kept = np.arange(240) % 4 == 0, np.arange(240) % 4 > 0
    scores = search_scores(vectors[asked], labels[asked], vectors[kept], labels[kept], measure=measure)
    with Gallery.create(tmp_path / "gallery", dim=16, embedding_id="e") as gallery:
        gallery.add([f"p{i}" for i in range(180)], [f"i{label}" for label in labels[kept]], vectors[kept])
        answers = gallery.search(vectors[asked], 60, measure=measure)
    for label, own, impostor, near, answer in zip(
        labels[asked], scores.own, scores.impostor, scores.near, answers, strict=True
    ):
        distances = {neighbour.item_id: neighbour.distance for neighbour in answer}
        assert distances.pop(f"i{label}") == pytest.approx(own, abs=1e-12)
        assert min(distances.values()) == pytest.approx(impostor, abs=1e-12)
        assert sorted(distances.values())[:32] == pytest.approx(near, abs=1e-4)


def test_it_survives_a_bundle(cohort: Cohort) -> None:
    measure = LocalDensity.fit(LOCAL_SCALING, 8, cohort)
    again = unpack_measure(measure.to_dict(), pack_cohort(cohort))
    vectors, _ = crowded(5, 2)
    assert again.key == measure.key
    assert (again.densities(vectors) == measure.densities(vectors)).all()
    assert unpack_measure({"form": "plain"}, None) is PLAIN


@pytest.mark.parametrize(
    ("form", "k", "message"),
    [("other", 4, "form"), (ADDITIVE, 0, "between 1 and 29"), (ADDITIVE, 30, "between 1 and 29")],
)
def test_broken_rules_are_named(cohort: Cohort, form: str, k: int, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        LocalDensity(form, k, 0.1, cohort)
