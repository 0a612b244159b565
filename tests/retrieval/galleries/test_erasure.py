"""Erased photos leave nothing in the files of a gallery, and what cannot be reached is named."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from index.database import DATABASE, POINT
from index.files import load_arrays, pack_arrays
from index.gallery import Gallery
from index.location import open_gallery
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.errors import GalleryError
from retrieval.galleries.erasure import erase, forget
from retrieval.galleries.kept import Kept, read_parts
from retrieval.galleries.points import read_points
from retrieval.indexing.pipeline import index_catalogue
from retrieval.measuring.point import ESTIMATED, GALLERY, Basis, Point

from ...world import make_bundle, write_folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a gallery of 12 items with three photos each."""
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(12)))
    index_catalogue(make_bundle(tmp_path), photos, tmp_path / "shop", progress=False)
    return tmp_path / "shop"


def first_photo(place: Path) -> tuple[str, str, bytes]:
    """Return the first photo's id, item and thumbnail."""
    with open_gallery(place, read_only=True) as gallery:
        photo_id, item, _ = next(iter(gallery.photos()))
        return photo_id, item, gallery.thumbnail(photo_id) or b""


def files_with(place: Path, content: bytes) -> list[str]:
    return [path.name for path in place.rglob("*") if path.is_file() and content in path.read_bytes()]


def test_a_removed_item_leaves_no_thumbnail_and_after_a_rebuild_no_name(place: Path) -> None:
    _, item, thumbnail = first_photo(place)
    assert files_with(place, thumbnail[-64:]) == [DATABASE]
    done = CliRunner().invoke(group, ["gallery", "remove", str(place), "--item", item])
    assert "go with the next rebuild" in done.output
    assert files_with(place, thumbnail[-64:]) == []
    assert CliRunner().invoke(group, ["gallery", "rebuild", str(place)]).exit_code == 0
    assert files_with(place, f"{item}/".encode()) == []


def test_an_erased_item_is_searched_for_in_each_file_and_nothing_is_left(place: Path, tmp_path: Path) -> None:
    _, item, thumbnail = first_photo(place)
    report = tmp_path / "erased.json"
    done = CliRunner().invoke(group, ["gallery", "erase", str(place), "--item", item, "--report", str(report)])
    assert done.exit_code == 0, done.output
    told = json.loads(report.read_text())
    assert (told["items"], told["photos"], told["is_complete"]) == ([item], 3, True)
    names = {Path(each["file"]).name for each in told["searched"]}
    assert {path.name for path in place.rglob("*") if path.is_file()} <= names | {f"{DATABASE}-shm", f"{DATABASE}-wal"}
    for word in ("bundles", "promise", "backups", "free blocks"):
        assert any(word in line for line in told["beyond"])
    assert files_with(place, thumbnail[-64:]) == []


def test_an_item_that_is_named_twice_is_erased_and_counted_once_with_a_report_in_a_new_folder(
    place: Path, tmp_path: Path
) -> None:
    _, item, _ = first_photo(place)
    report = tmp_path / "new" / "erased.json"
    named = ["--item", item] * 2
    done = CliRunner().invoke(group, ["gallery", "erase", str(place), *named, "--report", str(report)])
    assert (done.exit_code, json.loads(report.read_text())["photos"]) == (0, 3)
    assert json.loads(report.read_text())["items"] == [item]


def test_an_unknown_item_is_named_and_fails(place: Path) -> None:
    done = CliRunner().invoke(group, ["gallery", "erase", str(place), "--item", "nothing"])
    assert done.exit_code == 1
    assert "no item nothing" in str(done.exception)


def test_what_is_left_in_a_file_is_told(place: Path) -> None:
    _, item, thumbnail = first_photo(place)
    (place / "copy.bin").write_bytes(bytes(1000) + thumbnail)
    with Gallery.open(place) as gallery:
        done = erase(gallery, [item])
    assert not done.is_complete
    assert [Path(each.file).name for each in done.searched if each.thumbnails] == ["copy.bin"]


def test_the_same_photo_of_another_item_stays_and_is_named(place: Path) -> None:
    photo_id, *_ = first_photo(place)
    with Gallery.open(place) as gallery:
        _, _, metadata = gallery.photo(photo_id) or ("", "", {})
        vectors = gallery.snapshot().vectors(gallery.snapshot().positions([photo_id]))
        gallery.add(["twin"], ["twin"], vectors, metadata=[metadata], thumbnails=[gallery.thumbnail(photo_id) or b""])
        done = erase(gallery, ["twin"])
    assert (done.copies, done.is_complete) == ([photo_id], True)


