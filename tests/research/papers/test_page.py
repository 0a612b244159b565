"""docs/papers.md and the command: nothing of the papers is forgotten, and what is printed is what was measured."""

from __future__ import annotations

import json
import re
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
from click.testing import CliRunner

from research.papers.cli import research
from research.papers.listing import PAPERS, configurations, find
from research.papers.page import render_page
from research.papers.results import Results, half_width
from retrieval.cli.main import main
from retrieval.errors import InvalidParameter

from ...conftest import ROOT

ALL = configurations()
ITEMS = {  # what the papers' texts mention; the text of the last has no Table 3 and no Figure 7
    "tcm": ("threshold-consistent-margin", range(1, 12), range(1, 11)),
    "mean-field": ("mean-field", range(1, 12), range(1, 5)),
    "contextual": ("contextual-similarity", range(1, 11), range(1, 30)),
    "vmf": ("non-isotropic-vmf", (1, 2, 4, 5), (*range(1, 7), *range(8, 12))),
}
NOTHING = {"tcm": {"Figure 4"}, "mean-field": {"Figure 1"}, "vmf": {"Figure 1"}} | {
    "contextual": {"Figure 1", "Figure 5", "Figure 10"}
}


def test_every_item_of_the_papers_has_a_configuration_or_a_reason() -> None:
    page = (ROOT / "docs" / "papers.md").read_text()
    sections = dict(zip(ITEMS, re.split(r"^## ", page, flags=re.MULTILINE)[1:], strict=True))
    for key, (_, tables, figures) in ITEMS.items():
        paper = PAPERS[key]
        wanted = {f"Table {n}" for n in tables} | {f"Figure {n}" for n in figures}
        runs_here = {item for entry in paper.configurations for item in entry.items}
        assert runs_here | set(paper.nothing_to_run) == wanted
        assert set(paper.nothing_to_run) == NOTHING[key] == wanted - runs_here
        listed = {
            item for line in sections[key].splitlines() if line[:2] == "| " for item in line.split("|")[1].split(",")
        }
        assert {item.strip() for item in listed} >= wanted
        assert all(f"research run {entry.name} " in sections[key] for entry in paper.configurations)


def test_the_page_is_made_of_the_configurations() -> None:
    assert (ROOT / "docs" / "papers.md").read_text() == render_page()


def test_the_table_shows_the_papers_number_beside_ours() -> None:
    entry = find("tcm-table-10")
    cells = {"sop": {"DINOv2": {"R@1": [83.0, 85.0], "OPIS": [0.9, 0.9]}}}
    text = Results(entry, cells, {"changes": {"epochs": 2}}).to_markdown()
    assert "| DINOv2 | 84 ± 13 [84] | 0.9 ± 0 [0.93] |" in text
    assert '{"epochs": 2}' in text
    assert half_width([1.0]) is None


def test_the_command_lists_shows_and_runs(tmp_path: Path) -> None:
    listed = CliRunner().invoke(research, ["list"])
    assert all(name in listed.output for name in ALL)
    assert json.loads(CliRunner().invoke(research, ["list", "--json"]).output)["tcm-table-2"] == ["Table 2"]
    shown = CliRunner().invoke(research, ["show", "contextual-table-1"])
    assert "contextual_corrected" in shown.output
    ran = CliRunner().invoke(research, ["run", "tcm-figure-7", "-o", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert "greatest utility" in (tmp_path / "tcm-figure-7" / "results.md").read_text()
    wrong = CliRunner().invoke(research, ["run", "tcm-table-7", "-o", str(tmp_path), "--set", "epochs"])
    assert isinstance(wrong.exception, InvalidParameter)


def test_without_a_checkout_the_command_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Absent(MetaPathFinder):
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name == "research":
                raise ModuleNotFoundError("No module named 'research'", name=name)

    for name in [name for name in sys.modules if name.partition(".")[0] == "research"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    monkeypatch.setattr(sys, "argv", ["retrieval", "research", "list"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.strip().splitlines() == [
        "error: `retrieval research` needs a checkout of the repository: the installed package has no research/"
    ]
