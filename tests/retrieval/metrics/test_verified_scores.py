"""Verified scores against searches of a gallery, with the own item in it and without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from index.gallery import Gallery
from index.search.distance import PLAIN
from index.search.verified import VerifiedDistance
from retrieval.metrics.identification import search_scores
from retrieval.metrics.verified_scores import RememberedInliers, SearchSide, verified_scores

from ...index.search.fake_verifier import FakeVerifier, some_features
from ...index.vectors import DIM, unit

GALLERY, QUERIES, ITEMS = 90, 25, 30


def sides(*, same: bool = False) -> tuple[SearchSide, SearchSide]:
    generator = np.random.default_rng(5)
    labels = generator.integers(0, ITEMS, GALLERY)
    gallery = SearchSide(unit(GALLERY, 1), labels, some_features(GALLERY, 1), np.arange(GALLERY))
    if same:
        return gallery, gallery
    queries = SearchSide(unit(QUERIES, 2), generator.integers(0, ITEMS + 4, QUERIES), some_features(QUERIES, 2))
    return queries, SearchSide(gallery.vectors, labels, gallery.features)


def of_gallery(
    folder: Path, gallery: SearchSide, kept: np.ndarray, form: VerifiedDistance, vector: np.ndarray, features: bytes
) -> dict[int, float]:
    """Return the distance to each item, searched in a gallery of some of the photos."""
    with Gallery.create(folder, dim=DIM, embedding_id="e", features_key="f") as place:
        rows = np.flatnonzero(kept).tolist()
        names = [str(gallery.labels[row]) for row in rows]
        some = [gallery.features[row] for row in rows]
        place.add([f"p{row}" for row in rows], names, gallery.vectors[rows], features=some)
        (found,) = place.search(vector[None], ITEMS, distance_form=form, features=[features])
    return {int(neighbour.item_id): neighbour.distance for neighbour in found}


@pytest.mark.parametrize("same", [False, True])
def test_scores_are_those_of_searches_with_the_own_item_and_without(tmp_path: Path, same: bool) -> None:
    queries, gallery = sides(same=same)
    form = VerifiedDistance(PLAIN, FakeVerifier())
    (scores,) = verified_scores(queries, gallery, [form])
    for row in range(0, len(queries.labels), 18 if same else 6):
        left = np.ones(GALLERY, dtype=bool)
        if same:
            left[row] = False
        item, asked = int(queries.labels[row]), (queries.vectors[row], queries.features[row])
        mated = of_gallery(tmp_path / f"m{row}", gallery, left, form, *asked)
        others = of_gallery(tmp_path / f"n{row}", gallery, left & (gallery.labels != item), form, *asked)
        assert scores.own[row] == pytest.approx(mated.get(item, np.inf), abs=1e-6)
        assert scores.impostor[row] == pytest.approx(min(others.values()), abs=1e-6)


def test_without_strength_the_scores_are_those_of_the_base_distance() -> None:
    queries, gallery = sides()
    (scores,) = verified_scores(queries, gallery, [VerifiedDistance(PLAIN, FakeVerifier(factor=1.0))])
    plain = search_scores(queries.vectors, queries.labels, gallery.vectors, gallery.labels)
    assert scores.own == pytest.approx(plain.own, abs=1e-6)
    assert scores.impostor == pytest.approx(plain.impostor, abs=1e-6)
    assert scores.gallery_items == plain.gallery_items


def test_inliers_only_lower_a_distance_and_pairs_are_compared_once() -> None:
    queries, gallery = sides()
    strong = RememberedInliers(FakeVerifier(factor=0.5))
    weak = RememberedInliers(FakeVerifier(factor=0.9), strong.known)
    forms = [VerifiedDistance(PLAIN, each) for each in (strong, weak)]
    first, second = verified_scores(queries, gallery, forms)
    assert strong.verifier.compared == len(strong.known) > 0  # type: ignore[attr-defined]
    assert weak.verifier.compared == 0  # type: ignore[attr-defined]
    assert (first.own <= second.own).all()
    assert (first.own < second.own).any()
    assert (first.impostor <= second.impostor).all()
