"""`retrieval explain` on a tiny run: the same threshold as `evaluate`, the same answer twice, and odd catalogues."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from retrieval.cli.main import group
from retrieval.errors import DataError, InvalidParameter, RunError
from training.evaluation.report import evaluate_run
from training.explain.page import explain_page
from training.explain.photos import SIDE, TILE
from training.explain.run import ExplainedRun, explain_run
from training.explain.summary import render, to_dict
from training.loop.run import Run

from .explain_world import Page, changed_run

pytestmark = pytest.mark.slow

NASTY = "</script><script>alert('{}')</script>\"'&<b>{}"


@pytest.fixture(scope="module")
def copy(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return the tiny run on its own, not evaluated."""
    return changed_run(run, tmp_path_factory.mktemp("explain"))


@pytest.fixture(scope="module")
def explained(copy: Run) -> ExplainedRun:
    return explain_run(copy, worst=4, progress=False)


@pytest.fixture(scope="module")
def page(explained: ExplainedRun) -> Page:
    return Page(explain_page(explained))


def test_the_figures_are_those_of_evaluate(copy: Run, explained: ExplainedRun, tmp_path: Path) -> None:
    assert explained.threshold_from == "calibration items"
    own = Run(shutil.copytree(copy.path, tmp_path / "run"))
    report = evaluate_run(own)
    for split in ("unseen", "trained", "mixed"):
        told = to_dict(explain_run(own, split=split, progress=False))
        assert told["threshold_from"] == "evaluation.json"
        assert told["threshold"] == report["threshold"] == explained.explanation.threshold
        assert {name: report["splits"][split][name] for name in told["rates"]} == told["rates"]
        assert (told["queries"], told["items"]) == (
            report["splits"][split]["queries"],
            report["splits"][split]["items"],
        )
        assert told["utilities"]["OPIS"] == report["splits"][split]["OPIS"]
        assert told["notes"] == []


def test_the_served_distance_is_that_of_evaluate(copy: Run, tmp_path: Path) -> None:
    own = Run(shutil.copytree(copy.path, tmp_path / "run"))
    before = to_dict(explain_run(own, distance="served", progress=False))
    report = evaluate_run(own)["served"]
    after = to_dict(explain_run(own, distance="served", progress=False))
    assert before["threshold"] == after["threshold"] == report["threshold"]
    for told in (before, after):
        assert told["rates"] == {name: report["splits"]["unseen"][name] for name in told["rates"]}


def test_the_same_run_gives_the_same_page(copy: Run, explained: ExplainedRun) -> None:
    assert explain_page(explain_run(copy, worst=4, progress=False)) == explain_page(explained)


def test_the_page_is_whole_and_loads_nothing(explained: ExplainedRun, page: Page) -> None:
    assert page.open == []
    for _, attrs in page.elements:
        for name in ("src", "href", "xlink:href", "action", "srcset", "poster"):
            assert attrs.get(name, "#").startswith(("#", "data:image/jpeg;base64,"))
    assert not [attrs for _, attrs in page.elements if any(name.startswith("on") for name in attrs)]
    assert [tag for tag, attrs in page.elements if tag in ("link", "iframe", "object", "embed", "base")] == []
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["href"][1:] for attrs in page.all("a")} <= set(ids)
    assert all(attrs.get("alt") or "hidden" in attrs for attrs in page.all("img"))


def test_the_page_shows_what_was_found(explained: ExplainedRun, page: Page) -> None:
    found, text = explained.explanation, " ".join(page.text)
    worst = [query for queries in found.worst.values() for query in queries]
    assert 0 < len(worst) <= 12
    assert len(page.all("article", "query")) == len(worst)
    cards = sum(1 + (query.own is not None) + len(query.neighbours) for query in worst)
    assert len(page.all("figure", "card")) == cards
    for query in worst:
        assert explained.photos[query.photo].photo_id in text
        for one in query.neighbours:
            assert f"{one.distance:.3f}, {'a match' if one.accepted else 'too far'}" in text
    assert len(page.all("article", "pair")) == len(found.confused)
    assert len(page.all("polyline", "curve")) == len(page.all("polyline", "mean")) == 4  # all four items
    for one in found.utilities.items if found.utilities else ():
        assert f"utility {one.utility:.3f}" in text
    assert f"{found.threshold:.4f}" in text


