from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from retrieval.catalogue.check import describe_catalogue
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import DataError

from ...world import draw


def put(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        draw(number, 0).save(folder / name)
    return folder


def read(folder: Path) -> list[tuple[str, str, str]]:
    return [(photo.photo_id, photo.item_id, photo.group) for photo in read_catalogue(folder)]


def test_each_folder_with_photos_is_an_item_and_those_around_it_are_its_group(tmp_path: Path) -> None:
    put(tmp_path, "veg/kiwi/1.png", "veg/kiwi/2.png", "veg/lime/1.png", "meat/cold/ham/1.png", "bread/1.png")
    assert read(tmp_path) == [
        ("bread/1.png", "bread", ""),
        ("meat/cold/ham/1.png", "meat/cold/ham", "meat/cold"),
        ("veg/kiwi/1.png", "veg/kiwi", "veg"),
        ("veg/kiwi/2.png", "veg/kiwi", "veg"),
        ("veg/lime/1.png", "veg/lime", "veg"),
    ]
    assert describe_catalogue(tmp_path, read_catalogue(tmp_path)) == (
        "5 photos of 4 items in 2 groups, from folders one to three levels deep"
    )


def test_two_folders_of_one_name_are_two_items(tmp_path: Path) -> None:
    put(tmp_path, "fruit/orange/1.png", "juice/orange/1.png")
    assert [item for _, item, _ in read(tmp_path)] == ["fruit/orange", "juice/orange"]
    assert "2 items in 2 groups, from folders two levels deep" in describe_catalogue(tmp_path, read_catalogue(tmp_path))


def test_each_photo_is_an_item_in_a_folder_without_sub_folders(tmp_path: Path) -> None:
    put(tmp_path, "kiwi.png", "lime.jpg")
    (tmp_path / "empty").mkdir()
    photos = read_catalogue(tmp_path)
    assert [(photo.photo_id, photo.item_id, photo.metadata) for photo in photos] == [
        ("kiwi.png", "kiwi.png", {"name": "kiwi"}),
        ("lime.jpg", "lime.jpg", {"name": "lime"}),
    ]
    assert describe_catalogue(tmp_path, photos) == "2 photos of 2 items, from a folder with one photo per item"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["veg/1.png", "veg/kiwi/1.png"], ["veg holds photos (1, such as 1.png)", "veg/kiwi", "a CSV"]),
        (["cover.png", "kiwi/1.png", "lime/1.png"], ["such as cover.png", "kiwi, lime", "is unclear"]),
    ],
)
def test_photos_beside_folders_of_photos_are_refused(tmp_path: Path, names: Sequence[str], told: Sequence[str]) -> None:
    put(tmp_path, *names)
    with pytest.raises(DataError) as refused:
        read_catalogue(tmp_path)
    for text in told:
        assert text in str(refused.value)


def test_hidden_files_and_folders_are_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "kiwi/1.png", "kiwi/._1.png", "kiwi/.thumbnails/1.png", ".trash/2.png")
    (tmp_path / "kiwi" / "notes").mkdir()
    (tmp_path / "kiwi" / "notes" / "read.txt").write_text("no photo")
    assert read(tmp_path) == [("kiwi/1.png", "kiwi", "")]


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere", "1.png")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "kiwi").symlink_to(tmp_path / "elsewhere")
    assert read(tmp_path / "photos") == [("kiwi/1.png", "kiwi", "")]
    (tmp_path / "elsewhere" / "again").symlink_to(tmp_path / "photos")
    with pytest.raises(DataError, match="is a link to one of its parent folders"):
        read_catalogue(tmp_path / "photos")


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "kiwi/1.png", "lime/1.png")
    real = Path.stat

    def refuse(self: Path, **options: bool) -> object:
        if self.name == "lime":
            raise PermissionError(13, "Permission denied")
        return real(self, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(DataError, match="lime cannot be read: Permission denied"):
        read_catalogue(tmp_path)
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "lime")
    assert len(read_catalogue(tmp_path)) == 1
