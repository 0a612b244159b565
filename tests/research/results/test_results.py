"""The documentation shows the measured figures of the records, and nothing else."""

from __future__ import annotations

from research.results import RESULTS, read_record
from research.results.render import pages, render, shown

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
        assert record.commit
        assert len(record.code) == 12 or record.code == "unknown"
        assert set(record.machine) == {"cores", "kind"}
        assert record.to_json() == (RESULTS / f"{name}.json").read_text(encoding="utf-8")
