"""A gallery divided into shards answers like one gallery with the same history, and its changes are atomic."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index import features, segments, upkeep
from index.ann.comparison import compare_kinds
from index.ann.kinds import choose_kind
from index.ann.recall import Probe
from index.contents import POINT
from index.distance import PLAIN, DistanceForm
from index.errors import GalleryCorrupt, GalleryError, InvalidParameter
from index.gallery import Gallery
from index.kept_draws import KeptDraws, update_draws
from index.location import open_or_create
from index.rebuild import build_index
from index.shards import shard_of
from index.transfer import export_photos, import_photos
from index.verified import VerifiedDistance

from .fake_verifier import FakeVerifier, fill
from .test_equivalence import Killed
from .test_verified_draws import probes_of
from .test_verified_search import Lifted
from .vectors import DIM, features_of, unit, with_features

pytestmark = pytest.mark.usefixtures("few_own_queries")

WITHIN = 0.6


def photos_of(count: int, seed: int, items: int = 30) -> tuple[list[str], list[str], np.ndarray, list[dict[str, str]]]:
    """Return ids, items, vectors and metadata of photos, of which some have ids of earlier ones."""
    generator = np.random.default_rng(seed)
    ids = [f"p{number}" for number in generator.permutation(150)[:count].tolist()]
    labels = [f"i{number}" for number in generator.integers(0, items, count).tolist()]
    brands = [{"brand": "ab"[number]} for number in generator.integers(0, 2, count).tolist()]
    return ids, labels, unit(count, seed), brands


def add(gallery: Gallery, seed: int) -> None:
    count = 1 + seed % 40
    ids, items, vectors, metadata = photos_of(count, seed)
    gallery.add(ids, items, vectors, metadata=metadata, upsert=True)


def remove(gallery: Gallery, seed: int) -> None:
    if seed % 3:
        gallery.remove(photo_ids=photos_of(20, seed)[0])
    else:
        gallery.remove(item_ids=[f"i{seed % 30}"])


def move(gallery: Gallery, seed: int) -> None:
    """Give some photos another item."""
    ids = sorted(gallery.photo_ids())[seed % 5 :: 7]
    gallery.update(ids, [f"i{seed % 30}"] * len(ids), [{"brand": "b"}] * len(ids))


def keep(gallery: Gallery, seed: int) -> None:
    gallery.keep({POINT: str(seed).encode()}, "calibrate")


def rebuild(gallery: Gallery, seed: int) -> None:
    gallery.rebuild(kind=("flat", "fp16", "hnsw")[seed % 3], probe=Probe(WITHIN), threads=1)


def divide(gallery: Gallery, seed: int) -> None:
    """Change the number of shards of a divided gallery."""
    if gallery.shards > 1:
        gallery.rebuild(shards=(2, 3, 5)[seed % 3], threads=1)


CHANGES = (add, add, remove, move, keep, rebuild, divide)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Gallery, Gallery]]:
    """Return two empty galleries, one of them divided into three shards."""
    columns = {"brand": "text"}
    with (
        Gallery.create(tmp_path / "one", dim=DIM, embedding_id="e", columns=columns) as one,
        Gallery.create(tmp_path / "divided", dim=DIM, embedding_id="e", columns=columns, shards=3) as divided,
    ):
        yield one, divided


def assert_alike(one: Gallery, divided: Gallery, draws: list[KeptDraws]) -> None:
    """Compare answers and contents, and the draws of both."""
    queries = unit(9, 77)
    for form in (PLAIN, Lifted()):
        for where in (None, "brand = 'a'"):
            options = {"where": where, "distance_form": form}
            assert one.search(queries, 6, **options) == divided.search(queries, 6, **options)
            for some, other in zip(
                *(g.search(queries, 6, within=WITHIN, **options) for g in (one, divided)), strict=True
            ):
                assert some[:1] == other[:1]
                assert [n for n in some if n.distance <= WITHIN] == [n for n in other if n.distance <= WITHIN]
    for left, right in zip(one.contents(), divided.contents(), strict=True):
        np.testing.assert_array_equal(left, right)
    assert one.photos() == divided.photos()
    assert (len(one), one.items, one.fingerprint()) == (len(divided), divided.items, divided.fingerprint())
    assert one.kept(POINT) == divided.kept(POINT)
    assert draws[0].sources.keys() == draws[1].sources.keys()
    for source, some in draws[0].sources.items():
        for name, values in some.arrays().items():
            np.testing.assert_array_equal(values, draws[1].sources[source].arrays()[name], err_msg=f"{source} {name}")


def drawn(gallery: Gallery, known: KeptDraws | None, *, form: DistanceForm = PLAIN, photos: int = 1) -> KeptDraws:
    probes = {"probe": probes_of(12, 8, 30)}
    return update_draws(gallery, known, model="m", distance_form=form, probes=probes, photos_per_query=photos)


@settings(max_examples=8)
@given(changes=st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 2**20)), min_size=2, max_size=8))
def test_any_history_answers_as_one_gallery(
    changes: list[tuple[Callable[[Gallery, int], None], int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pair")
    columns = {"brand": "text"}
    with (
        Gallery.create(folder / "one", dim=DIM, embedding_id="e", columns=columns) as one,
        Gallery.create(folder / "divided", dim=DIM, embedding_id="e", columns=columns, shards=3) as divided,
    ):
        middle = len(changes) // 2
        made: list[KeptDraws] = []
        for some in ([(add, 39)], changes[:middle], changes[middle:]):
            for gallery, (change, seed) in itertools.product((one, divided), some):
                change(gallery, seed)
            made = [drawn(gallery, known) for gallery, known in zip((one, divided), made or [None, None], strict=True)]
        assert_alike(one, divided, made)
        assert divided.verify() == []
        pairs = [drawn(gallery, None, photos=2).sources["own"].arrays() for gallery in (one, divided)]
        for name, values in pairs[0].items():
            np.testing.assert_array_equal(values, pairs[1][name], err_msg=name)
    shutil.rmtree(folder)


def test_an_item_is_in_one_shard_and_each_shard_in_its_folder(pair: tuple[Gallery, Gallery]) -> None:
    _, divided = pair
    for seed in range(5):
        add(divided, seed + 30)
    now = divided.snapshot()
    assert len(now.shards) == 3
    for number, shard in enumerate(now.shards):
        items = {shard.photo(position)[1] for position in np.flatnonzero(shard.live)}
        assert items
        assert {shard_of(item, 3) for item in items} == {number}
        folder = divided.path / "segments" / f"{number:02}"
        assert {file.stem for file in folder.iterdir()} == {segment.name[3:] for segment in shard.segments}
    divided.rebuild(kind="fp16")
    assert sorted(folder.name for folder in (divided.path / "indexes").iterdir()) == ["00", "01", "02"]
    assert (divided.index()["kind"], divided.index()["shards"]) == ("fp16", 3)
    divided.rebuild(shards=1)
    assert not any(path.is_dir() for path in (divided.path / "segments").iterdir())
    assert divided.index()["shards"] == 1
    assert divided.facts()["format"] == "2"


@pytest.mark.parametrize(("action", "step"), [("add", 2), ("rebuild", 5), ("divide", 7)])
def test_killed_between_the_files_of_two_shards_nothing_has_changed(tmp_path: Path, action: str, step: int) -> None:
    """End a change at each moment at which it writes to the disk, from the first file to the last."""
    with Gallery.create(tmp_path / "before", dim=DIM, embedding_id="e", columns={"brand": "text"}, shards=3) as gallery:
        for seed in (19, 59):
            add(gallery, seed)
        gallery.remove(photo_ids=["p3", "p4"])
        before, version = gallery.contents(), gallery.version
    killed = 0
    for moment in itertools.count(0, step):
        path, ticks = tmp_path / f"g{moment}", itertools.count()
        shutil.copytree(tmp_path / "before", path)

        def dying(
            work: Callable[..., object], moment: int = moment, ticks: Iterator[int] = ticks
        ) -> Callable[..., object]:
            def call(*args: object, **more: object) -> object:
                if next(ticks) == moment:
                    raise Killed
                return work(*args, **more)

            return call

        gallery, done = Gallery.open(path), False
        with (
            patch.object(os, "fsync", dying(os.fsync)),
            patch.object(Path, "replace", dying(Path.replace)),
            patch.object(segments, "sha256", dying(segments.sha256)),
            contextlib.suppress(Killed),
        ):
            if action == "add":
                add(gallery, 99)
            else:
                gallery.rebuild(kind="fp16", shards=5 if action == "divide" else None, threads=1)
            done = True
        gallery.close()
        with Gallery.open(path) as again:
            assert again.verify() == []
            if not done:
                killed += 1
                assert again.version == version
                for left, right in zip(before, again.contents(), strict=True):
                    np.testing.assert_array_equal(left, right)
            assert again.shards == (5 if done and action == "divide" else 3)
            again.add(["after"], ["after"], unit(1, 3))  # the next writer removes the leftovers
            named = {segment.name for segment in again._store.segments()}
            left_over = {file.relative_to(path / "segments").with_suffix("").as_posix() for file in _files(path)}
            assert left_over == named
        shutil.rmtree(path)
        if done:
            break
    assert killed >= 5


def _dying(work: Callable[..., object], *, moment: int, ticks: Iterator[int]) -> Callable[..., object]:
    """Return a function that works until a moment, which `ticks` counts, and then ends the process."""

    def call(*args: object, **more: object) -> object:
        if next(ticks) == moment:
            raise Killed
        return work(*args, **more)

    return call


def _files(path: Path) -> list[Path]:
    return [file for file in (path / "segments").rglob("*") if file.is_file()]


def test_a_reader_sees_each_version_while_the_gallery_is_divided(pair: tuple[Gallery, Gallery]) -> None:
    one, _ = pair
    add(one, 39)
    with Gallery.open(one.path, read_only=True) as reader:
        first = reader.search(unit(5), 4)
        for shards in (4, 2, 1):
            done = one.rebuild(shards=shards, kind="fp16", threads=1)
            assert (done.shards, reader.shards) == (shards, shards)
            assert reader.search(unit(5), 4) == first
            assert one.changes(1)[0].action.startswith(f"rebuild as fp16 in {'one part' if shards == 1 else shards}")
        assert reader.verify() == []


def test_a_verified_search_and_its_draws_are_those_of_one_gallery(tmp_path: Path) -> None:
    form = VerifiedDistance(Lifted(), FakeVerifier())
    made, answers = [], []
    for shards in (1, 4):
        columns = dict.fromkeys(["brand", "item", "name"], "text")
        ids = {"embedding_id": "e", "features_key": "f"}
        with Gallery.create(tmp_path / f"g{shards}", dim=DIM, **ids, columns=columns, shards=shards) as gallery:
            fill(gallery, range(70), 25, 1)
            first = drawn(gallery, None, form=form)
            fill(gallery, range(60, 80), 25, 2, upsert=True)
            gallery.remove(photo_ids=["p3", "p7"])
            made.append(drawn(gallery, first, form=form).sources)
            probes = probes_of(9, 8, 30)
            options = {"distance_form": form, "features": probes.features}
            answers.append([gallery.search(probes.vectors, 5, where=w, **options) for w in (None, "brand = 'a'")])
            assert gallery.verify() == []
    assert answers[0] == answers[1]
    for source, draws in made[0].items():
        for name, values in draws.arrays().items():
            np.testing.assert_array_equal(values, made[1][source].arrays()[name], err_msg=f"{source} {name}")


def test_features_are_limited_per_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "MOST_PHOTOS", 41)
    new = unit(2, 5)
    with with_features(tmp_path / "g") as gallery:
        with pytest.raises(GalleryError, match=r"at most 41 photos, .*--shards"):
            gallery.add(["a", "b"], ["x", "x"], new, features=features_of(new))
        gallery.rebuild(shards=2)
        gallery.add(["a", "b"], ["x", "x"], new, features=features_of(new))
        assert [photo.features for some in gallery.walk(9, features=True) for photo in some][-2:] == features_of(new)
        with pytest.raises(GalleryError, match="holds at most 41 photos, about"):
            gallery.rebuild(shards=1)
        assert (gallery.shards, gallery.features_key, gallery.verify()) == (2, "f", [])


def test_verify_finds_a_photo_in_the_shard_of_another_item(pair: tuple[Gallery, Gallery]) -> None:
    _, divided = pair
    add(divided, 39)
    (segment, *_) = [segment for segment in divided._store.segments() if segment.shard == 0]
    for ending in (".npy", ".rows"):
        shutil.move(divided.path / "segments" / f"{segment.name}{ending}", divided.path / "segments" / "01")
    divided._store._connection.execute(
        "UPDATE segments SET name = ? WHERE id = ?", (f"01{segment.name[2:]}", segment.id)
    )
    with Gallery.open(divided.path, read_only=True) as again:
        assert "belongs to shard 0" in again.verify()[0]
    divided._store.set_fact("shards", 2)
    with Gallery.open(divided.path, read_only=True) as again, pytest.raises(GalleryCorrupt, match="segments hold"):
        again.search(unit(1), 1)


def test_a_damaged_name_of_a_file_is_reported(pair: tuple[Gallery, Gallery]) -> None:
    _, divided = pair
    add(divided, 39)
    divided._store._connection.execute("UPDATE segments SET name = replace(name, '00/', '0p/')")
    with Gallery.open(divided.path, read_only=True) as again:
        assert "segment 0p/" in again.verify()[0]
        with pytest.raises(GalleryCorrupt, match="cannot be read"):
            again.search(unit(1), 1)


def test_the_number_of_shards_is_checked(tmp_path: Path) -> None:
    options = {"dim": DIM, "embedding_id": "e"}
    for shards in (0, 65):
        with pytest.raises(InvalidParameter, match="shards must be from 1 to 64"):
            Gallery.create(tmp_path / "g", **options, shards=shards)
    new = open_or_create(tmp_path / "g", **options, shards=2)
    with new as gallery, pytest.raises(InvalidParameter, match="shards must be from 1 to 64"):
        gallery.rebuild(shards=0)
    open_or_create(tmp_path / "g", **options).close()
    with pytest.raises(GalleryError, match=r"has 2 shards, not 3. .*gallery rebuild .* --shards 3"):
        open_or_create(tmp_path / "g", **options, shards=3)
    with pytest.raises(GalleryError, match="Milvus divides"):
        open_or_create("milvus+http://localhost:1/name", **options, shards=3)


def test_a_divided_gallery_is_exported_and_imported(pair: tuple[Gallery, Gallery], tmp_path: Path) -> None:
    _, divided = pair
    add(divided, 39)
    keep(divided, 1)
    export_photos(divided, tmp_path / "g.parquet")
    for shards in (None, 2):
        import_photos(tmp_path / "g.parquet", tmp_path / f"copy-{shards}", shards=shards)
        with Gallery.open(tmp_path / f"copy-{shards}", read_only=True) as copy:
            assert copy.shards == (shards or 1)
            assert copy.search(unit(5), 4) == divided.search(unit(5), 4)
            assert copy.kept(POINT) == b"1"


def test_every_kind_of_index_agrees_in_shards(pair: tuple[Gallery, Gallery]) -> None:
    _, divided = pair
    add(divided, 39)
    divided.remove(item_ids=[item for item in divided.item_ids() if shard_of(item, 3) == 1])  # leaves a shard empty
    found = dict(compare_kinds(divided, Probe(WITHIN, PLAIN, unit(6, 4))))
    assert not any(found.values())
    assert len(found) == 6
    divided.rebuild(kind="ivf", probe=Probe(WITHIN))
    assert divided.index()["recall"]["value"] == 1.0
    assert divided.rebuild_if_due() is None


def test_a_rebuild_of_one_shard_after_the_other_takes_less_memory() -> None:
    one, divided = (choose_kind(5_000_000, 128, shards=shards) for shards in (1, 8))
    assert one.kind == divided.kind == "ivf"
    assert divided.rebuild_bytes < 0.75 * one.rebuild_bytes
    limit = divided.rebuild_bytes
    assert choose_kind(5_000_000, 128, max_memory=limit, shards=8).kind == "ivf"
    assert choose_kind(5_000_000, 128, max_memory=limit).kind == "ivfpq"


def test_a_rebuild_that_one_shard_refuses_changes_nothing(
    pair: tuple[Gallery, Gallery], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, divided = pair
    add(divided, 39)
    divided.rebuild(kind="fp16")
    divided.remove(photo_ids=sorted(divided.photo_ids())[:9])
    answers = divided.search(unit(5), 4)

    def refusing(*args: Any, shard: str, **options: Any) -> object:
        if shard == "02/":
            raise GalleryError("the index finds too little")
        return build_index(*args, shard=shard, **options)

    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "build_index", refusing)
        with pytest.raises(GalleryError, match="finds too little"):
            divided.rebuild(kind="hnsw", probe=Probe(WITHIN))
    assert [shard.kind for shard in divided.snapshot().shards] == ["fp16"] * 3
    assert divided.search(unit(5), 4) == answers
    assert (divided.facts()["kind"], divided.verify()) == ("fp16", [])
    with Gallery.open(divided.path, read_only=True) as reader:
        assert reader.search(unit(5), 4) == answers
        layout = reader.snapshot().layout
        divided.rebuild(kind="hnsw", probe=Probe(WITHIN))
        assert [shard.kind for shard in reader.snapshot().shards] == ["hnsw"] * 3
        assert reader.snapshot().layout == layout + 1
        assert reader.search(unit(5), 4) == answers
    assert len(_files(divided.path)) == 2 * len(divided._store.segments())  # leftovers are gone
