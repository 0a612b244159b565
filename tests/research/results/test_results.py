"""The documentation shows the measured figures of the records, and nothing else."""

from __future__ import annotations

import pytest

from research.results import RESULTS, Record, Table, cell, read_record
from research.results.render import pages, render, shown
from retrieval.errors import DataError

NAMES = sorted(path.stem for path in RESULTS.glob("*.json"))


def test_pages_show_what_was_measured() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        assert render(text) == text, f"{page.name}: run `make tables`"


def test_every_measured_table_is_on_a_page() -> None:
    on_pages = {address for page in pages() for address in shown(page.read_text(encoding="utf-8"))}
    measured = {(name, table.name) for name in NAMES for table in read_record(name).tables}
    assert measured - on_pages == {("papers", "papers")}  # docs/papers.md is made of it, row by row
    assert on_pages <= measured


def test_records_are_complete_and_written_as_they_are_read() -> None:
    for name in NAMES:
        record = read_record(name)
        assert record.name == name
        assert record.command
        assert record.date
        assert set(record.machine) == {"cores", "kind"}
        assert record.to_json() == (RESULTS / f"{name}.json").read_text(encoding="utf-8")


def test_a_changed_figure_changes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record("x", "make x", "2026-01-02", {"cores": 2, "kind": "a processor"}, {}, [Table("t", ("loss", "R@1"))])
    record.tables[0].add("tcm", "0.5")
    monkeypatch.setattr("research.results.record.read_record", lambda name: record)
    monkeypatch.setattr("research.results.render.read_record", lambda name: record)
    text = render("<!-- facts: x -->old<!-- end --> R@1 <!-- cell: x / t / tcm / R@1 -->0.4<!-- end -->")
    assert "Measured with `make x` on 2026-01-02 (2 cores, a processor)." in text
    assert "R@1 <!-- cell: x / t / tcm / R@1 -->0.5<!-- end -->" in text
    assert "old" not in text
    assert "| tcm | 0.5 |" in render("<!-- table: x / t --><!-- end -->")


def test_an_unknown_figure_lists_what_there_is() -> None:
    with pytest.raises(DataError, match="grocery has no table 'seen', only unseen, trained"):
        cell("grocery", "seen", "ArcFace", "R@1")
    with pytest.raises(DataError, match="no row 'Arc', only Smooth-AP"):
        cell("grocery", "unseen", "Arc", "R@1")
    with pytest.raises(DataError, match="no column 'R@2', only loss, R@1"):
        cell("grocery", "unseen", "ArcFace", "R@2")
    with pytest.raises(DataError, match="has 1 parts"):
        render("<!-- table: grocery --><!-- end -->")
    with pytest.raises(DataError, match="2 columns, got a row of 1"):
        Table("t", ("loss", "R@1")).add("tcm")
