"""The demo keeps what it says: its tables agree with the answers, and its examples do what their labels say."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.errors import RunError
from retrieval.metrics.identification import SearchScores
from retrieval.retriever import Retriever
from training.data.synthetic.catalogue import KNOWN, PLACE, UNKNOWN, VARIANT
from training.demo import demo
from training.demo.examples import EMPTY, FIRST, MATCH, NEW, choose_examples
from training.demo.queries import Answers, Nearest, bootstrap_interval
from training.demo.run import RUNS, TARGET_FPIR
from training.demo.thresholds import (
    BUNDLE,
    BY_HAND,
    GALLERY,
    best_f1_threshold,
    compare_thresholds,
    conclude,
)
from training.demo.trainings import BASE, EL_NIVMF, WITH_TCM, Features, cells, measure_trainings, tpir_interval
from training.loop.run import Run

UNKNOWN_LABELS = {UNKNOWN: "unknown-item", VARIANT: "unknown-variant", PLACE: "empty-place"}


def answers(*rows: tuple[str, str, str, float]) -> Answers:
    """Return answers from the kind, the item, the nearest item and its distance of each query, with threshold 1."""
    photos = [
        Photo(f"{n}", Path(f"{n}.jpg"), item, metadata={"kind": kind, "name": f"Nova {item}"})
        for n, (kind, item, _, _) in enumerate(rows)
    ]
    nearest = Nearest(np.array([row[2] for row in rows]), np.array([row[3] for row in rows]))
    return Answers(photos, nearest, Nearest(nearest.items, nearest.distances / 2), 1.0)


FOUR = answers(
    (KNOWN, "a", "a", 0.5),
    (KNOWN, "b", "b", 1.5),
    (KNOWN, "c", "a", 0.9),
    (KNOWN, "d", "d", 1.0),
    (UNKNOWN, "x", "a", 0.9),
    (UNKNOWN, "y", "a", 1.1),
    (UNKNOWN, "z", "b", 0.8),
    (VARIANT, "ac", "a", 0.2),
    (PLACE, "place", "a", 3.0),
)


def test_rates_are_shares_of_the_queries() -> None:
    rates = FOUR.rates(FOUR.served, 1.0)
    assert rates.fpir == pytest.approx(2 / 3)
    assert (rates.tpir, rates.misidentification) == (0.5, 0.25)
    assert rates.precision == pytest.approx(0.5 / (0.5 + 0.25 + 2 / 3))
    assert FOUR.rates(FOUR.served, -1.0).precision == 0
    assert rates.interval[0] <= rates.fpir <= rates.interval[1]
    assert bootstrap_interval(np.full(5, True)).tolist() == [1, 1]


def test_each_threshold_is_compared_with_its_own_distances() -> None:
    rates = compare_thresholds(FOUR, by_hand=0.5, bundle=0.85, gallery=1.0)
    assert [rates[name].tpir for name in (BY_HAND, BUNDLE, GALLERY)] == [0.5, 0.25, 0.5]
    assert [rates[name].fpir for name in (BY_HAND, BUNDLE, GALLERY)] == pytest.approx([2 / 3, 1 / 3, 2 / 3])


class Turned:
    """A run whose head turns vectors (n, 2) by an angle that grows with their own."""

    def __init__(self, shear: float) -> None:
        self.head = torch.nn.Linear(2, 2, bias=False)
        self.head.weight.data = torch.tensor([[1.0, shear], [0.0, 1.0]])

    def best_model(self) -> Turned:
        return self


def three_fitted_and_five_others() -> Features:
    """Return features of 8 items with two photos and a new one, and of 6 unknown ones with a new one.

    The new photos of the three fitted items show them; each of the others looks like the next item.
    """
    photos, angles, new = [], [], []
    for item in range(14):
        for number in (0, 1, 2) if item < 8 else (2,):
            partition = "train" if item < 3 and number < 2 else None
            photos.append(Photo(f"{item}-{number}", Path("x.jpg"), f"{100 - item}", partition=partition))
            angles.append(0.2 * (item + (number == 2 and 3 <= item < 7)) - (number == 2 and item == 7) + 0.01 * number)
            new.append(number == 2)
    items, fitted = (
        np.array(each) for each in zip(*((p.item_id, p.partition == "train") for p in photos), strict=True)
    )
    values = torch.tensor(np.stack([np.cos(angles), np.sin(angles)], axis=1), dtype=torch.float32)
    return Features(photos, items, np.array(new), fitted, values)


def test_each_part_of_the_items_is_measured_by_itself_where_every_head_finds_as_much_of_it() -> None:
    runs = {BASE: Turned(0.0), WITH_TCM: Turned(4.0), EL_NIVMF: Turned(0.0)}
    found = measure_trainings(three_fitted_and_five_others(), runs, 0.2)
    assert list(found) == [(name, part) for part in ("all", "fitted", "others") for name in runs]
    assert [found[BASE, part].recall for part in ("all", "fitted", "others")] == [3 / 8, 1.0, 0.0]
    for part in ("all", "fitted", "others"):
        base, turned, same = (found[name, part] for name in runs)
        assert cells(base) == cells(same)
        assert base.interval[0] <= base.tpir <= base.interval[1]
        assert base.opis[0] - 1e-9 <= base.alike.opis <= base.opis[1] + 1e-9
        assert min(base.alike.tpir, turned.alike.tpir) >= 0.5 * max(base.alike.tpir, turned.alike.tpir)
    assert found[BASE, "all"].tpir == pytest.approx(3 / 8 * found[BASE, "fitted"].tpir)
    assert found[WITH_TCM, "all"].alike != found[BASE, "all"].alike


def test_the_interval_of_tpir_resamples_known_and_unknown_items() -> None:
    def asked(unknown: list[float]) -> SearchScores:
        own = np.array([0.1, 0.2, 0.3, 0.4] * 25 + [np.inf] * len(unknown))
        return SearchScores(np.arange(len(own)), own, np.array([9.0] * 100 + unknown), 100)

    all_alike = tpir_interval(asked([0.25] * 100), 0.05)
    assert 0.35 < all_alike[0] < 0.5 < all_alike[1] < 0.65  # as a share of 100 has it
    among_two = tpir_interval(
        asked([0.05] * 5 + [0.35] * 95), 0.05
    )  # a resample has more than 5 of the near ones, or not
    assert (among_two[0], among_two[1] > 0.7) == (0.0, True)


@pytest.mark.parametrize(
    ("vectors", "items", "threshold"),
    [
        ([[1, 0], [0.8, 0.6], [0, 1], [0.6, 0.8]], ["a", "a", "b", "b"], np.sqrt(0.4)),  # finds all pairs but no other
        ([[1, 0], [0, 1], [0.6, 0.8]], ["a", "a", "b"], np.sqrt(2)),  # only the largest distance finds the pair
    ],
)
def test_the_threshold_by_hand_has_the_best_f1(vectors: list[list[float]], items: list[str], threshold: float) -> None:
    assert best_f1_threshold(np.array(vectors, np.float32), np.array(items)) == pytest.approx(threshold)


def test_the_conclusion_follows_from_the_numbers() -> None:
    unknown = [(UNKNOWN, f"u{n}", "a", 0.5 if n < 10 else 1.5 if n < 30 else 9.0) for n in range(200)]
    variants = [(VARIANT, f"v{n}", "a", 0.5 if n < 2 else 9.0) for n in range(5)]
    everything = answers(*unknown, *variants, (PLACE, "p", "a", 2.0), (KNOWN, "a", "a", 0.5), (KNOWN, "b", "b", 0.5))
    rates = compare_thresholds(everything, by_hand=0.8, bundle=1.0, gallery=1.0)
    text = " ".join(conclude(everything, rates, TARGET_FPIR))
    assert re.findall(r"[\d.]+%", text) == ["15.0%", "5.0%", "5.0%", "40.0%", "0.0%"]


def test_examples_are_the_first_of_their_kind() -> None:
    examples = choose_examples(FOUR)
    assert [(e.kind, e.query) for e in examples] == [(MATCH, 0), (MATCH, 3), (NEW, 5), (EMPTY, 8)]


pytestmark = pytest.mark.timeout(1200)  # the demo, on a busy machine


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished demo, as the command writes it."""
    output = tmp_path_factory.mktemp("demo")
    result = CliRunner().invoke(demo, ["-o", str(output)])
    assert result.exit_code == 0, result.output
    assert (output / "table.txt").read_text() in result.output
    return output


