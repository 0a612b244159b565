from __future__ import annotations

from pathlib import Path

import pytest

from retrieval.catalogue.check import describe_catalogue
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import DataError

PLAIN = 'path,item_id,Brand\na.jpg,kiwi,"Green, Co"\nb.jpg,lime,\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (PLAIN, "commas"),
        ("path;item_id;Brand\na.jpg;kiwi;Green, Co\nb.jpg;lime;\n", "semicolons"),
        ("path\titem_id\tBrand\na.jpg\tkiwi\tGreen, Co\nb.jpg\tlime\t\n", "tabs"),
        ("path|item_id|Brand\na.jpg|kiwi|Green, Co\nb.jpg|lime|\n", "vertical bars"),
        (' path , item_id , Brand\na.jpg , kiwi , "Green, Co"\nb.jpg , lime ,\n', "commas"),
        ('"path"; "item_id"; "Brand"\n"a.jpg"; "kiwi"; "Green, Co"\n"b.jpg"; "lime"; ""\n', "semicolons"),
        ("\ufeffPATH;ITEM_ID;Brand\r\na.jpg;kiwi;Green, Co\r\nb.jpg;lime;\r\n", "semicolons"),
        ('Path,Label,Brand,,\na.jpg,kiwi,"Green, Co",,\nb.jpg,lime,,,\n', "commas"),
    ],
)
def test_a_csv_is_read_as_spreadsheets_write_it(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "c.csv"
    path.write_bytes(text.encode())
    photos = read_catalogue(path)
    assert [(p.photo_id, p.item_id, dict(p.metadata)) for p in photos] == [
        ("a.jpg", "kiwi", {"Brand": "Green, Co"}),
        ("b.jpg", "lime", {}),
    ]
    assert describe_catalogue(path, photos) == f"2 photos of 2 items, from a CSV with {told}"


def test_spaces_belong_to_a_path_where_the_header_has_none_and_to_no_other_cell(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("path,item_id,note\n a.jpg,kiwi, green \n")
    (photo,) = read_catalogue(tmp_path / "c.csv")
    assert (photo.photo_id, photo.metadata) == (" a.jpg", {"note": "green"})


def test_tsv_is_a_csv_with_tabs(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text("path\titem_id\na.jpg\tkiwi\n")
    assert read_catalogue(tmp_path / "c.tsv")[0].item_id == "kiwi"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            b"file;product;price\na.jpg;kiwi;2\n",
            ["'file', 'product', 'price', separated by semicolons", "`item_id` or"],
        ),
        (b"path:item_id\na.jpg:kiwi\n", ["has the columns 'path:item_id'", "It needs `path`"]),
        (b"", ["has the columns none"]),
        (b"path,item_id,Path\na.jpg,kiwi,b.jpg\n", ["several columns 'path'"]),
        (
            b"path,item_id,name\na.jpg,kiwi,fruit\nb.jpg,mug,large, blue\n",
            ["line 3: 4 cells in 3 columns", "in quotes"],
        ),
        ("path;item_id\na.jpg;kiwi\n".encode("utf-16"), ["not a UTF-8 CSV", "Save it as `CSV UTF-8`"]),
        ("path;item_id\na.jpg;Käse\n".encode("latin-1"), ["not a UTF-8 CSV"]),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, data: bytes, told: list[str]) -> None:
    (tmp_path / "c.csv").write_bytes(data)
    with pytest.raises(DataError) as refused:
        read_catalogue(tmp_path / "c.csv")
    for text in told:
        assert text in str(refused.value)
