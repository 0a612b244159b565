"""Photos of several catalogues: repeated photos, groups, sources and ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrieval.catalogue.photos import Photo
from retrieval.catalogue.splits import EvaluationProtocol
from training.data.continued import merge_catalogues

AMONG_ALL = EvaluationProtocol("", "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "new").mkdir()
    return tmp_path


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def found(photos: list[Photo]) -> dict[str, str]:
    return {photo.photo_id: photo.item_id for photo in photos}


def test_each_photo_is_taken_once_from_the_last_catalogue_that_has_it(folder: Path) -> None:
    first = write(folder / "photos.csv", "path,item_id\na.jpg,cup\nb.jpg,mug\n")
    second = write(folder / "new" / "more.csv", "path,item_id\n../b.jpg,glass\na.jpg,cup\nx.jpg,\n")
    photos = merge_catalogues([first, second], AMONG_ALL)
    assert found(photos) == {"a.jpg": "cup", "../b.jpg": "glass", "a.jpg (2)": "cup"}  # another file of the same name
    assert [photo.path.name for photo in photos] == ["a.jpg", "b.jpg", "a.jpg"]


def test_a_photo_gets_group_and_partition_of_its_item(folder: Path) -> None:
    first = write(folder / "photos.csv", "path,item_id,group,partition\na.jpg,cup,ware,train\nb.jpg,oak,wood,test\n")
    second = write(folder / "more.csv", "path,item_id\nc.jpg,oak\nd.jpg,new\n")
    photos = {photo.photo_id: photo for photo in merge_catalogues([first, second], AMONG_ALL)}
    assert (photos["c.jpg"].group, photos["c.jpg"].partition) == ("wood", "test")
    assert (photos["d.jpg"].group, photos["d.jpg"].partition) == ("new", "")  # a family of its own among groups


@pytest.mark.parametrize(
    ("column", "protocol", "expected"),
    [
        ("source", EvaluationProtocol("shop", "phone"), ("phone", "")),
        ("role", EvaluationProtocol("gallery", "query"), ("feedback", "query")),
    ],
)
def test_users_photos_count_as_queries(
    folder: Path, column: str, protocol: EvaluationProtocol, expected: tuple[str, str]
) -> None:
    sides = [protocol.gallery_source, protocol.query_source]
    first = write(folder / "photos.csv", f"path,item_id,{column}\na.jpg,cup,{sides[0]}\nb.jpg,cup,{sides[1]}\n")
    second = write(folder / "more.csv", "path,item_id,source\nc.jpg,cup,feedback\n")
    photos = {photo.photo_id: photo for photo in merge_catalogues([first, second], protocol)}
    assert (photos["c.jpg"].source, photos["c.jpg"].role) == expected
    assert getattr(photos["a.jpg"], column) == sides[0]
