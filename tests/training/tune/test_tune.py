"""Studies: their bookkeeping with trials that cost nothing, and a few real ones on the tiny catalogue."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
from optuna.trial import FrozenTrial, TrialState

from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import main
from retrieval.errors import DataError, InvalidParameter, RunError
from training.config import Settings
from training.data.splits import make_splits
from training.tune import trial as trial_module
from training.tune import trial_queue
from training.tune.plan import MIN_ITEMS, TuneOptions, make_plan
from training.tune.report import importances, render_study
from training.tune.results import render, settings_of, to_toml
from training.tune.search_space import parse_searches
from training.tune.study import StudyFolder
from training.tune.trial_queue import ATTEMPTS, count_done, next_trial
from training.tune.tune import resume_tuning, tune

from ...conftest import ROOT
from ..conftest import tiny_settings

pytestmark = pytest.mark.usefixtures("empty_pictures")

RATES = parse_searches(["learning_rate=1e-4..1e-1:log"])
FAKE = """
import sys, time
from pathlib import Path
from training.tune import trial as trial_module
from training.tune.search_space import parse_searches
from training.config import Settings
from training.tune.tune import tune, resume_tuning
from training.tune.plan import TuneOptions

def metrics(settings, path, fold, wanted, **rest):
    number = int(path.parent.name)
    if number == DYING and not Path(MARK).exists():
        Path(MARK).write_text(str(settings.learning_rate))
        time.sleep(60)
    time.sleep(PAUSE)
    value = abs(settings.learning_rate - 0.01)
    return {"FNIR": value, "R@1": 1 - value, "MAP@R": 1 - value}

trial_module.fold_metrics = metrics
"""


def fake(value: Callable[[Settings, int], float]) -> Callable[..., dict[str, float]]:
    """Return a stand-in for the training of a fold, whose metrics are a function of settings and fold."""

    def metrics(settings: Settings, path: Path, fold: Any, wanted: list[str], **rest: Any) -> dict[str, float]:
        found = value(settings, int(path.name.removeprefix("fold-")))
        return {"FNIR": found, "R@1": 1 - found, "MAP@R": 1 - found, "OPIS": found / 100}

    return metrics


def bowl(settings: Settings, fold: int) -> float:
    """Be best at a learning rate of 0.01."""
    return abs(settings.learning_rate - 0.01) + 0.001 * fold


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trials cost nothing."""
    monkeypatch.setattr(trial_module, "fold_metrics", fake(bowl))


def trials_of(path: Path) -> list[FrozenTrial]:
    folder = StudyFolder.open(path)
    with folder.study(folder.plan) as study:
        return study.get_trials()


def options(**changes: Any) -> TuneOptions:
    return TuneOptions(**{"trials": 6, "folds": 2, **changes})


@pytest.mark.slow
def test_the_best_trial_is_found_and_becomes_a_config_of_train(catalogue: Path, tmp_path: Path, cheap: None) -> None:
    base = tiny_settings(catalogue)
    outcome = tune(base, tmp_path / "study", search=RATES, options=options(trials=10))
    assert len(outcome.trials) == 10
    assert outcome.default is not None
    assert settings_of(outcome.default, outcome.plan) == base
    assert outcome.best is not None
    assert outcome.best.value == min(trial.value for trial in outcome.complete)
    assert abs(outcome.settings.learning_rate - 0.01) < 0.003
    assert Settings.from_dict(tomllib.loads(to_toml(outcome))) == outcome.settings
    gain, error = outcome.gain() or (0, 0)
    assert gain == pytest.approx(outcome.best.value - outcome.default.value)
    assert error == pytest.approx(0, abs=1e-12)


@pytest.mark.slow
def test_the_same_seed_draws_the_same_and_another_seed_another(catalogue: Path, tmp_path: Path, cheap: None) -> None:
    drawn = []
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        outcome = tune(tiny_settings(catalogue, seed=seed), tmp_path / name, search=RATES, options=options())
        drawn.append([trial.params for trial in outcome.trials])
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


