from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle, require_match
from retrieval.catalogue.check import check_catalogue
from retrieval.catalogue.photos import Photo
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import BundleMismatch, GalleryLocked
from retrieval.indexing import pipeline
from retrieval.indexing.pipeline import index_catalogue, plan_catalogue
from retrieval.indexing.worker import Batch
from retrieval.retriever import Retriever

from ...world import draw, encode, make_bundle


def test_a_photo_with_too_much_metadata_is_refused_and_the_others_are_indexed(world: Path, tmp_path: Path) -> None:
    photos = read_catalogue(world / "photos")[:3]
    rows = [photos[0], replace(photos[1], metadata={"text": "a" * 70_000}), replace(photos[2], metadata={"n": nan})]
    report = index_catalogue(Bundle.open(world / "bundle"), rows, tmp_path / "gallery", progress=False)
    assert (report.added, [photo_id for photo_id, _ in report.refused]) == (1, [rows[1].photo_id, rows[2].photo_id])
    assert "65,536 bytes" in report.refused[0][1]
    assert all(len(reason) < 1000 for _, reason in report.refused)
    with Gallery.open(tmp_path / "gallery") as gallery:
        assert [photo_id for photo_id, _, _ in gallery.photos()] == [photos[0].photo_id]


def test_a_file_that_is_no_photo_is_refused_with_the_remedy_by_index_and_by_check(world: Path, tmp_path: Path) -> None:
    (tmp_path / "scan.jpg").write_bytes(b"%PDF-1.4\n" + bytes(99))
    photos = [replace(read_catalogue(world / "photos")[0], path=tmp_path / "scan.jpg")]
    for listed in (
        index_catalogue(Bundle.open(world / "bundle"), photos, tmp_path / "gallery", progress=False).refused,
        check_catalogue(photos, progress=False).unreadable,
    ):
        assert [reason.partition(". ")[2] for _, reason in listed] == ["Convert it to JPEG or PNG"]


def test_a_photo_with_too_long_an_id_is_refused_and_the_others_are_indexed(world: Path, tmp_path: Path) -> None:
    first, second, third, _ = read_catalogue(world / "photos")[:4]
    rows = [
        first,
        replace(second, item_id="x" * 501),
        replace(third, photo_id="y" * 501),
        replace(third, item_id="z" * 500),
    ]
    report = index_catalogue(Bundle.open(world / "bundle"), rows, tmp_path / "gallery", progress=False)
    assert (report.added, {len(reason) < 1000 for _, reason in report.refused}) == (2, {True})
    assert {photo_id for photo_id, _ in report.refused} == {second.photo_id, "y" * 501}
    assert all("at most 500 characters" in reason for _, reason in report.refused)


def test_ids_that_are_not_unicode_and_links_to_nowhere_are_refused_and_the_others_are_indexed(
    world: Path, tmp_path: Path
) -> None:
    first, second, third = read_catalogue(world / "photos")[:3]
    folder = tmp_path / "photos" / "item"
    folder.mkdir(parents=True)
    (folder / "a.png").write_bytes(first.read())
    (folder / os.fsdecode(b"b\xff.png")).write_bytes(second.read())
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "loop").symlink_to("loop")
    rows = [*read_catalogue(tmp_path / "photos"), replace(third, item_id="\ud800")]
    report = index_catalogue(Bundle.open(world / "bundle"), rows, tmp_path / "gallery", progress=False)
    reasons = dict(report.refused)
    assert (report.added, len(reasons)) == (1, 3)
    remedy = "Rename the file or the id"
    assert reasons["item/b\udcff.png"] == f"photo_id must be valid Unicode, got 'item/b\\udcff.png'. {remedy}"
    assert reasons[third.photo_id] == f"item_id must be valid Unicode, got '\\ud800'. {remedy}"
    assert "loop.png cannot be read" in reasons["item/loop.png"]


def test_a_new_gallery_that_refuses_every_photo_is_not_left_behind(world: Path, tmp_path: Path) -> None:
    photo = replace(read_catalogue(world / "photos")[0], metadata={"n": nan})
    report = index_catalogue(Bundle.open(world / "bundle"), [photo], tmp_path / "gallery", progress=False)
    assert [photo_id for photo_id, _ in report.refused] == [photo.photo_id]
    assert not (tmp_path / "gallery").exists()


