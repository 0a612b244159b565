"""Cells as databases and spreadsheets write them: spaces, words for nothing, rounded numbers, other spellings."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from retrieval.catalogue.ids import describe_missing, look_alikes, nearest
from retrieval.catalogue.photos import QUERIES, Labels
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import DataError, ImageUnreadable

from ...world import draw


def table(folder: Path, *rows: str, header: str = "path,item_id", name: str = "t.csv") -> Path:
    (folder / name).write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
    return folder / name


@pytest.mark.parametrize("other", ["kiwi ", "\u00a0kiwi", "kiwi\t", "\ufeff kiwi", "kiwi\u200b \u202c", "kiwi\0"])
def test_an_id_with_spaces_or_invisible_characters_around_it_is_the_id_without(tmp_path: Path, other: str) -> None:
    photos = read_catalogue(table(tmp_path, "a.jpg,kiwi", f"b.jpg,{other}"))
    assert [photo.item_id for photo in photos] == ["kiwi", "kiwi"]


def test_both_normal_forms_of_an_id_are_one_item(tmp_path: Path) -> None:
    forms = [unicodedata.normalize(form, "Käse") for form in ("NFC", "NFD")]
    photos = read_catalogue(table(tmp_path, *(f"{n}.jpg,{form}" for n, form in enumerate(forms))))
    assert {photo.item_id for photo in photos} == {forms[0]}


NOTHING = ("#DIV/0!", "#\u00bfNOMBRE?", "#REF !", "#N/D", "(null)", "(blank)", "undefined", "-", "\u2014", "###")


@pytest.mark.parametrize("word", ["NULL", "#N/A", "nan", "\\N", "None", "NaN", "N/A", "<NA>", "#NV", "#REF!", *NOTHING])
def test_a_word_for_nothing_is_refused_as_an_item_and_an_unknown_item_among_queries(tmp_path: Path, word: str) -> None:
    path = table(tmp_path, f"a.jpg,{word},g", f"b.jpg,kiwi,{word}", header="path,item_id,group")
    with pytest.raises(DataError) as refused:
        read_catalogue(path)
    assert f"line 2: item_id is {word!r}, a word for no item" in refused.value.message
    assert [(photo.item_id, photo.group) for photo in read_catalogue(path, labels=QUERIES)] == [("", "g"), ("kiwi", "")]


@pytest.mark.parametrize("cell", ["4.00638E+12", '"4,00638E+12"', "4.00638133393E+12", "4e+12", "-1.5e7"])
def test_rounded_numbers_in_the_label_are_refused_with_the_cells(tmp_path: Path, cell: str) -> None:
    with pytest.raises(DataError) as refused:
        read_catalogue(table(tmp_path, "a.jpg,kiwi", f"b.jpg,{cell}", header="path,label"))
    assert f"line 3: label is '{cell.strip(chr(34))}', a rounded number" in refused.value.message
    assert "column as text" in refused.value.remedy


@pytest.mark.parametrize("item", ["12E05", "1E10", "4.5", "E+12", "A4.0E+1", "-1", "..", "#1", "nullo", "N-A", "?!"])
def test_codes_that_are_no_rounded_numbers_and_no_words_for_nothing_are_items(tmp_path: Path, item: str) -> None:
    assert read_catalogue(table(tmp_path, f"a.jpg,{item}"))[0].item_id == item


def test_ids_that_look_alike_are_named_once_with_their_characters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = (
        "a.jpg,kiwi",
        "b.jpg,Ki\u200bwi",
        "c.jpg,red  lime",
        "d.jpg,red\u00a0lime",
        "e.jpg,\uff21\uff11",
        "f.jpg,a1",
    )
    photos = read_catalogue(table(tmp_path, *rows, "g.jpg,kiwi"))
    assert len({photo.item_id for photo in photos}) == 6
    (line,) = caplog.messages
    assert line.startswith("3 items have several ids that look alike: ")
    assert "'Ki\\u200bwi' and 'kiwi'" in line
    assert "'red  lime' and 'red\\xa0lime'" in line
    assert look_alikes({"kiwi", "kiwi 2", "lime"}) == []


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_paths_in_another_spelling_are_resolved_and_the_message_says_how(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    there = unicodedata.normalize("NFD" if form == "NFC" else "NFC", "Käse")
    written = unicodedata.normalize(form, "Käse")
    (tmp_path / "photos" / there).mkdir(parents=True)
    for number in range(3):
        draw(number, 0).save(tmp_path / "photos" / there / f"{number}.png")
    rows = (f"photos/{written}/0.png,a", f"photos/{there}/1.png ,b", f"photos\\{written}\\2.png,c")
    photos = read_catalogue(table(tmp_path, *rows))
    assert [photo.path for photo in photos] == [tmp_path / "photos" / there / f"{number}.png" for number in range(3)]
    assert [photo.photo_id for photo in photos] == [
        f"photos/{written}/0.png", f"photos/{there}/1.png", f"photos/{written}/2.png",
    ]  # fmt: skip
    for told in ("in another normal form", "without the spaces around it", "with / for \\"):
        assert sum(told in line for line in caplog.messages) == 1


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("file://{home}/a%20b/K%C3%A4se.png", "with %20 and the like decoded"),
        ("FILE://localhost{home}/a b/K\u00e4se.png", "without file:"),
        ("a%20b\\K\u00e4se.png", "with %20 and the like decoded"),
        ("\ufeffa b/K\u00e4se.png\u200b", "without the spaces around it"),
    ],
)
def test_a_path_as_an_address_or_with_invisible_characters_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, written: str, told: str
) -> None:
    (tmp_path / "a b").mkdir()
    draw(0, 0).save(tmp_path / "a b" / "K\u00e4se.png")
    draw(0, 1).save(tmp_path / "a%20b.png")
    first, second = read_catalogue(table(tmp_path, written.format(home=tmp_path) + ",kiwi", "a%20b.png,lime"))
    assert (first.path, second.path) == (tmp_path / "a b" / "K\u00e4se.png", tmp_path / "a%20b.png")
    assert [told in line for line in caplog.messages] == [True]


def test_a_path_with_backslashes_and_no_file_says_that_it_is_one_of_windows(tmp_path: Path) -> None:
    (photo,) = read_catalogue(table(tmp_path, "C:\\photos\\a.jpg,kiwi"))
    with pytest.raises(
        ImageUnreadable, match=r"No such file or directory \(the backslashes are those of a path on Windows"
    ):
        photo.read()


def test_a_file_whose_name_has_spaces_around_it_is_used(tmp_path: Path) -> None:
    draw(0, 0).save(tmp_path / "a.png")
    (tmp_path / "a.png").rename(tmp_path / " a.png ")
    (photo,) = read_catalogue(table(tmp_path, " a.png ,kiwi"))
    assert (photo.photo_id, photo.path) == (" a.png ", tmp_path / " a.png ")


def test_empty_rows_are_passed_over_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    assert len(read_catalogue(table(tmp_path, "a.jpg;kiwi", ";", " ;", ";;", header="path;item_id;;"))) == 1
    with pytest.raises(DataError, match="line 4: path or item_id is empty"):
        read_catalogue(table(tmp_path, ",", "", "a.jpg,"))


@pytest.mark.parametrize(
    ("first", "separator"), [("sep=;", ";"), ("SEP=,\r", ","), ('"sep=|"', "|"), ("\ufeffsep=\t", "\t")]
)
def test_the_separator_line_of_excel_is_understood(tmp_path: Path, first: str, separator: str) -> None:
    path = table(tmp_path, f"path{separator}item_id", f"a.jpg{separator}kiwi", f"{separator}lime", header=first)
    with pytest.raises(DataError, match="line 4: path or item_id is empty"):
        read_catalogue(path)
    path.write_text(path.read_text().replace("lime", ""))
    assert [photo.item_id for photo in read_catalogue(path)] == ["kiwi"]


@pytest.mark.parametrize("above", ["\n \n", ";;\n", '"";""\n', "\ufeff;\nsep=;\n;\n"])
@pytest.mark.parametrize("header", ["path;item_id", "\u00a0Path;\ufeffItem_ID\u200b"])
def test_empty_rows_above_the_header_are_passed_over_and_lines_keep_their_numbers(
    tmp_path: Path, above: str, header: str
) -> None:
    path = table(tmp_path, "a.jpg;kiwi", "b.jpg;", header=above + header)
    with pytest.raises(DataError, match=f"line {above.count(chr(10)) + 3}: path or item_id is empty"):
        read_catalogue(path)


@pytest.mark.parametrize("suffix", [".xlsx", ".xls", ".xlsb", ".ods", ".csv"])
def test_a_spreadsheet_is_refused_with_the_format_to_save(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"t{suffix}").write_bytes(b"PK\3\4")
    with pytest.raises(DataError, match="Save it as CSV UTF-8"):
        read_catalogue(tmp_path / f"t{suffix}", labels=Labels())


def test_missing_ids_are_described_with_the_nearest_ones() -> None:
    assert describe_missing({"1001.0": 2, "sku-7": 1, "zzz": 1}, ["1001", "2002", "SKU-7"]) == [
        "'1001.0' (2 photos; near '1001')",
        "'sku-7' (1 photo; near 'SKU-7')",
        "'zzz' (1 photo)",
    ]


@pytest.mark.parametrize(
    ("written", "meant"), [("1001.0", "1001"), ("01002", "1002"), ("0010.00", "10"), ("7.0", "7.0")]
)
def test_the_id_that_is_nearest_to_a_number_is_the_same_number(written: str, meant: str) -> None:
    items = {"1001", "1010", "1002", "1020", "10", "100", "7.0", "0", "70"}
    assert nearest([written], items) == {written: f"near {meant!r}"}
