"""Verified searches against a slow version that looks at every photo, and figures that can be checked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.ann.recall import Probe
from index.errors import GalleryCorrupt, GalleryError, InvalidParameter
from index.gallery import Gallery
from index.location import open_or_create
from index.search.distance import PLAIN, DistanceForm, plain_distance
from index.search.verified import VerifiedDistance

from ..vectors import DIM, unit
from .fake_verifier import WORDS, FakeVerifier, fill, pack, points_of, some_features, verified_gallery

pytestmark = pytest.mark.usefixtures("few_own_queries")


class Lifted:
    """A base form that depends on the densities of both sides: the first number of a vector."""

    key = "lifted"

    def densities(self, vectors: np.ndarray) -> np.ndarray:
        return np.abs(vectors[:, 0]).astype(np.float64)

    def transform(self, squared: Any, query: Any, photo: Any) -> Any:
        return np.sqrt(squared) * (1 + np.asarray(query) + np.asarray(photo))


def slow_score(query: bytes, photo: bytes) -> float:
    """Return the score of a photo: the greatest vote of each integer of the query, over the root of all weights."""
    weights, factors = np.log(np.arange(WORDS) + 1), {0: 1.0, 1: 0.5, 2: 0.25}
    shown, total = points_of(photo).tolist(), 0.0
    for number in points_of(query).tolist():
        votes = [
            weights[other % WORDS] * factors.get(abs(number // WORDS - other // WORDS), 0.0)
            for other in shown
            if (other - number) % WORDS in (0, 1)
        ]
        total += max(votes, default=0.0)
    norm = np.sqrt(sum(weights[other % WORDS] for other in shown))
    return float(total / norm) if norm else 0.0


def slow(
    gallery: Gallery, form: VerifiedDistance, vector: np.ndarray, features: bytes, k: int, brand: str = "ab"
) -> list[tuple[str, str, float]]:
    """Return item, photo and distance of the nearest items, by the definition."""
    verifier = form.verifier
    photos = [photo for some in gallery.walk(1000, whole=True) for photo in some if photo.metadata["brand"] in brand]
    stored = np.array([photo.vector for photo in photos])
    own, around = form.densities(vector[None]), form.densities(stored)
    base = form.transform(plain_distance(vector[None], stored) ** 2, np.repeat(own, len(stored)), around)
    order = np.argsort(base, kind="stable").tolist()
    nearest = list(dict.fromkeys(photos[i].item_id for i in order))[: verifier.items]
    near = {i for item in nearest for i in [i for i in order if photos[i].item_id == item][: verifier.photos]}
    distances = base.copy()
    scores = [slow_score(features, photo.features or b"") for photo in photos]
    best = sorted((i for i in range(len(photos)) if scores[i] > 0), key=lambda i: -round(scores[i], 9))
    for i in near | set(best[: verifier.voted]):
        inliers = verifier.inliers(features, [photos[i].features or b""])
        distances[i] = min(distances[i], verifier.fused(base[i : i + 1], inliers)[0])
    found: dict[str, tuple[str, str, float]] = {}
    for i in np.argsort(distances, kind="stable").tolist():
        found.setdefault(photos[i].item_id, (photos[i].item_id, photos[i].photo_id, float(distances[i])))
    return list(found.values())[:k]


def searched(gallery: Gallery, form: DistanceForm, seed: int, count: int, k: int, **options: Any) -> list[Any]:
    answers = gallery.search(unit(count, seed), k, distance_form=form, features=some_features(count, seed), **options)
    return [[(found.item_id, found.photo_id, found.distance) for found in best] for best in answers]


@pytest.mark.parametrize("base", [pytest.param(PLAIN, marks=pytest.mark.slow), Lifted()], ids=["plain", "lifted"])
@pytest.mark.parametrize("verifier", [FakeVerifier(), FakeVerifier(1, 1, 0), FakeVerifier(2, 3, 50, 0.5)])
@pytest.mark.parametrize("k", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(30, marks=pytest.mark.slow)])
def test_as_the_slow_version(tmp_path: Path, base: DistanceForm, verifier: FakeVerifier, k: int) -> None:
    form = VerifiedDistance(base, verifier)
    with verified_gallery(tmp_path / "g") as gallery:
        found = searched(gallery, form, 5, 25, k)
        expected = [slow(gallery, form, v, f, k) for v, f in zip(unit(25, 5), some_features(25, 5), strict=True)]
        assert [[hit[:2] for hit in best] for best in found] == [[hit[:2] for hit in best] for best in expected]
        for best, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose([hit[2] for hit in best], [hit[2] for hit in wanted], rtol=1e-12)
        plain = searched(gallery, base, 5, 25, k)
        assert plain != found  # verification matters here
        for brand in "ab":
            (one,) = searched(gallery, form, 6, 1, k, where=f"brand = '{brand}'")
            wanted = slow(gallery, form, unit(1, 6)[0], some_features(1, 6)[0], k, brand)
            assert [hit[:2] for hit in one] == [hit[:2] for hit in wanted]


@pytest.mark.parametrize("kind", ["flat", "fp16", "ivf"])
def test_answers_depend_neither_on_the_batch_nor_on_the_segments(tmp_path: Path, kind: str) -> None:
    form = VerifiedDistance(PLAIN, FakeVerifier())
    with verified_gallery(tmp_path / "g") as gallery:
        together = searched(gallery, form, 5, 20, 5)
        parts = list(zip(unit(20, 5), some_features(20, 5), strict=True))
        alone = [gallery.search(v[None], 5, distance_form=form, features=[f])[0] for v, f in parts]
        assert [[(hit.item_id, hit.photo_id, hit.distance) for hit in best] for best in alone] == together
        assert [best[:2] for best in together] == searched(gallery, form, 5, 20, 2)  # nor on k
        gallery.rebuild(kind=kind, probe=Probe(0.5, form), threads=1)
        assert searched(gallery, form, 5, 20, 5) == together
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        assert searched(gallery, form, 5, 20, 5) == together


def test_everything_within_by_base_distance_still_matches(tmp_path: Path) -> None:
    form = VerifiedDistance(PLAIN, FakeVerifier())
    with verified_gallery(tmp_path / "g") as gallery:
        plain = searched(gallery, PLAIN, 5, 20, 40)
        found = searched(gallery, form, 5, 20, 40, within=0.6)
        for before, after in zip(plain, found, strict=True):
            verified = {hit[0]: hit[2] for hit in after}
            assert all(verified[item] <= distance for item, _, distance in before if distance <= 0.6)
            assert [hit[2] for hit in after] == sorted(hit[2] for hit in after)


def test_votes_bring_a_photo_that_is_far_away(tmp_path: Path) -> None:
    vectors = np.eye(DIM, dtype=np.float32)
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e", features_key="f") as gallery:
        features = [pack([1, 2]), pack([50, 51, 52, 53]), pack([50, 51, 52, 53, 54, 55, 56])]
        gallery.add(["near", "far", "more"], ["x", "y", "z"], [vectors[0], vectors[1], -vectors[0]], features=features)
        asked: dict[str, Any] = {"features": [pack([50, 51, 52, 53])]}
        for voted, names in ((0, ["near", "far", "more"]), (1, ["far", "near", "more"]), (2, ["far", "more", "near"])):
            form = VerifiedDistance(PLAIN, FakeVerifier(items=1, photos=1, voted=voted, factor=0.5))
            query = (vectors[:1] + 0.5 * vectors[1:2]) / np.sqrt(1.25)
            (best,) = gallery.search(query, 3, distance_form=form, **asked)
            assert [hit.photo_id for hit in best] == names
        assert best[0].distance == pytest.approx(plain_distance(query, vectors[1:2])[0] / 16)
        assert best[1].distance == pytest.approx(plain_distance(query, -vectors[:1])[0] / 16)


class Raising(FakeVerifier):
    """A verifier whose fusion raises distances."""

    def fused(self, distances: np.ndarray, inliers: np.ndarray) -> np.ndarray:
        return distances * 2.0**inliers


def test_inliers_never_raise_a_distance(tmp_path: Path) -> None:
    with verified_gallery(tmp_path / "g") as gallery:
        plain, form = searched(gallery, PLAIN, 5, 20, 40), VerifiedDistance(PLAIN, Raising())
        assert searched(gallery, form, 5, 20, 40) == plain


def test_only_the_shortlist_is_compared(tmp_path: Path) -> None:
    verifier = FakeVerifier(items=4, photos=2, voted=3)
    with verified_gallery(tmp_path / "g") as gallery:
        searched(gallery, VerifiedDistance(PLAIN, verifier), 5, 10, 40)
    assert 10 * 4 < verifier.compared <= 10 * (4 * 2 + 3)


def test_an_empty_gallery_has_no_answer(tmp_path: Path) -> None:
    form = VerifiedDistance(PLAIN, FakeVerifier())
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e", columns={"brand": "text"}, features_key="f") as g:
        assert searched(g, form, 1, 2, 3) == [[], []]
        fill(g, range(4), 2, 3)
        assert len(searched(g, form, 1, 1, 9)[0]) == 2
        assert searched(g, form, 1, 1, 9, where="brand = 'c'") == [[]]
        g.remove(photo_ids=[f"p{i}" for i in range(4)])
        assert searched(g, form, 1, 2, 3) == [[], []]


def test_a_search_needs_features(tmp_path: Path) -> None:
    form = VerifiedDistance(PLAIN, FakeVerifier())
    with verified_gallery(tmp_path / "g") as gallery:
        for features in (None, [b""]):
            with pytest.raises(InvalidParameter, match=r"features must have one entry per vector \(2\)"):
                gallery.search(unit(2), 1, distance_form=form, features=features)
        other = VerifiedDistance(PLAIN, FakeVerifier(features_key="g"))
        with pytest.raises(GalleryError, match="keeps other features"):
            searched(gallery, other, 1, 1, 1)
        assert gallery.search(unit(2), 1, features=[b"", b""]) == gallery.search(unit(2), 1)
    plain = Gallery.create(tmp_path / "plain", dim=DIM, embedding_id="e")
    with plain, pytest.raises(GalleryError, match="keeps no features"):
        searched(plain, form, 1, 1, 1)


@pytest.mark.slow
def test_milvus_refuses_a_verified_form(tmp_path: Path) -> None:
    form = VerifiedDistance(PLAIN, FakeVerifier())
    with open_or_create(f"milvus+{tmp_path}/lite.db/g", dim=DIM, embedding_id="e") as gallery:
        with pytest.raises(GalleryError, match=r"like every gallery on Milvus.*local gallery"):
            searched(gallery, form, 1, 1, 1)  # type: ignore[arg-type]
        with pytest.raises(InvalidParameter, match="be None in a gallery without features"):
            gallery.add(["a"], ["x"], unit(1), features=[b""])


def test_damaged_features_are_an_error_of_the_search_that_reads_them(tmp_path: Path) -> None:
    form = VerifiedDistance(PLAIN, FakeVerifier())
    with verified_gallery(tmp_path / "g") as gallery:
        gallery.rebuild()
        searched(gallery, form, 5, 1, 1)  # keeps the words
    (file,) = (tmp_path / "g" / "segments").glob("*.features")
    data = bytearray(file.read_bytes())
    data[: len(data) // 3] = bytes(len(data) // 3)
    file.write_bytes(data)
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        gallery.search(unit(1), 5)
        with pytest.raises(GalleryCorrupt, match="features of photo"):
            searched(gallery, form, 5, 10, 5)
        assert "features of photo" in gallery.damage[0]


def test_densities_are_those_of_the_base_form(tmp_path: Path) -> None:
    base = Lifted()
    form = VerifiedDistance(base, FakeVerifier())
    assert form.key == "lifted+fake 4 2 3 0.8"
    with verified_gallery(tmp_path / "g") as gallery:
        assert gallery.snapshot().densities(form)[0] is gallery.snapshot().densities(base)[0]
