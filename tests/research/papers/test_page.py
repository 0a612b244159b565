"""docs/papers.md and the command: nothing of the papers is forgotten, and what is printed is what was measured."""

from __future__ import annotations

import json
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
from click.testing import CliRunner

from research.papers.cli import research
from research.papers.listing import configurations
from research.papers.page import render_page
from retrieval.cli.main import main
from retrieval.errors import InvalidParameter

from ...conftest import ROOT

ALL = configurations()


def test_the_page_is_made_of_the_configurations() -> None:
    assert (ROOT / "docs" / "papers.md").read_text() == render_page()


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
