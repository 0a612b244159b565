"""The documentation shows the measured figures of the records, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.results import RESULTS, Record, Table, pictures, read_record
from research.results import render as rendering
from research.results.pictures import PICTURES, mark, tables, write_pictures
from research.results.render import DOCS, pages, render, results_page, shown
from training.export.pretrained import ONE_FOR_ALL

NAMES = sorted(path.stem for path in RESULTS.glob("*.json"))


def test_pages_show_what_was_measured() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        assert render(text) == text, f"{page.name}: run `make tables`"


def test_text_is_shown_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("printed", ("line",), [("5 %  of | all",), ("  <- this",)])
    monkeypatch.setattr(rendering, "read_record", lambda _: Record("promise", "", "", "", {}, {}, [table]))
    marked = "<!-- text: promise / printed -->{}<!-- end -->"
    page = f"Printed:\n{marked}\nThen more."
    rendered = render(page.format("old"))
    assert rendered == page.format("\n\n```\n5 %  of | all\n  <- this\n```\n\n")
    assert render(rendered) == rendered
    assert list(shown(rendered)) == [("promise", "printed")]


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_of_todays_records_and_shown(name: str) -> None:
    text = (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
    assert text.startswith(mark(name)), "run `make tables`"
    assert "</svg>" in text
    assert any(f"pictures/{name}.svg" in page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))


def test_a_picture_is_drawn_again_only_after_its_figures_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {path.stem for path in write_pictures(tmp_path)} == set(PICTURES)
    assert write_pictures(tmp_path) == []
    changed = tables(["endpoint / parts"])[0]
    other = type(changed)(changed.name, changed.columns, [(changed.rows[0][0], "123.40"), *changed.rows[1:]])
    monkeypatch.setattr(
        pictures, "tables", lambda each: [other] if tuple(each) == ("endpoint / parts",) else tables(each)
    )
    assert write_pictures(tmp_path) == [tmp_path / "parts.svg"]
    assert "123.4" in (tmp_path / "parts.svg").read_text()


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
        assert set(record.machine) == {"cores", "kind"}
        assert record.to_json() == (RESULTS / f"{name}.json").read_text(encoding="utf-8")


def test_the_threshold_of_the_default_pretrained_model_is_the_measured_one() -> None:
    measured = read_record("item_distance").table("one threshold")
    assert f"{ONE_FOR_ALL.threshold:.3f}" == measured.cell("all, item distance", "threshold")
    sizes = [
        column for column in measured.columns[2:] if int(column.split()[0]) >= (ONE_FOR_ALL.basis.least_items or 0)
    ]
    assert sizes == ["200 items", "400 items", "1000 items"]
    rows = [dict(zip(measured.columns, row, strict=True)) for row in measured.rows if row[0].endswith("item distance")]
    realised = [float(row[size]) for row in rows for size in sizes if row[size] != "–"]
    assert ONE_FOR_ALL.basis.fpir_range == (min(realised), max(realised))


def test_the_page_of_results_shows_what_was_measured() -> None:
    assert results_page() == (DOCS / "results.md").read_text(encoding="utf-8"), "run `make tables`"


def test_the_page_of_results_takes_its_figures_from_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "cell", lambda *address: f"[{' / '.join(address)}]")
    assert "[endpoint / search in process / p50, 1 client / ours]" in results_page()
