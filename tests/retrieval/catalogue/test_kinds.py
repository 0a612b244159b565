"""Kinds of a CSV's columns: recognized from all cells, or declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retrieval.catalogue.kinds import text_cells
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import DataError, InvalidParameter


def column(folder: Path, cells: list[str], **options: Any) -> list[Any]:
    """Return the values of a column `x` of a CSV with these cells."""
    lines = [f"{number}.jpg,item,{cell}" for number, cell in enumerate(cells)]
    (folder / "c.csv").write_text("\n".join(["path,item_id,x", *lines]) + "\n")
    return [photo.metadata.get("x") for photo in read_catalogue(folder / "c.csv", **options)]


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["3", "-4.50", "", "1e3", "0"], [3, -4.5, None, 1000.0, 0]),
        (["3", "n/a"], ["3", "n/a"]),
        (["007", "3"], ["007", "3"]),  # an identifier
        (["4006381333931"], ["4006381333931"]),  # a bar code
        (["1234567890"], [1234567890]),
        (["1.5", "+2"], ["1.5", "+2"]),
        (["nan", "inf"], ["nan", "inf"]),
        (["true", "FALSE", "", "True"], [True, False, None, True]),
        (["true", "1"], ["true", "1"]),
        (["2026-01-31", "2026-02-01"], ["2026-01-31", "2026-02-01"]),
        (["31.01.2026", "1.2.2026"], ["31.01.2026", "1.2.2026"]),
    ],
)
def test_a_column_has_the_kind_of_all_its_cells(tmp_path: Path, cells: list[str], values: list[Any]) -> None:
    found = column(tmp_path, cells)
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


def test_a_declared_kind_is_kept_or_the_cell_is_named(tmp_path: Path) -> None:
    assert column(tmp_path, ["3", "4"], columns={"x": "text"}) == ["3", "4"]
    assert column(tmp_path, ["4006381333931"], columns={"x": "number"}) == [4006381333931]
    with pytest.raises(DataError, match=r"c.csv: 1 cell of x is not a boolean: 1.jpg has '1'\. Correct them"):
        column(tmp_path, ["true", "1"], columns={"x": "boolean"})
    with pytest.raises(
        DataError, match=r"3 cells of x are not a number: 1.jpg has 'n/a', 2.jpg has '\?', 4.jpg has 'n/a'"
    ):
        column(tmp_path, ["3", "n/a", "?", "4", "n/a"], columns={"x": "number"})
    with pytest.raises(InvalidParameter, match="kind of column x must be one of text, number, boolean"):
        column(tmp_path, ["3"], columns={"x": "colour"})


def test_the_cells_that_make_a_number_column_text_are_named(tmp_path: Path) -> None:
    def cells(*cells: str) -> dict[str, list[str]]:
        lines = [f"{number}.jpg,item,{cell},name {number}" for number, cell in enumerate(cells)]
        (tmp_path / "c.csv").write_text("\n".join(["path,item_id,price,name", *lines]) + "\n")
        return text_cells(read_catalogue(tmp_path / "c.csv"))

    assert cells("3", "n/a", "4") == {"price": ["1.jpg: 'n/a'"]}
    assert cells("3", "n/a", "?") == {}
    assert cells(*["3"] * 30, "?", "?", "", "4006381333931") == {
        "price": ["30.jpg: '?'", "31.jpg: '?'", "33.jpg: '4006381333931'"]
    }
    assert cells("3", "4") == {}
    assert cells("true", "true", "3") == {}


def test_what_a_gallery_holds_replaces_what_a_column_looks_like(tmp_path: Path) -> None:
    assert column(tmp_path, ["3", "4"], known={"x": "text"}) == ["3", "4"]
    assert column(tmp_path, ["3", "n/a"], known={"x": "number"}) == [3, "n/a"]
    assert column(tmp_path, ["3"], known={"x": "text"}, columns={"x": "number"}) == [3]


def test_only_a_csv_has_its_kinds_recognized_but_all_may_declare_them(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"path": "a.jpg", "item_id": "x", "size": "3", "code": 7}\n')
    assert read_catalogue(tmp_path / "c.jsonl")[0].metadata == {"size": "3", "code": 7}
    declared = read_catalogue(tmp_path / "c.jsonl", columns={"size": "number", "code": "text"})
    assert declared[0].metadata == {"size": 3, "code": "7"}
