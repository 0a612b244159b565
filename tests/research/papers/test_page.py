"""docs/papers.md and the command: nothing of the papers is forgotten, and what is printed is what was measured."""

from __future__ import annotations

import json
import re
import shlex
import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from research.datasets import read_dataset
from research.papers.cli import research
from research.papers.configuration import Configuration
from research.papers.effort import estimated_time
from research.papers.listing import configurations, find
from research.papers.page import render_page
from research.papers.results import Results
from research.papers.runner import check, datasets_of, run
from research.papers.runs import Options
from retrieval.cli.main import main
from retrieval.errors import DataError, InvalidParameter

from ...conftest import ROOT
from ...miniature import write_cub, write_sop

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


def test_a_catalogue_in_the_place_of_the_sets_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "cub.csv").write_text("path,item_id\n")
    assert datasets_of(ALL["tcm-table-2"], Options(tmp_path / "cub.csv", tmp_path)) == ["cub.csv"]
    assert datasets_of(ALL["tcm-table-2"], Options(tmp_path, tmp_path)) == ["inat"]


def test_sets_that_data_lacks_are_left_out_and_named(tmp_path: Path) -> None:
    folder = write_cub(tmp_path, classes=6, photos=4)
    arguments = ["run", "contextual-table-10", "--smoke-test", "-o", str(tmp_path / "papers"), "--data"]
    ran = CliRunner().invoke(research, [*arguments, str(folder)])
    assert ran.exit_code == 0, ran.output
    assert f"{folder} does not contain cars, sop: only cub will run." in ran.output
    assert "Not run: cars, sop." in (tmp_path / "papers" / "contextual-table-10" / "results.md").read_text()
    asked = CliRunner().invoke(research, [*arguments, str(folder), "--dataset", "cars"])
    assert isinstance(asked.exception, DataError)
    assert "does not contain cars" in str(asked.exception)


def test_a_set_that_is_not_whole_is_refused_before_another_trains(tmp_path: Path) -> None:
    write_cub(tmp_path, classes=6, photos=4)
    photos = read_dataset("sop", write_sop(tmp_path, classes=6, photos=4))
    photos[-1].path.unlink()
    options = Options(tmp_path, tmp_path / "papers", smoke_test=True)
    assert datasets_of(ALL["contextual-table-10"], options) == ["cub", "sop"]
    with pytest.raises(DataError, match="1 of the 48 photos"):
        run(ALL["contextual-table-10"], options)
    with pytest.raises(DataError, match="strange photos"):
        run(ALL["contextual-figure-6"], options)
    assert not (tmp_path / "papers" / "runs").exists()


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of the rows of each table of the page that has this heading."""
    parts = render_page().split(f"| {heading} |\n")[1:]
    tables = [part.split("\n\n")[0].splitlines()[1:] for part in parts]
    return [line.strip("| ").split(" | ") for table in tables for line in table]


def arguments_of(command: str) -> dict[str, Any]:
    """Return what the command line makes of `retrieval research run ...`; an unknown option fails."""
    program, group, verb, *arguments = shlex.split(command.strip("`"))
    assert (program, group, verb) == ("retrieval", "research", "run")
    with research.commands["run"].make_context(verb, arguments) as context:
        return dict(context.params)


def test_each_row_has_a_status_and_a_command_that_the_command_line_takes(tmp_path: Path) -> None:
    rows = rows_of("item | shows | command | measured here")
    assert len(rows) == 80
    assert all(re.match(r"\*\*(not )?shown|not run: needs |nothing to run", row[3]) for row in rows)
    given = [arguments_of(row[2]) for row in rows if row[2] != "-"]
    assert sorted(each["name"] for each in given) == sorted(ALL)
    for each in given:
        entry = find(each["name"])
        assert (each["data"] == Path("DATA")) == bool(entry.datasets)
        assert (each["strangers"] is not None) == (entry.name == "contextual-figure-6")
        check(entry, Options(tmp_path, each["output"]), entry.datasets)


def test_each_claim_has_a_verdict_and_a_command_that_exists() -> None:
    rows = rows_of("paper: claim | here | command")
    assert {row[0].split(":")[0] for row in rows} == {"TCM", "Mean field", "Contextual", "EL-nivMF"}
    for _, verdict, command in rows:
        assert re.match(r"(not |partly )?shown|not run$", verdict)
        if command.startswith("`python -m "):
            assert find_spec(command.strip("`").removeprefix("python -m ")) is not None
        else:
            assert (arguments_of(command)["data"] == Path("DATA")) == (verdict == "not run")


@pytest.mark.parametrize("smoke_test", [True, False])
def test_results_of_a_smoke_test_have_no_interval_and_no_note(smoke_test: bool) -> None:
    entry = Configuration("table", ("Table 1",), "Recall.", metrics=("R@1",), note="100 epochs here.")
    results = Results(entry, {"mine.csv": {"tcm": {"R@1": [50.0, 60.0]}}}, {"smoke_test": smoke_test})
    text, row = results.to_markdown(), results.to_dict()["results"]["mine.csv"]["tcm"]["R@1"]
    assert ("±" in text, "100 epochs" in text, row["half_width"] is None) == (
        not smoke_test,
        not smoke_test,
        smoke_test,
    )
    assert "## mine.csv" in text


def test_time_on_a_gpu_grows_with_trainings_and_is_told_of_each_row_that_was_not_run() -> None:
    assert estimated_time(ALL["tcm-table-2"]) == "about 8 days"  # 8 trainings of 100 epochs of 325,846 photos
    assert estimated_time(ALL["vmf-figure-11"]) == "under an hour"
    assert estimated_time(ALL["tcm-figure-7"]) == ""  # computed, not trained
    rows = [line for line in render_page().splitlines() if "not run: " in line]
    assert all(("on one GPU" in row) != ("trains nothing" in row) for row in rows)


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