def test_kept_vectors_queries_and_twins_of_removed_photos_go_with_a_rebuild(place: Path) -> None:
    photo_id, item, _ = first_photo(place)
    with Gallery.open(place) as gallery:
        other = next(name for _, name, _ in gallery.photos() if name != item)
        rest = next(name for name, owner, _ in gallery.photos() if owner == other)
        ids, vectors = np.array([photo_id, rest]), np.ones((2, 1, gallery.dim), np.float32)
        looks = pack_arrays({"ids": ids, "contents": np.array(["a", "b"]), "vectors": vectors})
        queries = {"vectors": vectors[:, 0], "ids": np.array(["q", "r"]), "items": np.array([item, ""])}
        third = next(name for _, name, _ in gallery.photos() if name not in (item, other))
        basis = Basis(twins=((item, other), (other, third)))
        point = Point(1.0, ESTIMATED, 0.05, GALLERY, basis=basis).to_dict()
        points = json.dumps({"points": [{"bundle_id": "b", "draws_id": "d", "operating_point": point}]}).encode()
        gallery.keep({Kept.LOOKS: looks, Kept.QUERIES: pack_arrays(queries), POINT: points}, "test")
        gallery.remove(item_ids=[item])
        assert forget(gallery) == []
        assert load_arrays(gallery.kept(Kept.LOOKS) or b"")["ids"].tolist() == [rest]
        assert load_arrays(gallery.kept(Kept.QUERIES) or b"")["ids"].tolist() == ["r"]
        assert read_points(gallery.kept(POINT))[0].point.basis.twins == ((other, third),)


def test_a_gallery_whose_only_photo_with_a_second_look_is_removed_still_looks_twice(place: Path) -> None:
    photo_id, item, _ = first_photo(place)
    with Gallery.open(place) as gallery:
        vectors = np.ones((1, 1, gallery.dim), np.float32)
        looks = pack_arrays({"ids": np.array([photo_id]), "contents": np.array(["a"]), "vectors": vectors})
        gallery.keep({Kept.LOOKS: looks}, "test")
        gallery.remove(item_ids=[item])
        forget(gallery)
        parts = read_parts(gallery, Kept.LOOKS)
        assert parts is not None
        assert parts.vectors.shape == (0, 1, gallery.dim)


def test_feedback_and_kept_answers_about_a_removed_item_go_with_a_rebuild(place: Path) -> None:
    _, item, _ = first_photo(place)
    feedback = place.with_name("shop.feedback.jsonl")
    with open_gallery(place, read_only=True) as gallery:
        other = next(name for _, name, _ in gallery.photos() if name != item)
    feedback.write_text("".join(json.dumps({"item_id": name}) + "\n" for name in (item, other)))
    answers = place.with_name("shop.feedback.jsonl.answers.sqlite")
    with closing(sqlite3.connect(answers)) as table, table:
        table.execute("CREATE TABLE answers (answer TEXT)")  # of version 0.2.0
        table.execute("INSERT INTO answers VALUES (?)", (json.dumps({"item_id": item}),))
        table.execute("CREATE TABLE recent (number INTEGER PRIMARY KEY, answer TEXT, right_item_id TEXT)")
        rows = [(json.dumps({"item_id": name}), right) for name, right in ((item, ""), (other, item), (other, ""))]
        table.executemany("INSERT INTO recent (answer, right_item_id) VALUES (?, ?)", rows)
    CliRunner().invoke(group, ["gallery", "remove", str(place), "--item", item])
    CliRunner().invoke(group, ["gallery", "rebuild", str(place)])
    assert feedback.read_text().splitlines() == [json.dumps({"item_id": other})]
    assert files_with(place.parent, f'"{item}"'.encode()) == []
    with closing(sqlite3.connect(answers)) as table:
        assert table.execute("SELECT number FROM recent").fetchall() == [(3,)]


def test_a_table_of_answers_of_an_earlier_version_is_emptied(place: Path) -> None:
    _, item, _ = first_photo(place)
    with closing(sqlite3.connect(place.with_name("shop.feedback.jsonl.answers.sqlite"))) as table, table:
        table.execute("CREATE TABLE photos (photo BLOB)")
        table.execute("INSERT INTO photos VALUES (?)", (b"the photo that was sent",))
    with Gallery.open(place) as gallery:
        erase(gallery, [item])
    assert files_with(place.parent, b"photo that was sent") == []


def test_a_damaged_table_of_answers_is_named_and_lines_that_are_no_feedback_stay(place: Path) -> None:
    _, item, _ = first_photo(place)
    feedback, lines = place.with_name("shop.feedback.jsonl"), 'not json\n[1]\nnull\n{"item_id": [1]}\n'
    feedback.write_text(lines)
    place.with_name("shop.feedback.jsonl.answers.sqlite").write_bytes(b"garbage" * 1000)
    with Gallery.open(place) as gallery, pytest.raises(GalleryError, match=r"answers\.sqlite, .* cannot be used"):
        erase(gallery, [item])
    assert feedback.read_text() == lines
    assert files_with(place, f"{item}/".encode()) == []


def test_a_reader_that_holds_the_log_is_named(place: Path) -> None:
    _, item, _ = first_photo(place)
    with closing(sqlite3.connect(place / DATABASE, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM photos").fetchall()
        with Gallery.open(place) as gallery:
            done = erase(gallery, [item])
    assert done.readers
    assert not done.is_complete
