"""Files of a change are synced, renamed, and their folder synced before the change is committed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from index.gallery import Gallery
from index.upkeep.transfer import export_gallery

from .vectors import DIM, filled, unit, with_features

Event = tuple[str, str]  # sync, rename or commit; of what
COMMIT: Event = ("commit", "")


class Watch:
    """The order in which files are synced and renamed, and transactions committed."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.sizes: dict[str, int] = {}

    def sync(self, handle: int) -> None:
        name = Path(f"/proc/self/fd/{handle}").resolve().name
        self.events.append(("sync", name))
        self.sizes[name] = os.fstat(handle).st_size

    def rename(self, path: Path, target: Path) -> None:
        self.events.append(("rename", Path(target).name))
        self.sizes[Path(target).name] = self.sizes.get(path.name, -1)

    def statement(self, text: str) -> None:
        if text == "COMMIT":
            self.events.append(COMMIT)

    def place(self, *event: str) -> int:
        assert event in self.events, f"{event} is not among {self.events}"
        return self.events.index(event)  # type: ignore[arg-type]

    def check_file(self, path: Path, aside: str) -> None:
        """Assert that a file was synced with all that it holds, renamed, and its folder synced after that."""
        assert self.sizes[path.name] == path.stat().st_size
        renamed = self.place("rename", path.name)
        assert self.place("sync", aside) < renamed
        after = self.events[renamed:]
        assert ("sync", path.parent.name) in after[: after.index(COMMIT) if COMMIT in after else None]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    watch, fsync, replace = Watch(), os.fsync, Path.replace

    def syncing(handle: int) -> None:
        watch.sync(handle)
        fsync(handle)

    def renaming(path: Path, target: Path) -> Path:
        watch.rename(path, target)
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(Path, "replace", renaming)
    return watch


def files(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    found = sorted(file for file in folder.iterdir() if file.suffix in endings)
    assert len(found) == len(endings)
    return found


def test_a_segment_is_on_the_disk_before_it_counts(tmp_path: Path, watch: Watch) -> None:
    gallery = Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e", features_key="f")
    watch.events.clear()
    gallery._database._connection.set_trace_callback(watch.statement)
    notes = [{"note": "x" * 10_000}] * 2
    gallery.add(["a", "b"], ["x", "y"], unit(2), metadata=notes, features=[b"f" * 10_000] * 2)
    for file in files(tmp_path / "g" / "segments", (".npy", ".rows", ".features")):
        watch.check_file(file, f"{file.name}.partial")


@pytest.mark.parametrize("kind", ["flat", "fp16"])
def test_a_merge_is_on_the_disk_before_it_counts(tmp_path: Path, watch: Watch, kind: str) -> None:
    gallery = with_features(tmp_path / "g", count=300)
    gallery.remove(photo_ids=["p0"])
    watch.events.clear()
    gallery._database._connection.set_trace_callback(watch.statement)
    gallery.rebuild(kind=kind)
    made = files(tmp_path / "g" / "segments", (".npy", ".rows", ".features"))
    if kind != "flat":
        made += files(tmp_path / "g" / "indexes", (".faiss", ".npy"))
    for file in made:
        watch.check_file(file, f"{file.name}.partial")


def test_small_segments_written_as_one_are_on_the_disk_before_they_count(tmp_path: Path, watch: Watch) -> None:
    gallery = Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e")
    for i in range(15):
        gallery.add([f"p{i}"], [f"i{i}"], unit(1, i))
    before = {file.name for file in (tmp_path / "g" / "segments").iterdir()}
    gallery.add(["p15"], ["i15"], unit(1, 15))
    for file in files(tmp_path / "g" / "segments", (".npy", ".rows")):
        assert file.name not in before
        assert watch.sizes[file.name] == file.stat().st_size
        assert watch.place("sync", f"{file.name}.partial") < watch.place("rename", file.name)


def test_a_new_gallery_is_on_the_disk(tmp_path: Path, watch: Watch) -> None:
    Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e")
    assert ("sync", "g") in watch.events[watch.place("rename", "gallery.sqlite") :]


def test_a_table_is_on_the_disk_before_it_has_its_name(tmp_path: Path, watch: Watch) -> None:
    gallery = filled(tmp_path / "g")
    watch.events.clear()
    export_gallery(gallery, tmp_path / "g.csv")
    watch.check_file(tmp_path / "g.csv", "g.csv")


@pytest.mark.usefixtures("few_own_queries")
def test_a_backup_is_on_the_disk_before_it_has_its_name(tmp_path: Path, watch: Watch) -> None:
    gallery = with_features(tmp_path / "g", count=300)
    gallery.rebuild(kind="fp16")
    watch.events.clear()
    export_gallery(gallery, tmp_path / "backup")
    renamed = watch.place("rename", "backup")
    made = [path for path in (tmp_path / "backup").rglob("*") if path.is_file()]
    assert len(made) == 6
    for path in made:
        assert watch.sizes[path.name] == path.stat().st_size
        assert watch.place("sync", path.name) < renamed
    for name in ("segments", "indexes", "gallery"):
        assert watch.place("sync", name) < renamed
    assert ("sync", tmp_path.name) in watch.events[renamed:]
