"""Studies: their bookkeeping with trials that cost nothing, and a few real ones on the tiny catalogue."""

from __future__ import annotations

import dataclasses
import json
import shutil
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
from training.tune.study import STOPPED, Outcome, make_plan, run_study

from ...conftest import ROOT
from ..conftest import tiny_settings

pytestmark = pytest.mark.usefixtures("empty_pictures")

RATES = {"learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}}


def bowl(settings: Settings, fold: int) -> float:
    """Be best at a learning rate of 0.01."""
    return abs(settings.learning_rate - 0.01) + 0.001 * fold


def fake(value: Callable[[Settings, int], float]) -> Callable[..., dict[str, float]]:
    """Return a stand-in for the training of a fold, whose metrics are a function of settings and fold."""

    def metrics(settings: Settings, path: Path, fold: Any, features: Path | None = None) -> dict[str, float]:
        loss = value(settings, int(path.name.removeprefix("fold-")))
        return {"mean TPIR": 1 - loss, "R@1": 1 - loss, "unfitted OPIS": loss / 100}

    return metrics


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trials cost nothing."""
    monkeypatch.setattr(study_module, "fold_metrics", fake(bowl))


def tune(
    settings: Settings, path: Path, space: dict[str, Any] | None = None, trials: int = 6, *, prune: bool = True
) -> Outcome:
    plan = make_plan(settings, RATES if space is None else space, folds=2)
    return run_study(path, dataclasses.replace(plan, prune=prune), trials=trials)


def wait_for(there: Callable[[], bool], child: subprocess.Popen[Any]) -> None:
    for _ in range(1200):
        if there():
            return
        assert child.poll() is None, "it ended before it could be killed"
        time.sleep(0.05)
    pytest.fail("it did not begin")


def test_best_trial_becomes_a_config_of_train(catalogue: Path, tmp_path: Path, cheap: None) -> None:
    base = tiny_settings(catalogue)
    outcome = tune(base, tmp_path / "study", trials=10)
    assert len(outcome.trials) == 10
    best, given = outcome.complete[0], outcome.trials[0]
    assert given.params == {"learning_rate": base.learning_rate}
    assert best.value == max(trial.value for trial in outcome.complete)
    assert abs(outcome.settings.learning_rate - 0.01) < 0.005
    assert Settings.from_dict(tomllib.loads(outcome.to_toml())) == outcome.settings
    text = outcome.summary()
    assert f"10 trials: {len(outcome.complete)} complete" in text
    assert f"Best: trial {best.number}, mean TPIR {best.value:.4g} (trial 0: mean TPIR {given.value:.4g})." in text


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

    monkeypatch.setattr(study_module, "fold_metrics", fake(dies))
    with pytest.raises(KeyboardInterrupt):
        tune(tiny_settings(catalogue), tmp_path / "s", prune=False)
    resumed = run_study(tmp_path / "s")
    assert len(resumed.complete) == 6
    assert len({trial.params["learning_rate"] for trial in resumed.complete}) == 6  # a resumed study draws anew
    assert [trial.number for trial in run_study(tmp_path / "s").trials] == [t.number for t in resumed.trials]
    assert len(run_study(tmp_path / "s", trials=8).trials) == 8


def test_study_is_never_overwritten_and_a_stranger_is_none(catalogue: Path, tmp_path: Path, cheap: None) -> None:
    tune(tiny_settings(catalogue), tmp_path / "study", trials=1)
    with pytest.raises(RunError, match="--resume"):
        tune(tiny_settings(catalogue), tmp_path / "study")
    with pytest.raises(RunError, match="is not a tuning study"):
        run_study(tmp_path)


def test_what_cannot_be_done_is_refused_before_anything_is_written(catalogue: Path, tmp_path: Path) -> None:
    base = tiny_settings(catalogue)
    for told, settings, changes in (
        ("Did you mean learning_rate", base, {"space": {"learning_rat": [1.0, 2.0]}}),
        ("photos_per_item", dataclasses.replace(base, photos_per_item=1), {}),
        ("trials must be at least 1", base, {"trials": 0}),
    ):
        with pytest.raises((InvalidParameter, DataError), match=told):
            tune(settings, tmp_path / "study", **changes)
    with pytest.raises(InvalidParameter, match="objective must be one of"):
        make_plan(base, RATES, objective="tipr")
    with pytest.raises(DataError, match="do not fill 7 folds"):
        make_plan(base, RATES, folds=7)
    assert not (tmp_path / "study").exists()


def test_trial_that_does_worse_than_most_fails_or_diverges_is_stopped(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folds: list[int] = []

    def counted(settings: Settings, fold: int) -> float:
        folds.append(fold)
        if settings.learning_rate > 0.05:
            raise TrainingDiverged("the loss of step 3 is nan")
        if settings.learning_rate > 0.02:
            raise RuntimeError("out of\nmemory")
        return bowl(settings, fold)

    monkeypatch.setattr(study_module, "fold_metrics", fake(counted))
    outcome = tune(tiny_settings(catalogue), tmp_path / "s", trials=24)
    stopped = [trial for trial in outcome.trials if trial.state == TrialState.PRUNED]
    assert len(stopped) + len(outcome.complete) == 24
    assert len(folds) == 2 * len(outcome.complete) + len(stopped)
    assert {trial.user_attrs[STOPPED] for trial in stopped} == {
        "worse than most, after fold 1",
        "the loss of step 3 is nan. Train with lower learning rates",
        "out of memory",
    }
    assert f"{len(stopped)} stopped early" in outcome.summary()


def test_failure_of_all_trials_ends_the_study(catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tiny_settings(catalogue)

    def unreadable(settings: Settings, fold: int) -> float:
        raise DataError("a.jpg cannot be read")

    monkeypatch.setattr(study_module, "fold_metrics", fake(unreadable))
    with pytest.raises(DataError, match=r"a\.jpg"):
        tune(base, tmp_path / "t", trials=3)
    monkeypatch.setattr(study_module, "fold_metrics", fake(bowl))
    mended = run_study(tmp_path / "t")
    assert len(mended.complete) == 3
    assert base.learning_rate in {trial.params["learning_rate"] for trial in mended.complete}


def test_values_that_do_not_go_together_end_a_trial(catalogue: Path, tmp_path: Path, cheap: None) -> None:
    space = {f"regularizer.{side}_margin": {"low": 0.3, "high": 0.9} for side in ("positive", "negative")}
    outcome = tune(tiny_settings(catalogue, regularizer="tcm"), tmp_path / "study", space, trials=12, prune=False)
    margins = [trial.params for trial in outcome.complete]
    assert 0 < len(margins) < 12
    assert all(m["regularizer.negative_margin"] <= m["regularizer.positive_margin"] for m in margins)
    stopped = next(trial for trial in outcome.trials if trial.state == TrialState.PRUNED)
    assert "positive_margin" in stopped.user_attrs[STOPPED]


@pytest.mark.slow
def test_calibration_and_test_photos_are_never_read(catalogue: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(catalogue.parent, tmp_path / "catalogue")
    splits = make_splits(read_catalogue(catalogue))
    for photo in read_catalogue(folder / catalogue.name):
        if photo.item_id in {*splits.calibration, *splits.test}:
            photo.path.unlink()
    plan = make_plan(tiny_settings(folder / catalogue.name, epochs=1), RATES, objective="opis", folds=2)
    assert run_study(tmp_path / "study", plan, trials=1).complete
    groups = {photo.item_id: photo.group for photo in read_catalogue(catalogue)}
    for fit, validation in plan.folds:
        assert not {groups[item] for item in fit} & {groups[item] for item in validation}
        assert not {*fit, *validation} & {*splits.calibration, *splits.test}


@pytest.mark.slow
def test_one_of_two_processes_finishes_the_study_when_the_other_is_killed(catalogue: Path, tmp_path: Path) -> None:
    study = tmp_path / "study"
    settings = ("backbone=small", "size=32", "dim=16", "epochs=6", "items_per_batch=4")
    words = ["tune", catalogue, "-o", study, "--trials", 5, "--folds", 2]
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
    assert len(run_study(study).trials) >= 5
    assert out.splitlines()[-1] == f"Next: retrieval train -o runs/study --config {study / 'best.toml'}"


@pytest.mark.slow
def test_command_goes_from_search_to_training(catalogue: Path, tmp_path: Path) -> None:
    def call(*words: object) -> str:
        return CliRunner().invoke(group, list(map(str, words)), catch_exceptions=False).output

    settings = ("backbone=small", "size=32", "dim=16", "epochs=1", "items_per_batch=4", "regularizer=tcm")
    quick = ["--folds", 2, *(word for setting in settings for word in ("--set", setting))]
    study, space = tmp_path / "study", tmp_path / "margins.toml"
    space.write_text(
        '"regularizer.positive_margin" = { low = 0.6, high = 0.98 }\n'
        '"regularizer.negative_margin" = { low = 0.2, high = 0.55 }\n'
    )
    out = call("tune", catalogue, "-o", study, *quick, "--space", space, "--trials", 2)
    assert out.startswith("Searching regularizer.positive_margin, regularizer.negative_margin on ")
    assert "trial 1: mean TPIR" in out
    assert "trial 2: mean TPIR" in call("tune", "-o", study, "--resume", "--trials", 3)
    call("train", "-o", tmp_path / "run", "--config", study / "best.toml")
    best = tomllib.loads((study / "best.toml").read_text())
    used = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert used["regularizer_arguments"] == best["regularizer_arguments"]
    assert set(best["regularizer_arguments"]) == {"positive_margin", "negative_margin"}
