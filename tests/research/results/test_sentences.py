"""Sentences of the documentation: words, counts and ranges of records, and the digests of what was read."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.results import RESULTS, Table, read_record
from research.results.render import DOCS, MARKER, documents, pages
from research.results.sentences import READ, count, digest, mark_as_read, number, span, stale, verdict, word
from retrieval.errors import DataError

TABLE = Table(
    "changes",
    ("set", "change", "answer"),
    [
        ("cars, tcm", "-39% [-48%, -28%]", "yes"),
        ("cars, none", "+0.004 [-0.002, +0.011]", "not decided by this data"),
        ("birds, tcm", "-0.013 [-0.024, -0.000]", "no"),
        ("birds, none", "+0.029 [+0.006, +0.052]", "no"),
    ],
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-0.013 [-0.024, -0.000]", "lower"),  # rounded, but below 0
        ("+0.000 [+0.000, +0.008]", "not decided"),
        ("−39 % [−48 %, −28 %]", "lower"),
        ("+0.029 [+0.006, +0.052]", "higher"),
        ("not decided by this data: R@1 hardly rises", "not decided"),
        ("no", "no"),
    ],
)
def test_word_of_a_figure_is_what_its_interval_shows(text: str, expected: str) -> None:
    assert word(text) == expected


def test_word_of_a_figure_without_an_interval_is_refused() -> None:
    with pytest.raises(DataError, match="neither yes"):
        word("0.714")


def test_verdict_of_equal_rows_is_one_word_and_of_others_a_count() -> None:
    assert verdict(TABLE, "birds, *", "answer") == "no"
    assert verdict(TABLE, "*", "answer") == "2 no, 1 yes, 1 not decided"
    assert verdict(TABLE, "birds, tcm", "change") == "lower"


@pytest.mark.parametrize(
    ("condition", "expected"), [("< 0", "2 of 4"), ("> 0", "2 of 4"), ("lower", "2 of 4"), ("higher", "1 of 4")]
)
def test_count_meets_words_and_bounds(condition: str, expected: str) -> None:
    assert count(TABLE, "*", "change", condition) == expected


def test_range_keeps_signs_and_units() -> None:
    table = Table("rates", ("set", "rate"), [("a", "6.2%"), ("b", "-1.6%"), ("c", "–"), ("d", "1,234 ± 5")])
    assert span(table, "[abc]", "rate") == "-1.6% to 6.2%"
    assert span(table, "*", "rate") == "-1.6% to 1,234"
    assert number("−0.5 [−1, 0]") == -0.5


def test_rows_that_no_table_has_are_refused() -> None:
    with pytest.raises(DataError, match="no row 'dogs"):
        verdict(TABLE, "dogs, *", "answer")


def test_a_paragraph_is_stale_until_it_was_read_after_its_record_changed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("One.\n<!-- read: grocery 00000000 -->\n\nTwo. <!-- read: demo -->\n", encoding="utf-8")
    assert [place.split(" ")[0] for place in stale(page)] == ["page.md:2:", "page.md:4:"]
    mark_as_read(page)
    assert list(stale(page)) == []
    assert f"<!-- read: grocery {digest('grocery')} -->" in page.read_text(encoding="utf-8")


def test_paragraphs_were_read_after_their_records_changed() -> None:
    places = [place for page in documents() for place in stale(page)]
    assert places == [], "read these paragraphs beside their tables, then run `python -m research.results PAGE ...`"


def test_every_page_was_read_beside_each_of_its_records() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        shown = {found[2].split(" / ")[0] for found in MARKER.finditer(text)}
        missing = shown - {found[1] for found in READ.finditer(text)}
        assert not missing, f"{page.name}: end the paragraphs that speak of {missing} with <!-- read: NAME -->"


def test_every_record_of_the_page_of_results_was_read_beside_it() -> None:
    read = {found[1] for found in READ.finditer((DOCS / "results.md").read_text(encoding="utf-8"))}
    template = (RESULTS / "results.md.jinja").read_text(encoding="utf-8")
    assert {name for name in (path.stem for path in RESULTS.glob("*.json")) if f'"{name} / ' in template} <= read
    assert all(read_record(name).tables for name in read)
