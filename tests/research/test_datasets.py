"""The readers, on the sets in miniature: see `tests.miniature` for the official form."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from research.datasets import DATASETS, find_dataset, read_dataset, set_aside
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.catalogue.tables import write_catalogue
from retrieval.cli.main import group
from retrieval.errors import DataError, InvalidParameter
from retrieval.images import open_image

from ..miniature import WRITERS, write_cars, write_cub, write_inat, write_inshop, write_sop


def parts(photos: list[Photo]) -> dict[str, set[str]]:
    return {part: {p.item_id for p in photos if p.partition == part} for part in sorted({p.partition for p in photos})}


@pytest.mark.parametrize("name", WRITERS)
def test_every_set_is_read_whole_with_disjoint_items(name: str, tmp_path: Path) -> None:
    folder = WRITERS[name](tmp_path / "set", classes=3, photos=4)
    photos = read_dataset(name, folder)
    assert len(photos) == 2 * 3 * 4
    assert len({p.photo_id for p in photos}) == len(photos)
    found = parts(photos)
    assert sorted(found) == ["test", "train"]
    assert [len(items) for items in found.values()] == [3, 3]
    assert not found["train"] & found["test"]
    assert all(p.metadata["category"] for p in photos)
    assert open_image(photos[0].read(), min_side=64).size == (80, 80)
    assert read_dataset(name, tmp_path / "set") == photos  # the folder the archive was unpacked in will do
    assert read_dataset(name, tmp_path) == photos  # and the one above, with sets beside it
    (tmp_path / "set").rename(tmp_path / name)
    write_cub(tmp_path / "older")
    assert len(read_dataset(name, tmp_path)) == len(photos)  # the folder with the name of the set comes first


def test_cub(tmp_path: Path) -> None:
    folder = write_cub(tmp_path, classes=2, photos=4)
    photos = read_dataset("cub", folder)
    assert parts(photos) == {
        "train": {"001.Test_B_Auklet", "002.Test_C_Blackbird"},
        "test": {"101.Test_Bab_Auklet", "102.Test_Bac_Blackbird"},
    }
    assert photos[0].metadata == {"name": "Test B Auklet", "category": "Auklet"}
    assert photos[0].bbox is None
    shared = read_dataset("cub", folder, protocol="shared")
    assert parts(shared)["train"] == parts(shared)["test"]
    assert Counter(p.partition for p in shared) == {"train": 8, "test": 8}
    assert [p.path for p in shared] == [p.path for p in photos]


@pytest.mark.parametrize("devkit", [False, True])
def test_cars(devkit: bool, tmp_path: Path) -> None:
    folder = write_cars(tmp_path, classes=2, photos=4, devkit=devkit)
    photos = read_dataset("cars", folder)
    found = parts(photos)
    assert found["train"] == {"001.AM General Hummer SUV B 1990", "002.Acura RL Sedan C 1991"}
    assert found["test"] == {"099.Land Rover LR2 SUV Jj 2013", "100.Ram C-V Van Baa 2014"}  # no slash in an id
    assert {p.metadata["category"] for p in photos} == {"AM General", "Acura", "Land Rover", "Ram"}
    shared = read_dataset("cars", folder, protocol="shared")
    assert parts(shared)["train"] == parts(shared)["test"]
    assert Counter(p.partition for p in shared) == {"train": 8, "test": 8}
    if devkit:
        assert {p.photo_id.split("/")[0] for p in shared if p.partition == "test"} == {"cars_test"}


def test_cars_as_mirrors_hand_it_out(tmp_path: Path) -> None:
    folder = write_cars(tmp_path / "stanford_cars", classes=2, photos=4, devkit=True)
    photos = read_dataset("cars", folder)
    labels = folder / "devkit" / "cars_test_annos_withlabels.mat"
    labels.rename(folder / "cars_test_annos_withlabels (1).mat")  # torchvision's layout, as browsers name a second copy
    for part in ("cars_train", "cars_test"):
        (folder / part).rename(folder / "once")
        (folder / part).mkdir()
        (folder / "once").rename(folder / part / part)
    assert [(p.item_id, p.partition) for p in read_dataset("cars", folder)] == [
        (p.item_id, p.partition) for p in photos
    ]
    (folder / "cars_test_annos_withlabels (1).mat").rename(folder / "devkit" / "cars_test_annos.mat")
    with pytest.raises(DataError, match=r"no cars_test_annos_withlabels\.mat") as refusal:
        read_dataset("cars", folder)
    assert "cars_test_annos.mat has no classes" in refusal.value.remedy
    shutil.rmtree(folder / "devkit")
    (folder / "cars_annos.mat").write_bytes(b"of the photos in car_ims, which are not there")
    with pytest.raises(DataError, match=r"no cars_train_annos\.mat") as refusal:
        read_dataset("cars", folder)
    assert "cars_annos.mat numbers the photos of car_ims" in refusal.value.remedy


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("wrong", ["empty", "another set"])
def test_a_wrong_folder_is_refused_with_what_the_right_one_holds(name: str, wrong: str, tmp_path: Path) -> None:
    root = tmp_path / "DATA"
    root.mkdir()
    if wrong == "another set":
        (write_sop if name == "cub" else write_cub)(root, classes=2, photos=2)
    assert find_dataset(name, root) is None
    with pytest.raises(DataError, match=f"{root} does not contain {name}") as refusal:
        read_dataset(name, root)
    assert all(mark.split("/")[0] in refusal.value.remedy for mark in DATASETS[name].marks)


@pytest.mark.parametrize(
    ("name", "inner"),
    [("cub", "images"), ("cars", "car_ims"), ("sop", "chair_final"), ("inshop", "Img"), ("inat", "train_val2018")],
)
def test_a_folder_within_the_archive_is_refused_with_the_one_to_name(name: str, inner: str, tmp_path: Path) -> None:
    folder = WRITERS[name](tmp_path, classes=3, photos=2)
    with pytest.raises(DataError) as refusal:
        read_dataset(name, folder / inner)
    assert refusal.value.remedy == f"Name {folder}"


def test_two_copies_of_a_set_are_refused_by_name(tmp_path: Path) -> None:
    write_sop(tmp_path / "first", classes=2, photos=2)
    write_sop(tmp_path / "second", classes=2, photos=2)
    with pytest.raises(DataError, match=r"first/Stanford_Online_Products and .*second/Stanford_Online_Products both"):
        read_dataset("sop", tmp_path)


@pytest.mark.parametrize("name", WRITERS)
def test_leftovers_of_other_systems_change_nothing(name: str, tmp_path: Path) -> None:
    folder = WRITERS[name](tmp_path / "set", classes=3, photos=3)
    photos = read_dataset(name, folder)
    for path in list(folder.rglob("*.txt")):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    for photo in photos[::4]:
        photo.path.with_name(f"._{photo.path.name}").write_bytes(b"Mac OS X")
    shutil.copytree(folder, tmp_path / "set" / "__MACOSX" / "._copy", ignore=lambda _, names: names)
    photos[1].path.rename(photos[1].path.with_suffix(photos[1].path.suffix.swapcase()))
    again = read_dataset(name, tmp_path / "set")
    assert [(p.photo_id, p.item_id, p.partition) for p in again] == [
        (p.photo_id, p.item_id, p.partition) for p in photos
    ]
    assert again[1].path.suffix != photos[1].path.suffix
    assert again[1].read()
    assert again[0] == photos[0]


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_photos_without_three_colours_are_read(mode: str, tmp_path: Path) -> None:
    photo = read_dataset("cub", write_cub(tmp_path, classes=1, photos=2))[0]
    Image.open(photo.path).convert(mode).save(photo.path)
    assert open_image(read_dataset("cub", tmp_path)[0].read(), min_side=64).mode == "RGB"


LISTS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "gone": ("cannot be read", lambda path: path.unlink()),
    "of another form": (
        "line 3 is not in the official format",
        lambda path: path.write_text("1 a\n2 b\n3 c d e f g\n"),
    ),
    "empty": ("is empty", lambda path: path.write_text("")),
}


@pytest.mark.parametrize("damage", LISTS)
def test_a_list_of_classes_that_is_no_list_is_refused(damage: str, tmp_path: Path) -> None:
    folder = write_cub(tmp_path, classes=2, photos=2)
    message, change = LISTS[damage]
    change(folder / "images.txt")
    with pytest.raises(DataError, match=rf"images\.txt.* {message}"):
        read_dataset("cub", folder)


def test_inshop_has_queries_and_a_gallery_in_both_parts(tmp_path: Path) -> None:
    folder = write_inshop(tmp_path, classes=2, photos=5)
    photos = read_dataset("inshop", folder)
    assert parts(photos) == {"train": {"id_00000001", "id_00000002"}, "test": {"id_00000003", "id_00000004"}}
    roles = Counter((p.partition, p.role) for p in photos)
    assert roles == {("train", "query"): 6, ("train", "gallery"): 4, ("test", "query"): 6, ("test", "gallery"): 4}
    assert {p.metadata["category"] for p in photos} == {"WOMEN/Dresses", "WOMEN/Blouses_Shirts", "MEN/Denim"}
    (folder / "Img" / "img").rename(folder / "img")  # the older distribution
    assert [p.photo_id for p in read_dataset("inshop", folder)] == [p.photo_id for p in photos]
    (folder / "img").rename(folder / "images")
    with pytest.raises(DataError, match=r"Unpack Img/img\.zip"):
        read_dataset("inshop", folder)


def test_inat_with_and_without_the_names_of_the_competition(tmp_path: Path) -> None:
    folder = write_inat(tmp_path, classes=2, photos=3)
    photos = read_dataset("inat", folder)
    assert parts(photos) == {"train": {"0000", "0001"}, "test": {"0002", "0003"}}
    ranks = {"genus": "Genus0", "family": "Family 0", "order": "Order 0", "class": "Plantae"}
    assert photos[0].metadata == {"category": "Plantae", "name": "Genus0 species0", **ranks}
    (folder / "categories.json").unlink()
    assert read_dataset("inat", folder)[0].metadata == {"category": "Plantae", "name": "Genus0 species0"}
    (folder / "train2018.json").write_text('{"categories": [{"id": 0}]}')
    with pytest.raises(DataError, match="competition's form"):
        read_dataset("inat", folder)
    (folder / "train2018.json").unlink()
    assert read_dataset("inat", folder)[0].metadata == {"category": "Plantae"}


@pytest.mark.parametrize("name", WRITERS)
def test_missing_photos_are_counted_and_the_first_is_named(name: str, tmp_path: Path) -> None:
    folder = WRITERS[name](tmp_path, classes=2, photos=3)
    photos = read_dataset(name, folder)
    for photo in (photos[4], photos[7]):
        photo.path.unlink()
    with pytest.raises(DataError, match=r"2 of the 12 photos .* starting with .*" + photos[4].path.name) as refusal:
        read_dataset(name, folder)
    assert "Unpack" in refusal.value.remedy


def test_set_aside_takes_whole_training_items(tmp_path: Path) -> None:
    photos = read_dataset("sop", write_sop(tmp_path, classes=5, photos=2))
    made = set_aside(photos, share=0.4, seed=1)
    assert {part: len(items) for part, items in parts(made).items()} == {"calibration": 2, "test": 5, "train": 3}
    assert not parts(made)["calibration"] & parts(made)["train"]
    assert parts(made)["test"] == parts(photos)["test"]
    assert made == set_aside(photos, share=0.4, seed=1)
    assert set_aside(photos, share=0.0, seed=1) == photos
    with pytest.raises(InvalidParameter, match=r"lie in \[0, 1\)"):
        set_aside(photos, share=1.0, seed=0)
    both = read_dataset("cub", write_cub(tmp_path, classes=1, photos=2), protocol="shared")
    with pytest.raises(InvalidParameter, match="share their items"):
        set_aside(both, share=0.5, seed=0)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("inside", [True, False])
def test_the_catalogue_reads_back_as_the_same_photos(name: str, inside: bool, tmp_path: Path) -> None:
    folder = WRITERS[name](tmp_path / "set", classes=2, photos=2)
    photos = read_dataset(name, folder)
    path = write_catalogue(photos, (tmp_path if inside else tmp_path / "other") / "photos.csv")
    assert read_catalogue(path) == photos
    assert (str(tmp_path) in path.read_text()) is not inside


def test_the_command_writes_a_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cub(tmp_path, classes=5, photos=2)
    monkeypatch.chdir(tmp_path)
    command = ["research", "convert", "cub", "CUB_200_2011", "-o", "cub.csv"]
    done = CliRunner().invoke(group, [*command, "--calibration", "0.2"])
    assert done.exit_code == 0
    told = done.output.splitlines()[0].removeprefix("Wrote cub.csv: ").rstrip(".").split(", ")
    assert sorted(told) == ["calibration 2 photos of 1 items", "test 10 photos of 5 items", "train 8 photos of 4 items"]
    assert "retrieval train cub.csv -o runs/cub" in done.output
    assert Counter(p.partition for p in read_catalogue(tmp_path / "cub.csv")) == {
        "train": 8,
        "calibration": 2,
        "test": 10,
    }
    assert "no calibration items" in CliRunner().invoke(group, command).output
    shared = CliRunner().invoke(group, [*command, "--protocol", "shared"])
    assert "refuses this catalogue" in shared.output
    assert Counter(p.partition for p in read_catalogue(tmp_path / "cub.csv")) == {"train": 10, "test": 10}
