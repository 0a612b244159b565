"""Studies: their bookkeeping with trials that cost nothing, and a few real ones on the tiny catalogue."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from optuna.trial import TrialState

from retrieval.catalogue.read import read_catalogue
from retrieval.catalogue.splits import make_splits
from retrieval.cli.main import group
from retrieval.errors import DataError, InvalidParameter, RunError, TrainingDiverged
from training.config import Settings
from training.tune import study as study_module
from training.tune import trial as trial_module
from training.tune.search_space import apply
from training.tune.study import Outcome, ended, make_plan, open_study, resume_study, start_study

from ...conftest import ROOT
from ..conftest import tiny_settings

pytestmark = pytest.mark.usefixtures("empty_pictures")

RATES = {"learning_rate": "1e-4..1e-1:log"}
FAKE = """
import sys, time
from pathlib import Path
from training.tune import study, trial

def metrics(settings, path, fold, features=None):
    if int(path.parent.name) == 3 and not Path(MARK).exists():
        Path(MARK).write_text(str(settings.learning_rate))
        time.sleep(60)
    value = abs(settings.learning_rate - 0.01)
    return {"mean TPIR": 1 - value, "R@1": 1 - value}

trial.fold_metrics = metrics
study.HEARTBEAT, study.GRACE = 1, 3
study.resume_study(Path(sys.argv[1]))
"""


def bowl(settings: Settings, fold: int) -> float:
    """Be best at a learning rate of 0.01."""
    return abs(settings.learning_rate - 0.01) + 0.001 * fold


def fake(value: Callable[[Settings, int], float]) -> Callable[..., dict[str, float]]:
    """Return a stand-in for the training of a fold, whose metrics are a function of settings and fold."""

    def metrics(settings: Settings, path: Path, fold: Any, features: Path | None = None) -> dict[str, float]:
        found = value(settings, int(path.name.removeprefix("fold-")))
        return {"mean TPIR": 1 - found, "R@1": 1 - found, "unfitted OPIS": found / 100}

    return metrics


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trials cost nothing."""
    monkeypatch.setattr(trial_module, "fold_metrics", fake(bowl))


def tune(settings: Settings, path: Path, search: dict[str, str] | None = None, trials: int = 6, **plan: Any) -> Outcome:
    plans = make_plan(settings, RATES if search is None else search, folds=2, trials=trials, **plan)
    return start_study(plans, path)


def wait_for(there: Callable[[], bool], child: subprocess.Popen[Any]) -> None:
    for _ in range(1200):
        if there():
            return
        assert child.poll() is None, "it ended before it could be killed"
        time.sleep(0.05)
    pytest.fail("it did not begin")


@pytest.mark.slow
def test_best_trial_becomes_a_config_of_train(catalogue: Path, tmp_path: Path, cheap: None) -> None:
    base = tiny_settings(catalogue)
    outcome = tune(base, tmp_path / "study", trials=10)
    assert len(outcome.trials) == 10
    best, given = outcome.complete[0], min(outcome.trials, key=lambda trial: trial.number)
    assert apply(base, given.params) == base
    assert best.value == max(trial.value for trial in outcome.complete)
    assert abs(outcome.settings.learning_rate - 0.01) < 0.005
    assert Settings.from_dict(tomllib.loads(outcome.to_toml())) == outcome.settings
    text = outcome.summary()
    assert f"10 trials: {len(outcome.complete)} complete" in text
    assert f"Best: trial {best.number}, mean TPIR {best.value:.4g}." in text
    gain = best.value - given.value
    assert f"Change from the given settings: {gain:.3g} ± " in text