def test_no_other_process_writes_once_the_plan_is_being_made(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, photos, refused = Bundle.open(world / "bundle"), read_catalogue(world / "photos"), list[str]()
    index_catalogue(bundle, photos[:3], tmp_path / "gallery", progress=False)
    plan = pipeline._plan

    def planned(*arguments: Any) -> Any:
        with Gallery.open(tmp_path / "gallery") as other, pytest.raises(GalleryLocked) as error:
            other.remove(photo_ids=[photos[0].photo_id])
        refused.append(str(error.value))
        return plan(*arguments)

    monkeypatch.setattr(pipeline, "_plan", planned)
    assert index_catalogue(bundle, photos[:4], tmp_path / "gallery", progress=False).skipped == 3
    assert len(refused) == 1


def test_index_waits_for_another_process_that_writes_for_a_moment(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, photos = Bundle.open(world / "bundle"), read_catalogue(world / "photos")
    index_catalogue(bundle, photos[:3], tmp_path / "gallery", progress=False)
    with Gallery.open(tmp_path / "gallery") as other:
        other.lock()
        monkeypatch.setattr("index.folder.LOCK_S", -1.0)
        with pytest.raises(GalleryLocked, match=r"another process is writing to .*gallery"):
            index_catalogue(bundle, photos[:4], tmp_path / "gallery", progress=False)
        monkeypatch.undo()
        monkeypatch.setattr("index.folder.time.sleep", lambda _: other.close())
        assert index_catalogue(bundle, photos[:4], tmp_path / "gallery", progress=False).added == 1


def test_batches_without_photos_to_add_are_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """They carry progress and new metadata, and a million unchanged photos would all be held."""
    monkeypatch.setattr(pipeline, "WRITE_S", 0.0)
    photo = Photo("p", Path("p.jpg"), "i")
    same, new = Batch(unchanged=[photo]), Batch(photos=[photo])
    sizes = [
        (len(group.photos), len(group.unchanged)) for group in pipeline._grouped([same, same, new, same, new, same])
    ]
    assert sizes == [(0, 1), (0, 1), (1, 0), (0, 1), (1, 0), (0, 1), (0, 0)]


def test_batches_are_written_together_until_a_second_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 100.4, 101.0, 101.0, 101.5])
    monkeypatch.setattr(pipeline, "time", SimpleNamespace(monotonic=times.__next__))
    one = Batch(photos=[Photo("p", Path("p.jpg"), "i")])
    assert [len(group.photos) for group in pipeline._grouped([one, one, one])] == [2, 1]


def test_a_gallery_of_another_model_is_neither_indexed_nor_planned_nor_searched(world: Path, tmp_path: Path) -> None:
    bundle, photos = Bundle.open(world / "bundle"), read_catalogue(world / "photos")
    with Gallery.create(tmp_path / "g", dim=bundle.dim, embedding_id="another") as gallery:
        for refused in (
            lambda: plan_catalogue(bundle, photos, tmp_path / "g"),
            lambda: Retriever(bundle, gallery),
            lambda: require_match(bundle, gallery),
        ):
            with pytest.raises(BundleMismatch, match="made by another model"):
                refused()
    with pytest.raises(BundleMismatch, match="made by another model"):
        index_catalogue(bundle, photos, tmp_path / "g", progress=False)
    with Gallery.open(tmp_path / "g") as gallery:
        assert (len(gallery), gallery.version) == (0, 0)


def test_rows_that_name_pipes_devices_and_sockets_are_refused_at_once(tmp_path: Path) -> None:
    """A read of the pipe would wait, because it has no writer; a read of /dev/zero would never end."""
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "good.png").write_bytes(encode(draw(3, 0), "PNG"))
    os.mkfifo(photos / "pipe.png")
    (photos / "linked.png").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(photos / "socket.png"))
        names = ["good.png", "pipe.png", "linked.png", "/dev/zero", "socket.png"]
        (photos / "photos.csv").write_text("\n".join(["path,item_id", *(f"{name},x" for name in names)]))
        catalogue = read_catalogue(photos / "photos.csv")
        with ThreadPoolExecutor(1) as pool:
            indexing = pool.submit(index_catalogue, make_bundle(tmp_path), catalogue, tmp_path / "g", progress=False)
            try:
                report = indexing.result(timeout=60)
            except TimeoutError:
                os.close(os.open(photos / "pipe.png", os.O_RDWR | os.O_NONBLOCK))  # lets the thread go on
                pytest.fail("the pipe was waited for")
    assert report.added == 1
    assert sorted(photo_id for photo_id, _ in report.refused) == sorted(names[1:])
    assert {message.rpartition(": ")[2] for _, message in report.refused} == {"it is not a regular file"}
