from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from retrieval.catalogue.check import describe_catalogue
from retrieval.catalogue.folders import FolderRules, Listing
from retrieval.catalogue.ids import as_spelled
from retrieval.catalogue.photos import UNLABELLED
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import DataError, InvalidParameter

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
        ("kiwi.png", "kiwi", {"name": "kiwi"}),
        ("lime.jpg", "lime", {"name": "lime"}),
    ]
    assert describe_catalogue(tmp_path, photos) == "2 photos of 2 items, from a folder with one photo per item"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["veg/1.png", "veg/kiwi/1.png"], ["veg holds photos (1, such as 1.png)", "veg/kiwi", "--ignore", "a CSV"]),
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


SYSTEM = (
    "@eaDir",
    "#recycle",
    "$RECYCLE.BIN",
    "__MACOSX",
    "lost+found",
    ".thumbnails",
    "@Recently-Snapshot",
    "@__thumb",
    "@GMT-2026.11.28-09.00.00",
    "Network Trash Folder",
)


@pytest.mark.parametrize("name", SYSTEM)
def test_folders_of_systems_are_left_out_at_any_depth_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    put(tmp_path, "kiwi/1.png", f"kiwi/{name}/1.png/thumb.png", f"{name}/kiwi/1.png", "lime/1.png")
    assert [item for _, item, _ in read(tmp_path)] == ["kiwi", "lime"]
    assert caplog.messages == [f"2 files or folders passed over in {tmp_path}: {name}/ 2"]
    assert len(read_catalogue(tmp_path, labels=UNLABELLED)) == 2


def test_a_file_is_a_photo_by_its_suffix_or_first_bytes_and_others_are_counted_by_kind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, *(f"kiwi/{number}.png" for number in range(6)))
    for number, name in enumerate(("a.jfif", "b.jpe", "c.JPG_large", "d", "e.webp_old")):
        (tmp_path / "kiwi" / f"{number}.png").rename(tmp_path / "kiwi" / name)
    contents = {
        "notes.txt": b"BMW",
        "sound.wav": b"RIFF\0\0\0\0WAVE",
        "raw.nef": b"MM\0*",
        "list.TXT": b"",
        "README": b"x",
    }
    for name, content in contents.items():
        (tmp_path / "kiwi" / name).write_bytes(content)
    (tmp_path / "kiwi" / ".DS_Store").write_bytes(b"")
    assert [Path(name).name for name, _, _ in read(tmp_path)] == [
        "5.png", "a.jfif", "b.jpe", "c.JPG_large", "d", "e.webp_old",
    ]  # fmt: skip
    (line,) = caplog.messages
    assert line.startswith(f"6 files or folders passed over in {tmp_path}: .txt 2, ")
    for kind in (".wav 1", ".nef 1", "no suffix 1", "hidden 1"):
        assert kind in line


@pytest.mark.parametrize("pattern", ["drafts", "drafts/", "**/drafts/**", "veg/drafts", "veg/dr*"])
def test_what_a_pattern_names_is_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, pattern: str
) -> None:
    put(tmp_path, "veg/kiwi/1.png", "veg/drafts/1.png", "veg/kiwi/1_thumb.png")
    photos = read_catalogue(tmp_path, folders=FolderRules(ignore=(pattern, "*_thumb.png", "Drafts")))
    assert [photo.photo_id for photo in photos] == ["veg/kiwi/1.png"]
    for told in (f"--ignore {pattern} 1", "--ignore *_thumb.png 1", "--ignore Drafts 0"):
        assert told in caplog.messages[0]


@pytest.mark.parametrize(
    "names", [("train", "val"), ("Train", "VALID"), ("TRAINING", "testing"), ("set/train", "set/test")]
)
def test_splits_that_share_the_names_of_items_are_refused_or_merged(tmp_path: Path, names: tuple[str, str]) -> None:
    first, second = names
    put(tmp_path, f"{first}/kiwi/1.png", f"{second}/kiwi/2.png", f"{first}/lime/3.png")
    with pytest.raises(DataError, match="have items of one name") as refused:
        read_catalogue(tmp_path)
    assert " and ".join(sorted(Path(name).name for name in names)) in refused.value.message
    assert "--splits merge" in refused.value.remedy
    assert "--splits partitions" in refused.value.remedy
    above = "set/" if first.startswith("set") else ""
    merged = read_catalogue(tmp_path, folders=FolderRules(splits="merge"))
    assert {photo.item_id for photo in merged} == {f"{above}kiwi", f"{above}lime"}
    assert {(photo.group, photo.partition) for photo in merged} == {(above.rstrip("/"), "")}
    kept = read_catalogue(tmp_path, folders=FolderRules(splits="partitions"))
    held_out = "test" if "test" in second else "validation"
    assert {Path(photo.photo_id).name: photo.partition for photo in kept} == {
        "1.png": "train", "2.png": held_out, "3.png": "train",
    }  # fmt: skip


def test_splits_inside_of_item_folders_are_recognised_and_others_are_items(tmp_path: Path) -> None:
    put(tmp_path / "inside", "kiwi/train/1.png", "kiwi/val/2.png")
    with pytest.raises(DataError, match=r"the folders train and val have items of one name \(1, such as kiwi\)"):
        read_catalogue(tmp_path / "inside")
    put(tmp_path / "own", "train/kiwi/1.png", "val/lime/2.png", "test/1.png")
    assert read(tmp_path / "own")[1:] == [
        ("train/kiwi/1.png", "train/kiwi", "train"),
        ("val/lime/2.png", "val/lime", "val"),
    ]


def test_rules_for_folders_are_refused_for_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,item_id\na.jpg,kiwi\n")
    with pytest.raises(InvalidParameter, match="--ignore and --splits must be left out"):
        read_catalogue(tmp_path / "t.csv", folders=FolderRules(ignore=("a*",)))


def test_items_of_a_flat_folder_lose_only_the_suffixes_of_photos_and_keep_the_spelling_of_a_gallery(
    tmp_path: Path,
) -> None:
    put(tmp_path, "sku 1.5.png", "lime.jpeg", "x.png", "y.png")
    (tmp_path / "x.png").rename(tmp_path / "sku 1.6")
    (tmp_path / "y.png").rename(tmp_path / "fig.JPG_large")
    photos = read_catalogue(tmp_path)
    assert [photo.item_id for photo in photos] == ["fig", "lime", "sku 1.5", "sku 1.6"]
    assert [photo.item_id for photo in as_spelled(photos, ["lime.jpeg", "fig "])] == [
        "fig ",
        "lime.jpeg",
        "sku 1.5",
        "sku 1.6",
    ]


def test_names_of_folders_have_no_spaces_around_them_and_normal_form_c(tmp_path: Path) -> None:
    put(tmp_path, "veg /ki\u0308wi /1.png")
    assert read(tmp_path) == [("veg /ki\u0308wi /1.png", "veg/k\u00efwi", "veg")]


def test_objects_of_a_store_are_chosen_by_their_paths() -> None:
    listing = Listing(FolderRules(ignore=("drafts",)))
    names = ("kiwi/1.jpg", "@eaDir/kiwi/1.jpg", "kiwi/.a.jpg", "kiwi/drafts/1.jpg", "kiwi/n.txt", "kiwi/2.jfif")
    assert [name for name in names if listing.takes(name)] == ["kiwi/1.jpg", "kiwi/2.jfif"]
    assert listing.passed == {"@eaDir/": 1, "hidden": 1, "--ignore drafts": 1, ".txt": 1}