def test_the_map_holds_every_photo_of_the_scene(explained: ExplainedRun, page: Page) -> None:
    data, outcomes = page.data, explained.explanation.outcomes
    count = len(explained.map.photos)
    columns = ("x", "y", "kind", "item", "photo", "tile", "own", "other", "otherItem")
    assert {len(data[name]) for name in columns} == {count}
    assert count == len(np.union1d(explained.explanation.split.queries, explained.explanation.split.gallery))
    kinds = np.bincount(data["kind"], minlength=5)
    assert kinds[3] == outcomes.count("missed")
    assert kinds[4] == outcomes.count("misidentified")
    assert kinds[2] == (outcomes.false_alarm & (outcomes.kind == 0)).sum()
    assert kinds.sum() - kinds[0] == len(explained.explanation.split.queries)
    assert sorted(data["tile"]) == list(range(count))  # all have a picture
    ids = {photo.photo_id: photo.item_id for photo in explained.photos}
    assert [ids[photo] for photo in data["photo"]] == [data["items"][item] for item in data["item"]]


def test_names_of_a_catalogue_stay_text(run: Run, tmp_path: Path) -> None:
    hostile = changed_run(run, tmp_path, rename=lambda item: NASTY.format(item, item))
    explained = explain_run(hostile, split="mixed", progress=False)
    text = explain_page(explained)
    page = Page(text)
    assert page.open == []
    assert [attrs.get("type", "") for attrs in page.all("script")] == ["application/json", ""]
    assert "<b>item-" not in text
    assert NASTY.format("item-00", "item-00") in page.data["items"]
    assert any("alert('item-" in shown for shown in page.text)
    assert any(attrs["alt"].startswith("Photo of </script><script>") for attrs in page.all("img") if attrs["alt"])


def test_a_photo_that_cannot_be_read_is_left_out_and_named(run: Run, tmp_path: Path) -> None:
    item = run.splits.test[0]
    odd = changed_run(run, tmp_path, broken=lambda row: row["item_id"] == item and row["path"].endswith("_1.png"))
    explained = explain_run(odd, progress=False)
    assert len(explained.unreadable) == 1
    photo_id, reason = explained.unreadable[0]
    assert photo_id.endswith("_1.png")
    assert "not a JPEG" in reason
    page = Page(explain_page(explained))
    assert any("1 photo could not be read and is left out" in text and photo_id in text for text in page.text)
    assert photo_id not in page.data["photo"]
    assert f"  {photo_id}: " in render(explained)


def test_when_none_can_be_read_that_is_an_error(run: Run, tmp_path: Path) -> None:
    tests = set(run.splits.test)
    odd = changed_run(run, tmp_path, broken=lambda row: row["item_id"] in tests)
    with pytest.raises(DataError, match=r"no query photo of the unseen items can be read"):
        explain_run(odd, progress=False)


def test_items_of_one_photo_are_no_obstacle(run: Run, tmp_path: Path) -> None:
    tests = set(run.splits.test)
    single = changed_run(run, tmp_path, keep=lambda row: row["item_id"] not in tests or "_0." in row["path"])
    splits = json.loads((single.path / "splits.json").read_text())
    splits["protocol"] = {"gallery_source": "a", "query_source": "a"}  # each photo asks all the others
    (single.path / "splits.json").write_text(json.dumps(splits))
    explained = explain_run(single, progress=False)
    told = to_dict(explained)
    assert told["outcomes"]["unmated"] == told["queries"] == len(tests)
    assert told["rates"]["TPIR"] is None
    assert told["utilities"] is None
    assert len(told["notes"]) == 2
    page = Page(explain_page(explained))
    assert any("so that misses cannot be measured" in text for text in page.text)
    json.dumps(told, allow_nan=False)