def test_interrupted_study_resumes_up_to_its_number_of_trials(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = 0

    def dies(settings: Settings, fold: int) -> float:
        nonlocal begun
        begun += 1
        if begun == 6:  # in the second fold of the third trial
            raise KeyboardInterrupt
        return bowl(settings, fold)

    monkeypatch.setattr(trial_module, "fold_metrics", fake(dies))
    with pytest.raises(KeyboardInterrupt):
        tune(tiny_settings(catalogue), tmp_path / "s", prune=False)
    resumed = resume_study(tmp_path / "s")
    assert len(resumed.complete) == 6
    assert [trial.number for trial in resume_study(tmp_path / "s").trials] == [t.number for t in resumed.trials]
    assert len(resume_study(tmp_path / "s", trials=8).trials) == 8


@pytest.mark.slow
def test_killed_study_repeats_the_killed_trial_and_no_other(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, mark = tmp_path / "study", tmp_path / "mark"
    monkeypatch.setattr(study_module, "work", lambda path: None)
    start_study(make_plan(tiny_settings(catalogue), RATES, folds=2, trials=7, prune=False), path)
    command = [sys.executable, "-c", FAKE.replace("MARK", repr(str(mark))), str(path)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    wait_for(mark.exists, child)
    time.sleep(2)  # for a heartbeat
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert open_study(path).get_trials()[3].state == TrialState.RUNNING
    time.sleep(4)  # longer than the grace period: the trial counts as killed
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    trials = open_study(path).get_trials()
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert len(done) == len({trial.params["learning_rate"] for trial in done}) == 7
    assert [trial.number for trial in trials if trial not in done] == [3]
    assert mark.read_text() in {str(trial.params["learning_rate"]) for trial in done}


def test_study_is_never_overwritten_and_a_stranger_is_none(catalogue: Path, tmp_path: Path, cheap: None) -> None:
    tune(tiny_settings(catalogue), tmp_path / "study", trials=1)
    with pytest.raises(RunError, match="--resume"):
        tune(tiny_settings(catalogue), tmp_path / "study")
    with pytest.raises(RunError, match="is not a tuning study"):
        resume_study(tmp_path)


def test_what_cannot_be_done_is_refused_before_anything_is_written(catalogue: Path, tmp_path: Path) -> None:
    base = tiny_settings(catalogue)
    for told, settings, changes in (
        ("Did you mean learning_rate", base, {"search": {"learning_rat": "1..2"}}),
        ("photos_per_item", dataclasses.replace(base, photos_per_item=1), {}),
        ("objective must be one of", base, {"objective": "tipr"}),
        ("trials must be at least 1", base, {"trials": 0}),
    ):
        with pytest.raises((InvalidParameter, DataError), match=told):
            tune(settings, tmp_path / "study", **changes)
    with pytest.raises(DataError, match="do not fill 7 folds"):
        make_plan(base, RATES, folds=7)
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
def test_values_that_do_not_go_together_are_drawn_anew(
    catalogue: Path, tmp_path: Path, cheap: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = {"regularizer.positive_margin": "0.3..0.9", "regularizer.negative_margin": "0.3..0.9"}
    base = tiny_settings(catalogue, regularizer="tcm")
    outcome = tune(base, tmp_path / "study", search, prune=False)
    margins = [trial.params for trial in outcome.complete]
    assert len(margins) == 6
    assert all(m["regularizer.negative_margin"] <= m["regularizer.positive_margin"] for m in margins)
    monkeypatch.setattr(study_module, "REFUSALS", 8)
    never = {"regularizer.positive_margin": "0.1..0.2", "regularizer.negative_margin": "0.3..0.9"}
    with pytest.raises(InvalidParameter, match="have valid combinations of values"):
        tune(base, tmp_path / "never", never)


def test_share_of_the_training_items_is_searched_on(tmp_path: Path, catalogue: Path) -> None:
    big = tmp_path / "big.csv"
    rows = [f"none.jpg,item-{number // 2},{number}" for number in range(2000)]
    big.write_text("\n".join(["path,item_id,photo_id", *rows]))
    base = dataclasses.replace(tiny_settings(catalogue), catalogue=str(big))
    for share, items in ((1.0, 600), (0.5, 300)):
        plan = make_plan(base, RATES, folds=2, share=share)
        assert sum(len(validation) for _, validation in plan.folds) == items


def test_trial_that_does_worse_than_most_or_diverges_is_stopped(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folds: list[int] = []

    def counted(settings: Settings, fold: int) -> float:
        folds.append(fold)
        if settings.learning_rate > 0.05:
            raise TrainingDiverged("the loss of step 3 is nan")
        return bowl(settings, fold)

    monkeypatch.setattr(trial_module, "fold_metrics", fake(counted))
    outcome = tune(tiny_settings(catalogue), tmp_path / "s", trials=16)
    stopped = [trial for trial in outcome.trials if trial.state == TrialState.PRUNED]
    assert len(stopped) + len(outcome.complete) == 16
    assert len(folds) == 2 * len(outcome.complete) + len(stopped)
    assert {trial.user_attrs["ended"] for trial in stopped} <= {
        "worse than most, after fold 1",
        "the loss of step 3 is nan. Train with lower learning rates",
    }
    assert "the loss of step 3 is nan. Train with lower learning rates" in [t.user_attrs["ended"] for t in stopped]
    assert "worse than most, after fold 1" in [trial.user_attrs["ended"] for trial in stopped]


def test_failure_of_one_trial_counts_and_one_of_all_ends_the_study(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(settings: Settings, fold: int) -> float:
        if settings.learning_rate > 0.01:
            raise RuntimeError("out of\nmemory")
        return bowl(settings, fold)

    monkeypatch.setattr(trial_module, "fold_metrics", fake(too_large))
    outcome = tune(tiny_settings(catalogue), tmp_path / "s", trials=8)
    failed = [trial for trial in outcome.trials if trial.state == TrialState.FAIL]
    assert failed
    assert len(outcome.trials) == 8
    assert failed[0].user_attrs["ended"] == "RuntimeError: out of memory"
    assert f"{len(failed)} failed" in outcome.summary()

    def unreadable(settings: Settings, fold: int) -> float:
        raise DataError("a.jpg cannot be read")

    monkeypatch.setattr(trial_module, "fold_metrics", fake(unreadable))
    with pytest.raises(DataError, match=r"a\.jpg"):
        tune(tiny_settings(catalogue), tmp_path / "t", trials=3)
    monkeypatch.setattr(trial_module, "fold_metrics", fake(bowl))
    mended = resume_study(tmp_path / "t")
    assert len(mended.complete) == 3
    assert [trial.user_attrs["given"] for trial in mended.complete if "given" in trial.user_attrs] == [True]


@pytest.mark.slow
def test_calibration_and_test_photos_are_never_read(catalogue: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(catalogue.parent, tmp_path / "catalogue")
    splits = make_splits(read_catalogue(catalogue), seed=0)
    for photo in read_catalogue(folder / catalogue.name):
        if photo.item_id in {*splits.calibration, *splits.test}:
            photo.path.unlink()
    outcome = tune(tiny_settings(folder / catalogue.name, epochs=1), tmp_path / "study", trials=1, objective="opis")
    assert outcome.complete
    groups = {photo.item_id: photo.group for photo in read_catalogue(catalogue)}
    for fit, validation in outcome.plan.folds:
        assert not {groups[item] for item in fit} & {groups[item] for item in validation}
        assert not {*fit, *validation} & {*splits.calibration, *splits.test}


@pytest.mark.slow
def test_one_of_two_processes_finishes_the_study_when_the_other_is_killed(catalogue: Path, tmp_path: Path) -> None:
    study = tmp_path / "study"
    words = ["tune", catalogue, "-o", study, "--search", "learning_rate=1e-4..1e-1:log", "--trials", 5, "--folds", 2]
    settings = ("backbone=small", "size=32", "dim=16", "epochs=6", "items_per_batch=4")
    words += [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-c", "from retrieval.cli.main import main; main()"]
    with subprocess.Popen([*command, *map(str, words)], cwd=ROOT, stdout=subprocess.PIPE, text=True) as first:
        wait_for(lambda: len(list(study.glob("trials/*/fold-*"))) >= 1, first)
        more = [*command, "tune", "--resume", "-o", str(study)]
        with subprocess.Popen(more, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
            wait_for(lambda: len(list(study.glob("trials/*/fold-*"))) >= 2, child)  # two trials at a time
            first.kill()
            out, _ = child.communicate(timeout=300)
    assert child.returncode == 0, out
    done = ended(open_study(study))
    assert len(done) == 5
    assert {trial.state for trial in done} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert out.splitlines()[-1] == f"Next: retrieval train -o runs/study --config {study / 'best.toml'}"


@pytest.mark.slow
def test_command_goes_from_search_to_training(catalogue: Path, tmp_path: Path) -> None:
    def call(*words: object) -> str:
        return CliRunner().invoke(group, list(map(str, words)), catch_exceptions=False).output

    settings = ("backbone=small", "size=32", "dim=16", "epochs=1", "items_per_batch=4")
    quick = ["--folds", 2, *(word for setting in settings for word in ("--set", setting))]
    study = tmp_path / "study"
    with pytest.raises(InvalidParameter, match="--search must name at least one setting"):
        call("tune", catalogue, "-o", study, *quick)
    margins = ("regularizer.positive_margin=0.6..0.98", "regularizer.negative_margin=0.2..0.7")
    quick += [*("--set", "regularizer=tcm"), *(word for margin in margins for word in ("--search", margin))]
    out = call("tune", catalogue, "-o", study, *quick, "--trials", 2)
    assert out.startswith("Searching regularizer.positive_margin in 0.6..0.98, regularizer.negative_margin in 0.2..0.7")
    assert "2 done, trial 1: mean TPIR" in out
    assert "3 done, trial 2: mean TPIR" in call("tune", "-o", study, "--resume", "--trials", 3)
    call("train", "-o", tmp_path / "run", "--config", study / "best.toml")
    best = tomllib.loads((study / "best.toml").read_text())
    used = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert used["regularizer_arguments"] == best["regularizer_arguments"]
    assert set(best["regularizer_arguments"]) == {"positive_margin", "negative_margin"}