@pytest.mark.slow
def test_the_examples_do_what_their_labels_say(finished: Path) -> None:
    with (finished / "photos" / "queries.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))[:FIRST]
    queries = {(finished / "photos" / row["path"]).read_bytes(): row for row in rows}
    files = sorted((finished / "examples").iterdir())
    assert {"match", "no"} == {file.stem.split("-")[1] for file in files}
    with Retriever.open(finished / "bundle", finished / "gallery") as retriever:
        for file in files:
            row, label = queries[file.read_bytes()], file.stem.partition("-")[2]
            matches = retriever.search(file).matches
            assert label.endswith(row["name"].replace(" ", "-"))
            if label.startswith("match"):
                assert matches[0].item_id == row["item_id"]
            else:
                assert label.startswith(f"no-match-{UNKNOWN_LABELS[row['kind']]}")
                assert row["kind"] != KNOWN
                assert not matches


@pytest.mark.end_to_end
def test_the_table_is_what_the_retriever_answers(finished: Path) -> None:
    queries = read_catalogue(finished / "photos" / "queries.csv")
    unknown = [photo for photo in queries if photo.metadata["kind"] == UNKNOWN]
    with Retriever.open(finished / "bundle", finished / "gallery") as retriever:
        assert retriever.gallery.items == 240
        assert not any(retriever.gallery.photos(photo.item_id) for photo in unknown)
        found = np.mean([bool(retriever.search(photo.path).matches) for photo in unknown])
    table = (finished / "table.txt").read_text()
    assert realised_fpir(table, GALLERY) == pytest.approx(100 * found, abs=0.06)
    assert 1 < realised_fpir(table, GALLERY) < 10
    assert realised_fpir(table, BY_HAND) > 2 * realised_fpir(table, GALLERY)


@pytest.mark.end_to_end
def test_the_table_compares_trainings_that_differ_in_their_losses_alone(finished: Path) -> None:
    base, with_tcm, el_nivmf = (Run.open(finished / folder).settings.to_dict() for folder in RUNS.values())
    assert with_tcm["regularizer"] == "tcm"
    assert with_tcm | {"regularizer": ""} == base
    assert el_nivmf | {"loss": base["loss"], "loss_arguments": {}} == base
    assert (el_nivmf["loss"], el_nivmf["loss_arguments"]) == ("vmf_nca", {"anchor_weight": 0.3})
    table = (finished / "table.txt").read_text()
    for name in RUNS:
        for part in ("all", "fitted", "others"):
            found = re.search(rf"^{name}, {part} +([\d.]+) +([\d.]+) +([\d.]+) to ([\d.]+) ", table, re.MULTILINE)
            assert found, (name, part)
            recall, tpir, low, high = map(float, found.groups())
            assert 0.2 < tpir < recall
            assert low <= tpir <= high


def realised_fpir(table: str, name: str) -> float:
    """Return the realised FPIR of a threshold in the printed table, in percent."""
    (line,) = [line for line in table.splitlines() if line.startswith(name)]
    return float(re.findall(r"([\d.]+)%", line)[-5])  # then the interval, TPIR and precision


@pytest.mark.slow
def test_a_finished_demo_is_kept(finished: Path) -> None:
    before = (finished / "table.txt").stat().st_mtime_ns
    result = CliRunner().invoke(demo, ["-o", str(finished), "--keep"])
    assert (finished / "table.txt").read_text() in result.output
    assert (finished / "table.txt").stat().st_mtime_ns == before


def test_a_demo_that_was_interrupted_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo" / "gallery").mkdir(parents=True)

    def again(output: Path, *, seed: int) -> object:
        raise RunError(f"drawn again, {sorted(output.iterdir())}", remedy="")

    monkeypatch.setattr("training.demo.cli.run_demo", again)
    result = CliRunner().invoke(demo, ["-o", str(tmp_path / "demo"), "--keep"])
    assert "drawn again, []" in str(result.exception)


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("ten years of work")
    result = CliRunner().invoke(demo, ["-o", str(tmp_path)])
    assert isinstance(result.exception, RunError)
    assert "thesis.txt" in str(result.exception)
    assert (tmp_path / "thesis.txt").read_text() == "ten years of work"