def test_figures_of_another_checkpoint_are_noticed(copy: Run, explained: ExplainedRun, tmp_path: Path) -> None:
    own = Run(shutil.copytree(copy.path, tmp_path / "run"))
    split = {"FPIR": 0.9, "TPIR": explained.explanation.rates.tpir, "queries": len(explained.explanation.split.queries)}
    measured = {"threshold": explained.explanation.threshold, "target_fpir": 0.05, "splits": {"unseen": split}}
    (own.path / "evaluation.json").write_text(json.dumps(measured))
    told = explain_run(own, progress=False)
    assert len(told.notes) == 1
    assert "FPIR 0.9, here" in told.notes[0]
    assert "run `retrieval evaluate RUN` again" in told.notes[0]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"threshold": "high", "target_fpir": 0.05}'])
def test_a_spoilt_evaluation_is_refused(copy: Run, tmp_path: Path, text: str) -> None:
    own = Run(shutil.copytree(copy.path, tmp_path / "run"))
    (own.path / "evaluation.json").write_text(text)
    with pytest.raises(RunError, match=r"evaluation\.json cannot be used.*retrieval evaluate"):
        explain_run(own, progress=False)


def test_an_unknown_scene_or_distance_is_refused(copy: Run) -> None:
    with pytest.raises(InvalidParameter, match="unseen, trained, mixed"):
        explain_run(copy, split="all", progress=False)
    with pytest.raises(InvalidParameter, match="plain, served"):
        explain_run(copy, distance="cosine", progress=False)


def test_pictures_are_what_the_model_sees(explained: ExplainedRun) -> None:
    with Image.open(io.BytesIO(explained.pictures(3))) as image:
        assert (image.size, image.format) == ((SIDE, SIDE), "JPEG")
        assert image.getexif() == {}
    sheet, columns = explained.pictures.sheet([0, 1, 2, 3, 4])
    with Image.open(io.BytesIO(sheet)) as image:
        assert columns == 3
        assert image.size == (3 * TILE, 2 * TILE)


def test_the_size_of_a_page_is_bounded(copy: Run, page: Page) -> None:
    largest = Page(explain_page(explain_run(copy, split="mixed", worst=50, progress=False)))
    pictures = largest.all("img")
    assert page.size < largest.size
    assert len(pictures) <= 3 * 50 * 6 + 12 * 6 + 12 * 4 + 1
    assert all(len(attrs["src"]) < 20_000 for attrs in pictures if "hidden" not in attrs)


def test_the_command_line(copy: Run, tmp_path: Path) -> None:
    own = shutil.copytree(copy.path, tmp_path / "run")
    done = CliRunner().invoke(group, ["explain", str(own), "--worst", "2"], catch_exceptions=False)
    assert done.exit_code == 0
    assert (own / "explain.html").read_text().startswith("<!doctype html>")
    assert f"Wrote {own / 'explain.html'}" in done.output
    assert "Items with the lowest utility" in done.output
    page = tmp_path / "other.html"
    words = ["explain", str(own), "--json", "-o", str(page), "--split", "trained"]
    done = CliRunner().invoke(group, words, catch_exceptions=False)
    told = json.loads(done.stdout)
    assert (told["split"], told["page"]) == ("trained", str(page))
    assert set(told["worst"]) == {"misidentified", "missed", "false alarm"}
    assert page.exists()
    assert not list(tmp_path.glob("*.partial"))
    with pytest.raises(InvalidParameter, match="output must be a file in an existing folder"):
        CliRunner().invoke(group, ["explain", str(own), "-o", str(tmp_path)], catch_exceptions=False)
    with pytest.raises(RunError, match="is not a training run"):
        CliRunner().invoke(group, ["explain", str(tmp_path)], catch_exceptions=False)
