"""`retrieval explain` on a tiny run: what it counts, the same sheet twice, and odd catalogues."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from retrieval.cli.main import group
from retrieval.errors import DataError, RunError
from training.evaluation.errors import FALSE_MATCH, KINDS
from training.evaluation.explain import Explanation, explain_run
from training.evaluation.report import evaluate_run
from training.loop.run import Run

pytestmark = pytest.mark.slow

Row = dict[str, str]
NASTY = "</script><script>alert('{}')</script>\"'&<b>{}"


def changed_run(
    run: Run,
    folder: Path,
    *,
    keep: Callable[[Row], bool] = lambda _: True,
    rename: Callable[[str], str] = lambda item: item,
    broken: Callable[[Row], bool] = lambda _: False,
    group_of: Callable[[Row], str] = lambda _: "",
) -> Run:
    """Return a copy of a run whose catalogue holds some rows, other item_ids, and files that are no images.

    Its groups hold two items that do not match each other, so they are left out if no other ones are given.
    """
    catalogue = Path(run.settings.catalogue)
    shutil.copytree(run.path, folder / "run")
    with catalogue.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if keep(row)]
    for row in rows:
        row["path"] = str(catalogue.parent / row["path"])
        if broken(row):
            bad = folder / Path(row["path"]).name
            bad.write_bytes(b"no image")
            row["path"] = str(bad)
        row["item_id"] = rename(row["item_id"])
        row["group"] = group_of(row)
    with (folder / "photos.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for name, change in (
        ("settings", lambda values: values | {"catalogue": str(folder / "photos.csv")}),
        ("splits", lambda values: values | {"parts": {k: [rename(i) for i in v] for k, v in values["parts"].items()}}),
    ):
        path = folder / "run" / f"{name}.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
    return Run.open(folder / "run")


@pytest.fixture(scope="module")
def copy(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return changed_run(run, tmp_path_factory.mktemp("explain"))


@pytest.fixture(scope="module")
def explained(copy: Run) -> Explanation:
    return explain_run(copy, worst=4, progress=False)


def test_searches_are_those_of_evaluate_and_figures_count_them(copy: Run) -> None:
    report = evaluate_run(copy)
    told = explain_run(copy, progress=False).to_dict()
    assert told["queries"] == report["mixed"]["unfitted"]["queries"]
    assert told["items"] == report["mixed"]["unfitted"]["items"]
    assert told["outcomes"]["found"] / told["queries"] == pytest.approx(told["rates"]["TPIR"])


def test_sheet_shows_every_wrong_answer_and_loads_nothing(copy: Run, explained: Explanation) -> None:
    page = explained.sheet().html()
    assert page == explain_run(copy, worst=4, progress=False).sheet().html()
    wrong = [answer for kind in KINDS for answer in explained.worst[kind]]
    assert 0 < len(wrong) == page.count('<div class="card">')
    assert all(source.startswith("data:image/jpeg;base64,") for source in re.findall(r'(?:src|href)="([^"]*)', page))
    assert "<script" not in page
    for answer in wrong:
        assert answer.photo.photo_id in page
        for found in (answer.other, answer.own):
            if found is not None:
                text = "a match" if found[1] <= explained.threshold else "too far"
                assert f"{found[1]:.4f}, {text}" in page
    assert f"{explained.threshold:.4f}" in page


def test_items_of_one_group_are_no_false_matches_of_each_other(copy: Run, run: Run, tmp_path: Path) -> None:
    """The four test items are of two groups."""
    grouped = changed_run(run, tmp_path, group_of=lambda row: row["group"])
    before, after = (explain_run(each, progress=False) for each in (copy, grouped))
    assert after.threshold >= before.threshold
    assert before.counts[FALSE_MATCH] > 0
    assert after.counts[FALSE_MATCH] == 0
    single, grouped_too = (evaluate_run(each)["mixed"]["unfitted"]["TPIR"] for each in (copy, grouped))
    assert single != grouped_too


def test_calibration_items_of_one_group_show_no_errors(run: Run, tmp_path: Path) -> None:
    """No search among them returns a wrong item, so that nothing would be too far."""
    one = changed_run(run, tmp_path, group_of=lambda row: row["item_id"] if row["item_id"] in run.splits.fit else "all")
    with pytest.raises(DataError, match="all of one group"):
        explain_run(one, progress=False)


def test_names_of_a_catalogue_stay_text(run: Run, tmp_path: Path) -> None:
    hostile = changed_run(run, tmp_path, rename=lambda item: NASTY.format(item, item))
    page = explain_run(hostile, progress=False).sheet().html()
    assert "alert(" in page
    assert "<script" not in page
    assert "<b>item-" not in page


def test_unreadable_photo_is_named(run: Run, tmp_path: Path) -> None:
    item = run.splits.test[0]
    odd = changed_run(run, tmp_path, broken=lambda row: row["item_id"] == item and row["path"].endswith("_1.png"))
    with pytest.raises(DataError, match=r"_1\.png"):
        explain_run(odd, progress=False)


def test_command_writes_the_sheet_and_json(copy: Run, tmp_path: Path) -> None:
    own = shutil.copytree(copy.path, tmp_path / "run")
    done = CliRunner().invoke(group, ["explain", str(own), "--worst", "2"], catch_exceptions=False)
    assert done.exit_code == 0
    assert (own / "errors.html").read_text().startswith("<!doctype html>")
    assert f"Wrote {own / 'errors.html'}" in done.output
    page = tmp_path / "other.html"
    words = ["explain", str(own), "--json", "-o", str(page)]
    told = json.loads(CliRunner().invoke(group, words, catch_exceptions=False).stdout)
    assert (told["page"], set(told["worst"])) == (str(page), set(KINDS))
    assert page.exists()
    with pytest.raises(IsADirectoryError):
        CliRunner().invoke(group, ["explain", str(own), "-o", str(tmp_path)], catch_exceptions=False)
    with pytest.raises(RunError, match="is not a training run"):
        CliRunner().invoke(group, ["explain", str(tmp_path)], catch_exceptions=False)
