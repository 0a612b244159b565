"""Contents that a gallery keeps beside its photos, of today and of version 0.2.0."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from index.database import FOLDS_FILE, POINT
from index.errors import GalleryCorrupt
from index.files import pack_arrays, sha256
from index.gallery import Gallery
from index.photos import CONTENT
from index.search.item_distance import NEAREST_PHOTO
from index.upkeep.contents_020 import FOLDS_HASH, MOVES
from index.upkeep.transfer import export_gallery
from retrieval.galleries.kept import (
    Kept,
    pack_draws,
    pack_folds,
    pack_parts,
    pack_queries,
    read_draws,
    read_folds,
    read_parts,
    read_queries,
)
from retrieval.measuring.drawing import Drawing, PartVectors
from retrieval.measuring.draws import OWN, AllDraws, Draws, Probes
from retrieval.measuring.folds import FoldVectors
from tests.index.vectors import DIM, unit
from tests.retrieval.galleries.version_020 import LATER, pack_draws_020, pack_vectors_020, seqs_of
from tests.retrieval.measuring.test_drawing import LINE, at, by_id, draws_of, shop
from tests.world import shuffled


def test_draws_are_kept_and_read(tmp_path: Path) -> None:
    probes = {"probe": Probes(np.stack([at(8.0), at(9.0)]), ["q0", "q1"], ["b", "stranger"])}
    with shop(tmp_path / "g", LINE) as gallery:
        assert read_draws(gallery) is None
        made = draws_of(gallery, probes, ["c"])
        gallery.keep({Kept.DRAWS: pack_draws(made)}, "measure")
        read = read_draws(gallery)
        assert read is not None
        assert (read.model, read.fitted, read.version, read.photos, read.has_rivals) == ("m", {"c"}, 1, 5, True)
        assert read.mark == made.mark == (5, 10, 5)
        assert gallery.snapshot().changes_since(read.mark) == 0
        assert set(read.sources) == {OWN, "probe", "2 photos", "3 photos", "4 photos"}
        for name, source in made.sources.items():
            for field, value in source.arrays().items():
                np.testing.assert_array_equal(read.sources[name].arrays()[field], value)
        assert by_id(read.sources["probe"], "nearest_items") == {"q0": "a", "q1": "b"}  # b is left out of q0's search
        assert set(read.sources[OWN].items) == {"a", "b", "d"}
        assert by_id(read.sources[OWN], "nearest_items")["d0"] == "c"  # fitted items are found
        gallery.remove(photo_ids=["a0"])
        assert gallery.snapshot().changes_since(read.mark) == 1
        gallery._database._connection.execute("UPDATE kept SET content = 'x' WHERE name = ?", (Kept.DRAWS,))
        assert read_draws(gallery) is None


@pytest.mark.parametrize("about", [b"{", b"{}", b'{"model": 1}', b"[" * 100_000], ids=len)
def test_content_that_makes_no_sense_is_none(tmp_path: Path, about: bytes) -> None:
    file = io.BytesIO()
    np.savez(file, about=np.frombuffer(about, np.uint8))
    with shop(tmp_path / "g", LINE) as gallery:
        for content in (about, file.getvalue()):
            gallery.keep({Kept.DRAWS: content, POINT: None}, "measure")
            assert read_draws(gallery) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("wrong", np.ones(4)), ("ids", np.arange(5)), ("nearest", np.ones(5)), ("own", np.ones((5, 1)))],
    ids=["one is missing", "numbers for texts", "fractions for ids of photos", "a column"],
)
def test_draws_with_an_array_of_another_length_or_kind_are_damaged(
    tmp_path: Path, field: str, value: np.ndarray[Any, Any]
) -> None:
    with shop(tmp_path / "g", LINE) as gallery:
        made = draws_of(gallery)
        assert len(made.sources[OWN]) == 5
        damaged = replace(made.sources[OWN], **{field: value})
        gallery.keep({Kept.DRAWS: pack_draws(replace(made, sources={OWN: damaged}))}, "measure")
        assert read_draws(gallery) is None


def test_labelled_queries_are_kept_with_the_features_of_one_verifier() -> None:
    given = Probes(np.eye(3, dtype=np.float32), ["b", "a", "c"], ["x", "", "y"], [b"1", b"", b"333"])
    gallery: Any = SimpleNamespace(kept=lambda _: pack_queries(given, "a verifier"), dim=3)
    read = read_queries(gallery, "a verifier")
    assert read is not None
    np.testing.assert_array_equal(read.vectors, given.vectors)
    assert (read.ids, read.items, read.features) == (given.ids, given.items, given.features)
    assert read_queries(gallery, "another") is None
    plain = read_queries(gallery)
    assert plain is not None
    assert (plain.ids, plain.features) == (given.ids, ())


def some_photos(path: Path) -> Gallery:
    """Return a gallery of 60 photos of 20 items, of which one is a copy of another, with draws."""
    gallery, vectors = Gallery.create(path, dim=DIM, embedding_id="e"), unit(60, 2)
    vectors[17] = vectors[41]
    ids = shuffled([f"p{number}" for number in range(60)])
    metadata = [{CONTENT: "twice" if row in (17, 41) else photo_id} for row, photo_id in enumerate(ids)]
    gallery.add(ids, [f"i{row % 20}" for row in range(60)], vectors, metadata=metadata)
    return gallery


def assert_same(first: AllDraws, second: AllDraws) -> None:
    """Compare draws to the last bit."""
    assert first.sources.keys() == second.sources.keys()
    for source, draws in first.sources.items():
        for name, values in draws.arrays().items():
            np.testing.assert_array_equal(values, second.sources[source].arrays()[name], err_msg=f"{source} {name}")


def windows_of(gallery: Gallery) -> PartVectors:
    """Return the vectors of two windows of some photos."""
    ids = np.array([photo_id for photo_id, *_ in gallery.photos()])[3:40:3]
    return PartVectors(ids, unit(2 * len(ids), 9).reshape(-1, 2, DIM))


def folds_of(gallery: Gallery) -> FoldVectors:
    """Return the vectors of some photos by two fold models."""
    ids = np.array([photo_id for photo_id, *_ in gallery.photos()])[1:50]
    return FoldVectors("key", ids, unit(2 * len(ids), 10).reshape(-1, 2, DIM).astype(np.float16))


def changed(draws: AllDraws, change: Callable[[str, Draws], Draws]) -> AllDraws:
    """Return draws, each source changed."""
    return replace(draws, sources={name: change(name, sample) for name, sample in draws.sources.items()})


@pytest.mark.parametrize("fields", [(), LATER], ids=["the later program", "the first program"])
def test_draws_of_version_0_2_0_name_the_same_photos(tmp_path: Path, fields: Collection[str]) -> None:
    with some_photos(tmp_path / "g") as gallery:
        made = draws_of(gallery, fitted=["i3"])
        own = made.sources[OWN]
        gone = str(own.nearest[~own.is_copied][0])
        assert own.is_copied.sum() == 2
        gallery.keep({Kept.DRAWS: pack_draws_020(made, gallery, left_out=fields)}, "measure")

        def read_all() -> AllDraws:
            read = read_draws(gallery)
            assert read is not None
            assert (read.model, read.fitted, read.version, read.mark) == (made.model, made.fitted, 1, made.mark)
            assert read.has_rivals == (not fields)  # a measurement makes draws without them anew
            rivals = made.sources
            return changed(read, lambda n, each: replace(each, rivals=rivals[n].rivals, without=rivals[n].without))

        assert_same(read_all(), made)
        assert gallery.snapshot().changes_since(made.mark) == 0
        gallery.remove(photo_ids=[gone])
        gallery.rebuild(purge=True)
        left = changed(made, lambda _, each: replace(each, nearest=np.where(each.nearest == gone, "", each.nearest)))
        assert_same(read_all(), left)


def test_vectors_of_version_0_2_0_are_those_of_the_same_photos_after_updates_and_a_rebuild(tmp_path: Path) -> None:
    """Version 0.2.0 kept the old and the new numbers of photos that it had updated."""
    with some_photos(tmp_path / "g") as gallery:
        windows, folds = windows_of(gallery), folds_of(gallery)
        moved, gone = windows.ids[[1, 4]], str(windows.ids[2])
        old = seqs_of(gallery, moved)
        contents = {
            Kept.WINDOWS: pack_vectors_020(gallery, windows.ids, windows.vectors),
            Kept.FOLDS: pack_vectors_020(gallery, folds.ids, folds.vectors, key=np.array("key")),
        }
        stored = [photo for photo in (gallery.photo(photo_id) for photo_id in moved.tolist()) if photo is not None]
        gallery.update(moved.tolist(), [item for _, item, _ in stored], [values | {"n": 1} for *_, values in stored])
        moves = {"old": old, "new": seqs_of(gallery, moved)}
        assert not set(moves["old"]) & set(moves["new"])
        gallery.keep({**contents, MOVES: pack_arrays(moves)}, "as before")
        for purge in (False, True):
            if purge:
                gallery.remove(photo_ids=[gone])
                gallery.rebuild(purge=True)
            left = [~np.isin(vectors.ids, [gone] if purge else []) for vectors in (windows, folds)]
            read, vectors = read_parts(gallery, Kept.WINDOWS), read_folds(gallery, "key")
            assert read is not None
            assert vectors is not None
            assert read.ids.tolist() == windows.ids[left[0]].tolist()
            assert vectors.ids.tolist() == folds.ids[left[1]].tolist()
            np.testing.assert_array_equal(read.vectors, windows.vectors[left[0]])
            np.testing.assert_array_equal(vectors.vectors, folds.vectors[left[1]])
        assert read_folds(gallery, "another key") is None


@pytest.mark.parametrize("change", [{"ids": ["b"]}, {"vectors": np.eye(3, 2)}, {"groups": ["g"]}], ids=str)
def test_labelled_queries_that_do_not_fit_together_are_damaged(tmp_path: Path, change: dict[str, Any]) -> None:
    arrays = {"vectors": np.eye(3, DIM, dtype=np.float32), "ids": ["b", "a", "c"], "items": ["x", "", "y"]}
    with shop(tmp_path / "g", LINE) as gallery:
        gallery.keep({Kept.QUERIES: pack_arrays({**arrays, **change})}, "label")
        with pytest.raises(GalleryCorrupt, match=r"the labelled queries of .* do not fit together"):
            read_queries(gallery)


@pytest.mark.parametrize(
    "vectors",
    [unit(5), unit(5)[:, None, :3], unit(5)[:, None][:, :0], np.full((5, 1, DIM), "x"), np.full((5, 1, DIM), np.nan)],
)
def test_windows_of_another_shape_or_kind_are_made_anew(tmp_path: Path, vectors: np.ndarray[Any, Any]) -> None:
    with shop(tmp_path / "g", LINE) as gallery:
        ids = [photo_id for photo_id, *_ in gallery.photos()][:5]
        gallery.keep({Kept.WINDOWS: pack_arrays({"ids": ids, "contents": [""] * 5, "vectors": vectors})}, "windows")
        assert read_parts(gallery, Kept.WINDOWS) is None


@pytest.mark.parametrize("in_file", [False, True], ids=["in the database", "in a file"])
def test_vectors_of_version_0_2_0_keep_their_photos_when_all_are_updated_and_rewritten(
    tmp_path: Path, *, in_file: bool
) -> None:
    with some_photos(tmp_path / "g") as gallery:
        windows, folds = windows_of(gallery), folds_of(gallery)
        packed = pack_vectors_020(gallery, folds.ids, folds.vectors, key=np.array("key"))
        if in_file:
            (gallery.path / FOLDS_FILE).write_bytes(packed)
        kept = {FOLDS_HASH: sha256(gallery.path / FOLDS_FILE).encode()} if in_file else {Kept.FOLDS: packed}
        gallery.keep({Kept.WINDOWS: pack_vectors_020(gallery, windows.ids, windows.vectors), **kept}, "as before")
    for change in ("update", "rebuild"):
        with Gallery.open(tmp_path / "g") as gallery:
            photos = gallery.photos()
            if change == "update":
                gallery.update([photo for photo, *_ in photos], ["x"] * 60, [values for *_, values in photos])
            else:
                gallery.rebuild(purge=True)
            read, vectors = read_parts(gallery, Kept.WINDOWS), read_folds(gallery, "key")
            assert read is not None
            assert vectors is not None
            assert (read.ids.tolist(), vectors.ids.tolist()) == (windows.ids.tolist(), folds.ids.tolist())
            np.testing.assert_array_equal(read.vectors, windows.vectors)
            np.testing.assert_array_equal(vectors.vectors, folds.vectors)
            assert gallery.verify() == []
    assert not (tmp_path / "g" / FOLDS_FILE).exists()


def test_the_file_of_fold_vectors_of_version_0_2_0_is_read_unless_it_was_changed(tmp_path: Path) -> None:
    with some_photos(tmp_path / "g") as gallery:
        folds, file = folds_of(gallery), gallery.path / FOLDS_FILE
        file.write_bytes(pack_vectors_020(gallery, folds.ids, folds.vectors, key=np.array("key")))
        gallery.keep({FOLDS_HASH: sha256(file).encode()}, "keep fold vectors")
        read = read_folds(gallery, "key")
        assert read is not None
        assert read.ids.tolist() == folds.ids.tolist()
        np.testing.assert_array_equal(read.vectors, folds.vectors)
        export_gallery(gallery, tmp_path / "copy")
        with Gallery.open(tmp_path / "copy") as copy:
            copied = read_folds(copy, "key")
            assert copied is not None
            assert copied.ids.tolist() == folds.ids.tolist()
        file.write_bytes(pack_vectors_020(gallery, folds.ids, folds.vectors[::-1], key=np.array("key")))
        with pytest.raises(GalleryCorrupt, match=r"folds\.npz has changed since it was written"):
            read_folds(gallery, "key")
        file.unlink()
        with pytest.raises(GalleryCorrupt, match=r"folds\.npz is missing"):
            read_folds(gallery, "key")


def test_vectors_follow_their_photos_through_updates_a_rebuild_and_a_backup(tmp_path: Path) -> None:
    with some_photos(tmp_path / "g") as gallery:
        windows, folds = windows_of(gallery), folds_of(gallery)
        now = gallery.snapshot()
        gallery.keep({Kept.WINDOWS: pack_parts(windows, now), Kept.FOLDS: pack_folds(folds, now)}, "keep")
        before = Drawing(now, NEAREST_PHOTO).windows(windows)
        renamed = [photo for photo in gallery.photos() if photo[0] in windows.ids[::2]]
        gallery.update([p[0] for p in renamed], [p[1] for p in renamed], [p[2] | {"n": 1} for p in renamed])
        gallery.rebuild(purge=True)
        export_gallery(gallery, tmp_path / "copy")
        with Gallery.open(tmp_path / "copy") as copy:
            for place in (gallery, copy):
                read, vectors = read_parts(place, Kept.WINDOWS), read_folds(place, "key")
                assert read is not None
                assert vectors is not None
                assert (read.ids.tolist(), vectors.ids.tolist()) == (windows.ids.tolist(), folds.ids.tolist())
                after = Drawing(place.snapshot(), NEAREST_PHOTO).windows(read)
                for name, values in before.arrays().items():
                    np.testing.assert_array_equal(values, after.arrays()[name], err_msg=name)


@pytest.mark.parametrize("is_old", [False, True], ids=["by id", "by number, of version 0.2.0"])
def test_vectors_of_photos_that_were_removed_or_show_something_else_are_left_out(
    tmp_path: Path, *, is_old: bool
) -> None:
    with some_photos(tmp_path / "g") as gallery:
        windows, folds, now = windows_of(gallery), folds_of(gallery), gallery.snapshot()
        contents = {Kept.WINDOWS: pack_parts(windows, now), Kept.FOLDS: pack_folds(folds, now)}
        if is_old:
            contents[Kept.WINDOWS] = pack_vectors_020(gallery, windows.ids, windows.vectors)
            contents[Kept.FOLDS] = pack_vectors_020(gallery, folds.ids, folds.vectors, key=np.array("key"))
        gallery.keep({**contents}, "keep")
        gone, new, same = (str(windows.ids[place]) for place in (0, 3, 5))
        gallery.remove(photo_ids=[gone])
        for photo_id, content in ((new, "another file"), (same, same)):
            gallery.add([photo_id], ["i3"], unit(1, 5), metadata=[{CONTENT: content}], upsert=True)
        read, vectors = read_parts(gallery, Kept.WINDOWS), read_folds(gallery, "key")
        assert read is not None
        assert vectors is not None
        assert set(windows.ids) - set(read.ids) == {gone, new}
        assert set(folds.ids) - set(vectors.ids) == {gone, new} & set(folds.ids)
        kept = np.isin(windows.ids, read.ids)
        np.testing.assert_array_equal(read.vectors, windows.vectors[kept])