@pytest.mark.slow
def test_a_resumed_study_is_the_uninterrupted_one(
    catalogue: Path, tmp_path: Path, cheap: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tune(tiny_settings(catalogue), tmp_path / "whole", search=RATES, options=options(trials=8))
    begun = 0

    def dies(settings: Settings, fold: int) -> float:
        nonlocal begun
        begun += 1
        if begun == 8:  # in the second fold of the fourth trial
            raise KeyboardInterrupt
        return bowl(settings, fold)

    monkeypatch.setattr(trial_module, "fold_metrics", fake(dies))
    with pytest.raises(KeyboardInterrupt):
        tune(tiny_settings(catalogue), tmp_path / "parts", search=RATES, options=options(trials=8))
    resumed = resume_tuning(tmp_path / "parts")
    assert len(resumed.trials) == len(whole.trials) == 8
    assert [trial.params for trial in resumed.trials] == [trial.params for trial in whole.trials]
    assert [trial.values for trial in resumed.trials] == [trial.values for trial in whole.trials]
    again = resume_tuning(tmp_path / "parts")
    assert [trial.number for trial in again.trials] == [trial.number for trial in resumed.trials]
    assert len(resume_tuning(tmp_path / "parts", trials=11).trials) == 11


def test_a_study_is_never_overwritten_and_a_stranger_is_none(catalogue: Path, tmp_path: Path, cheap: None) -> None:
    tune(tiny_settings(catalogue), tmp_path / "study", search=RATES, options=options(trials=1))
    with pytest.raises(RunError, match="--resume"):
        tune(tiny_settings(catalogue), tmp_path / "study", search=RATES, options=options())
    with pytest.raises(RunError, match="is not a tuning study"):
        resume_tuning(tmp_path)


def test_what_cannot_be_done_is_refused_before_anything_is_written(catalogue: Path, tmp_path: Path) -> None:
    base = tiny_settings(catalogue)
    for told, settings, search, wanted in (
        ("Did you mean learning_rate", base, parse_searches(["learning_rat=1..2"]), options()),
        ("do not fill 7 folds", base, RATES, options(folds=7)),
        ("photos_per_item", dataclasses.replace(base, photos_per_item=1), RATES, options()),
    ):
        with pytest.raises((InvalidParameter, DataError), match=told):
            tune(settings, tmp_path / "study", search=search, options=wanted)
    assert not (tmp_path / "study").exists()
    for changes in ({"trials": 0}, {"pruner": "hyper"}, {"objectives": ("fnri",)}, {"objectives": ()}):
        with pytest.raises(InvalidParameter):
            options(**changes)
    with pytest.raises(InvalidParameter, match="jobs must be at least 1"):
        tune(base, tmp_path / "study", search=RATES, options=options(), jobs=0)


@pytest.mark.slow
def test_values_that_do_not_go_together_are_drawn_anew(
    catalogue: Path, tmp_path: Path, cheap: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = parse_searches(["regularizer.positive_margin=0.3..0.9", "regularizer.negative_margin=0.3..0.9"])
    base = tiny_settings(catalogue, regularizer="tcm")
    outcome = tune(base, tmp_path / "study", search=search, options=options(trials=6))
    margins = [trial.params for trial in outcome.trials]
    assert len(margins) == 6
    assert all(m["regularizer.negative_margin"] <= m["regularizer.positive_margin"] for m in margins)
    refused = [trial for trial in trials_of(tmp_path / "study") if "refused" in trial.user_attrs]
    assert refused
    assert all(
        trial.params["regularizer.negative_margin"] > trial.params["regularizer.positive_margin"] for trial in refused
    )
    monkeypatch.setattr(trial_queue, "REFUSALS", 8)
    never = parse_searches(["regularizer.positive_margin=0.1..0.2", "regularizer.negative_margin=0.3..0.9"])
    with pytest.raises(InvalidParameter, match="have valid combinations of values"):
        tune(base, tmp_path / "never", search=never, options=options())


def test_the_margins_of_tcm_are_searched_on_a_tenth_where_that_is_enough(tmp_path: Path, catalogue: Path) -> None:
    base = tiny_settings(catalogue, regularizer="tcm")
    plan = make_plan(base, {}, options())
    assert sum(len(validation) for _, validation in plan.folds) == 12  # all: a tenth of twelve says nothing
    big = tmp_path / "big.csv"
    rows = [f"none.jpg,item-{number // 2},{number}" for number in range(2000)]
    big.write_text("\n".join(["path,item_id,photo_id", *rows]))
    base = dataclasses.replace(base, catalogue=str(big))
    plan = make_plan(base, {}, options())
    assert sum(len(validation) for _, validation in plan.folds) == 60  # of 600 training items
    assert 2 * MIN_ITEMS <= 80
    plan = make_plan(base, RATES, options())
    assert sum(len(validation) for _, validation in plan.folds) == 600
    plan = make_plan(base, {}, options(share=0.5))
    assert sum(len(validation) for _, validation in plan.folds) == 300


@pytest.mark.slow
def test_bad_trials_are_stopped_and_good_ones_are_not(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs_done: list[float] = []

    def metrics(settings: Settings, path: Path, fold: Any, wanted: list[str], **rest: Any) -> dict[str, float]:
        value = min(1.0, bowl(settings, 0))
        for epoch in range(1, settings.epochs + 1):
            epochs_done.append(settings.learning_rate)
            rest["on_epoch"](epoch, {"loss": 1.0, "validation FNIR": value})
        return {"FNIR": value, "R@1": 1 - value, "MAP@R": 1 - value}

    monkeypatch.setattr(trial_module, "fold_metrics", metrics)
    for pruner, stops in (("median", True), ("hyperband", True), ("none", False)):
        epochs_done.clear()
        outcome = tune(
            tiny_settings(catalogue, epochs=6),
            tmp_path / pruner,
            search=RATES,
            options=options(trials=10, pruner=pruner),
        )
        stopped = [trial for trial in outcome.trials if trial.state == TrialState.PRUNED]
        assert len(outcome.trials) == 10
        assert bool(stopped) == stops
        assert all(outcome.best is not None and trial.number != outcome.best.number for trial in stopped)
        assert (len(epochs_done) < 10 * 2 * 6) == stops
        for trial in stopped:
            assert "worse than most" in trial.user_attrs["pruned"]
            assert epochs_done.count(trial.params["learning_rate"]) < 2 * 6


def test_a_trial_that_diverges_is_stopped_and_the_next_goes_on(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def metrics(settings: Settings, path: Path, fold: Any, wanted: list[str], **rest: Any) -> dict[str, float]:
        rest["on_epoch"](1, {"loss": float("nan") if settings.learning_rate > 0.01 else 1.0, "validation FNIR": 0.5})
        return {"FNIR": 0.5, "R@1": 0.5, "MAP@R": 0.5}

    monkeypatch.setattr(trial_module, "fold_metrics", metrics)
    outcome = tune(tiny_settings(catalogue), tmp_path / "s", search=RATES, options=options(trials=8, pruner="none"))
    stopped = [trial for trial in outcome.trials if trial.state == TrialState.PRUNED]
    assert stopped
    assert len(stopped) + len(outcome.complete) == 8
    for trial in stopped:
        assert trial.params["learning_rate"] > 0.01
        assert trial.user_attrs["pruned"] == "the loss was nan in fold 1, epoch 1"


@pytest.mark.slow
def test_a_failure_of_one_trial_counts_and_one_of_all_ends_the_study(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(settings: Settings, fold: int) -> float:
        if settings.learning_rate > 0.01:
            raise RuntimeError("out of\nmemory")
        return bowl(settings, fold)

    monkeypatch.setattr(trial_module, "fold_metrics", fake(too_large))
    outcome = tune(tiny_settings(catalogue), tmp_path / "s", search=RATES, options=options(trials=8))
    failed = [trial for trial in outcome.trials if trial.state == TrialState.FAIL]
    assert failed
    assert len(outcome.trials) == 8
    assert failed[0].user_attrs["error"] == "RuntimeError: out of memory"
    assert f"{len(failed)} failed" in render(outcome)

    def unreadable(settings: Settings, fold: int) -> float:
        raise DataError("a.jpg cannot be read")

    monkeypatch.setattr(trial_module, "fold_metrics", fake(unreadable))
    with pytest.raises(DataError, match=r"a\.jpg"):
        tune(tiny_settings(catalogue), tmp_path / "t", search=RATES, options=options(trials=3))
    assert count_done(trials_of(tmp_path / "t")) == 0
    monkeypatch.setattr(trial_module, "fold_metrics", fake(bowl))
    mended = resume_tuning(tmp_path / "t")
    assert len(mended.complete) == 3
    assert mended.default is not None


@pytest.mark.slow
def test_two_objectives_give_the_second_its_say_among_equals(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def metrics(settings: Settings, path: Path, fold: Any, wanted: list[str], **rest: Any) -> dict[str, float]:
        assert wanted == ["FNIR", "OPIS"]
        noise = 0.02 * (1 if path.name == "fold-1" else -1) * (settings.learning_rate > 0.005)
        coarse = 0.2 if settings.learning_rate < 0.02 else 0.9
        return {"FNIR": coarse + noise, "R@1": 0.5, "MAP@R": 0.5, "OPIS": settings.learning_rate}

    monkeypatch.setattr(trial_module, "fold_metrics", metrics)
    wanted = options(trials=10, objectives=("fnir", "opis"))
    outcome = tune(tiny_settings(catalogue), tmp_path / "s", search=RATES, options=wanted)
    assert outcome.best is not None
    equals = [trial for trial in outcome.complete if trial.values[0] < 0.5]
    assert 1 < len(equals) < 10
    assert outcome.best.values[1] == min(trial.values[1] for trial in equals)
    assert "Both objectives" in render_study(outcome)


@pytest.mark.slow
def test_the_page_and_the_table_tell_what_was_found(catalogue: Path, tmp_path: Path, cheap: None) -> None:
    search = parse_searches(["learning_rate=1e-4..1e-1:log", "weight_decay=1e-5..1e-3:log", "loss=smooth_ap,arcface"])
    outcome = tune(tiny_settings(catalogue), tmp_path / "s", search=search, options=options(trials=16, pruner="none"))
    weights = importances(outcome)
    assert set(weights) == {"learning_rate", "weight_decay", "loss"}
    assert next(iter(weights)) == "learning_rate"
    assert sum(weights.values()) == pytest.approx(1)
    page = render_study(outcome)
    assert page.count("<svg") == 3 + 3  # history, importance, how trials went, and one a setting
    assert "<script" not in page
    assert page.count("<tr") == 17
    text = render(outcome)
    assert "16 trials: 16 complete" in text
    assert outcome.best is not None
    assert text.splitlines()[2].split()[0] == str(outcome.best.number)
    assert "given settings" in text


def test_one_trial_makes_a_page_too(catalogue: Path, tmp_path: Path, cheap: None) -> None:
    outcome = tune(tiny_settings(catalogue), tmp_path / "s", search=RATES, options=options(trials=1))
    assert importances(outcome) == {}
    assert "No trial was better" in render_study(outcome)


def test_a_queued_trial_is_nobody_elses_and_is_freed_by_the_end_of_its_process(catalogue: Path, tmp_path: Path) -> None:
    plan = make_plan(tiny_settings(catalogue), RATES, options(trials=2))
    folder = StudyFolder.create(tmp_path / "s", plan)
    with folder.study(plan) as study:
        mine, yours = next_trial(study, folder, plan), next_trial(study, folder, plan)
        assert mine is not None
        assert yours is not None
        assert mine.trial.number != yours.trial.number
        assert next_trial(study, folder, plan) is None  # two were asked for, and two are under way
        mine.lock.close()  # as the system does when a process ends
        again = next_trial(study, folder, plan)
        assert again is not None
        assert again.settings == mine.settings
        assert next_trial(study, folder, plan) is None
        states = [trial.state for trial in study.get_trials()]
        assert states == [TrialState.FAIL, TrialState.RUNNING, TrialState.RUNNING]
        yours.lock.close()
        again.lock.close()


def test_a_trial_that_ends_while_another_worker_looks_for_the_killed_is_left_alone(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(tiny_settings(catalogue), RATES, options(trials=2))
    folder = StudyFolder.create(tmp_path / "s", plan)
    with folder.study(plan) as study:
        first = next_trial(study, folder, plan)
        assert first is not None
        lock_trial = StudyFolder.lock_trial

        def lock_just_after_its_end(folder: StudyFolder, number: int) -> IO[bytes] | None:
            if number == first.trial.number:
                study.tell(first.trial, 0.5)
                first.lock.close()
            return lock_trial(folder, number)

        monkeypatch.setattr(StudyFolder, "lock_trial", lock_just_after_its_end)
        second = next_trial(study, folder, plan)
        assert second is not None
        assert [trial.state for trial in study.get_trials()] == [TrialState.COMPLETE, TrialState.RUNNING]
        second.lock.close()


def test_a_trial_that_kills_its_worker_each_time_is_given_up(catalogue: Path, tmp_path: Path, cheap: None) -> None:
    plan = make_plan(tiny_settings(catalogue), RATES, options(trials=2))
    folder = StudyFolder.create(tmp_path / "s", plan)
    with folder.study(plan) as study:
        for _ in range(ATTEMPTS):
            queued = next_trial(study, folder, plan)
            assert queued is not None
            queued.lock.close()
    outcome = resume_tuning(tmp_path / "s")
    assert [trial.state for trial in outcome.trials] == [TrialState.FAIL, TrialState.COMPLETE]
    assert "killed on every attempt" in render(dataclasses.replace(outcome, best=None))


@pytest.mark.slow
def test_a_killed_study_resumes_without_losing_or_repeating_a_trial(catalogue: Path, tmp_path: Path) -> None:
    study, mark = tmp_path / "study", tmp_path / "mark"
    script = FAKE.replace("MARK", repr(str(mark))).replace("DYING", "3").replace("PAUSE", "0")
    begin = f"tune(Settings.from_dict({tiny_settings(catalogue).to_dict()!r}), Path({str(study)!r}), "
    begin += "search=parse_searches(['learning_rate=1e-4..1e-1:log']), options=TuneOptions(trials=7, folds=2))"
    child = subprocess.Popen([sys.executable, "-c", script + begin], cwd=ROOT, stdout=subprocess.DEVNULL)
    wait_for(mark.exists, child)
    child.send_signal(signal.SIGKILL)
    child.wait()
    left = trials_of(study)
    assert [trial.state for trial in left] == [*[TrialState.COMPLETE] * 3, TrialState.RUNNING]
    resume = f"resume_tuning(Path({str(study)!r}))"
    subprocess.run([sys.executable, "-c", script + resume], cwd=ROOT, check=True, capture_output=True)
    trials = trials_of(study)
    assert count_done(trials) == 7
    done = [trial for trial in trials if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    assert len(done) == 7
    assert [trial.number for trial in trials if trial not in done] == [3]
    (again,) = [trial for trial in trials if trial.user_attrs.get("again") == 3]
    assert again.params == trials[3].params
    assert str(again.params["learning_rate"]) == mark.read_text()
    whole = tmp_path / "whole"
    subprocess.run([sys.executable, "-c", script + begin.replace(str(study), str(whole))], cwd=ROOT, check=True)
    assert [trial.params for trial in done] == [trial.params for trial in trials_of(whole)]


@pytest.mark.slow
def test_calibration_and_test_photos_are_never_read(catalogue: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(catalogue.parent, tmp_path / "catalogue")
    splits = make_splits(read_catalogue(catalogue), seed=0)
    for photo in read_catalogue(folder / catalogue.name):
        if photo.item_id in {*splits.calibration, *splits.test}:
            photo.path.unlink()
    base = tiny_settings(folder / catalogue.name, epochs=1)
    outcome = tune(base, tmp_path / "study", search=RATES, options=options(trials=1))
    assert outcome.best is not None
    groups = {photo.item_id: photo.group for photo in read_catalogue(catalogue)}
    for fit, validation in outcome.plan.folds:
        assert not {groups[item] for item in fit} & {groups[item] for item in validation}
        assert not {*fit, *validation} & {*splits.calibration, *splits.test}


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["opis", "search_opis", "map@r"])
def test_every_objective_is_measured_on_the_fold_left_out(catalogue: Path, tmp_path: Path, objective: str) -> None:
    wanted = options(trials=1, objectives=(objective,))
    outcome = tune(tiny_settings(catalogue, epochs=1), tmp_path / "study", search=RATES, options=wanted)
    assert outcome.best is not None
    folds = outcome.best.user_attrs["metrics"][outcome.plan.metrics[0]]
    assert len(folds) == 2
    assert outcome.best.value == pytest.approx(sum(folds) / 2)
    assert 0 <= outcome.best.value <= 1


@pytest.mark.slow
def test_features_of_a_frozen_backbone_are_made_once(catalogue: Path, tmp_path: Path) -> None:
    base = tiny_settings(catalogue, epochs=1, precompute=1, frozen=1.0)
    search = parse_searches(["head_learning_rate=1e-4..1e-1:log"])
    outcome = tune(base, tmp_path / "kept", search=search, options=options(trials=2))
    made = list((tmp_path / "kept" / "features").rglob("*.safetensors"))
    assert len(made) == 2  # one a fold
    assert "features" in (tmp_path / "kept/trials/0000/log.txt").read_text()
    assert "features" not in (tmp_path / "kept/trials/0001/log.txt").read_text()
    for file in made:
        file.unlink()
    again = tune(base, tmp_path / "anew", search=search, options=options(trials=2))
    assert [trial.values for trial in again.trials] == [trial.values for trial in outcome.trials]


@pytest.mark.slow
def test_two_workers_share_a_study_and_one_that_is_killed_is_replaced(catalogue: Path, tmp_path: Path) -> None:
    study = tmp_path / "study"
    words = ["tune", catalogue, "-o", study, "--search", "learning_rate=1e-4..1e-1:log", "--trials", 6, "--folds", 2]
    settings = ("size=32", "dim=16", "epochs=6", "items_per_batch=4", "device=cpu", "freeze_batch_norm=false")
    words += ["--jobs", 2, "--pruner", "none", *(word for setting in settings for word in ("--set", setting))]
    command = [sys.executable, "-c", "from retrieval.cli.main import main; main()", *map(str, words)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        wait_for(lambda: len(owners(study)) == 2, child)  # two trials at a time
        os.kill(next(iter(owners(study))), signal.SIGKILL)
        out, _ = child.communicate(timeout=300)
    assert child.returncode == 0, out
    assert "a worker was killed by SIGKILL; its trial is repeated" in out
    trials = trials_of(study)
    assert count_done(trials) == 6
    assert sum(trial.state == TrialState.COMPLETE for trial in trials) == 6
    assert sum(trial.state == TrialState.FAIL for trial in trials) == 1
    assert out.splitlines()[-1] == f"Next: retrieval train -o runs/study --config {study / 'best.toml'}"
    assert (study / "report.html").exists()


@pytest.mark.slow
def test_the_command_tells_its_way_from_search_to_training(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["retrieval", *map(str, words)])
        try:
            main()
        except SystemExit as done:
            return int(done.code or 0)
        return 0

    settings = ("size=32", "dim=16", "epochs=1", "items_per_batch=4", "device=cpu")
    quick = ["--folds", 2, *(word for setting in settings for word in ("--set", setting))]
    study = tmp_path / "study"
    assert call("tune", catalogue, "-o", study, *quick) == 1
    assert "error: --search must name at least one setting" in capsys.readouterr().err
    assert call("tune", catalogue, "-o", study, *quick, "--set", "regularizer=tcm", "--trials", 2) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "Searching regularizer.positive_margin in 0.6..0.98, regularizer.negative_margin in 0.2..0.7: 2"
    )
    assert "2/2  trial 1: FNIR" in out
    assert call("tune", "-o", study, "--resume", "--trials", 3) == 0
    assert "3/3  trial 2: FNIR" in capsys.readouterr().out
    assert call("train", "-o", tmp_path / "run", "--config", study / "best.toml") == 0
    best = tomllib.loads((study / "best.toml").read_text())
    used = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert used["regularizer_arguments"] == best["regularizer_arguments"]
    assert set(best["regularizer_arguments"]) == {"positive_margin", "negative_margin"}


def owners(study: Path) -> dict[int, str]:
    """Return the processes that hold the lock of a trial, and the lock."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            held = [str(entry.readlink()) for entry in (process / "fd").iterdir()]
        except OSError:
            continue
        found |= {
            int(process.name): name for name in held if name.startswith(f"{study}/trials/") and name.endswith("lock")
        }
    return found


def wait_for(there: Callable[[], bool], child: subprocess.Popen[Any]) -> None:
    for _ in range(1200):
        if there():
            return
        assert child.poll() is None, "it ended before it could be killed"
        time.sleep(0.05)
    pytest.fail("it did not begin")
