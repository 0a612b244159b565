"""Galleries that somebody made or damaged, and odd photos for them: refused in words, and nothing else is written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from index.checks import MAX_DEPTH, encode_metadata
from index.errors import GalleryError, InvalidParameter
from index.gallery import Gallery

from ..hostile import ARRAYS, FLIPS, METADATA, PHOTO_IDS, damage

VECTOR = np.eye(16, dtype=np.float32)[:1]


@pytest.mark.parametrize("pattern", ["segments/*.npy", "segments/*.rows", "indexes/*.faiss", "indexes/*.npy"])
def test_no_damage_of_a_gallery_passes_verify(tmp_path: Path, pattern: str) -> None:
    vectors = np.random.default_rng(1).normal(size=(200, 16))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    with Gallery.create(tmp_path / "g", dim=16, embedding_id="e") as gallery:
        gallery.add([f"p{i}" for i in range(200)], [f"i{i % 50}" for i in range(200)], vectors)
        gallery.rebuild(kind="ivf")
    (file,) = (tmp_path / "g").glob(pattern)
    whole, generator = file.read_bytes(), np.random.default_rng(2)
    for number in range(FLIPS):
        file.write_bytes(damage(whole, generator))
        try:
            with Gallery.open(tmp_path / "g", read_only=True) as gallery:
                assert gallery.verify(), f"damage {number} was not found"
        except GalleryError:
            pass  # it does not even open
    file.write_bytes(whole)
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        assert gallery.verify() == []


@pytest.mark.parametrize("name", ARRAYS)
def test_vectors_that_are_something_else_are_refused_and_cost_no_memory(tmp_path: Path, name: str) -> None:
    with Gallery.create(tmp_path / "g", dim=16, embedding_id="e") as gallery:
        gallery.add(["p"], ["i"], VECTOR)
    (file,) = (tmp_path / "g" / "segments").glob("*.npy")
    file.write_bytes(ARRAYS[name].ljust(file.stat().st_size, b"\0"))
    with pytest.raises(GalleryError), Gallery.open(tmp_path / "g") as gallery:
        len(gallery)


def test_names_never_become_paths(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "in" / "g", dim=16, embedding_id="e") as gallery:
        for name in PHOTO_IDS:
            gallery.add([name], [name], VECTOR, thumbnails=[b"x"])
        assert {photo_id for photo_id, _, _ in gallery.photos()} == set(PHOTO_IDS)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["g"]


@pytest.mark.parametrize("name", sorted(METADATA.keys() - {"no object"}))
def test_odd_metadata_are_refused_or_come_back_as_they_were(tmp_path: Path, name: str) -> None:
    given = json.loads(METADATA[name])
    with Gallery.create(tmp_path / "g", dim=16, embedding_id="e") as gallery:
        try:
            gallery.add(["p"], ["i"], VECTOR, metadata=[given])
        except InvalidParameter:
            assert len(gallery) == 0
        else:
            assert gallery.photo("p") == ("p", "i", given)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 250, 900, 100_000])
def test_metadata_nested_too_deeply_is_refused_by_add(tmp_path: Path, depth: int) -> None:
    """No answer over HTTP could hold deeper metadata."""
    nested: list[object] = []
    for _ in range(depth - 2):
        nested = [nested]
    with Gallery.create(tmp_path / "g", dim=16, embedding_id="e") as gallery:
        with pytest.raises(InvalidParameter, match=f"at most {MAX_DEPTH} levels"):
            gallery.add(["deep"], ["i"], VECTOR, metadata=[{"x": nested}])
        assert len(gallery) == 0
        just = {"x": 0}
        for _ in range(MAX_DEPTH - 1):
            just = {"x": just}  # type: ignore[dict-item]
        gallery.add(["p"], ["i"], VECTOR, metadata=[just])
        assert gallery.photo("p") == ("p", "i", just)


def test_metadata_is_as_deep_as_its_deepest_value() -> None:
    flat: dict[str, object] = {"brand": "x", "price": 9.5, "tags": ["a", {"b": None}]}
    deep: object = "end"
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    for metadata in ({}, flat, {**flat, "deep": deep}, {"deep": deep, **flat}):
        assert json.loads(encode_metadata(metadata)) == metadata
    with pytest.raises(InvalidParameter, match=f"at most {MAX_DEPTH} levels"):
        encode_metadata({**flat, "deep": [deep]})
