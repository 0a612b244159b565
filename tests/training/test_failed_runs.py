"""A training that fails leaves nothing in the way of the corrected one; one that is killed goes on with --resume."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from index.files import holding
from retrieval.catalogue.check import readiness
from retrieval.catalogue.read import read_catalogue
from retrieval.catalogue.splits import make_evaluation_protocol, make_splits, photos_in_protocol
from retrieval.cli.data import data
from retrieval.cli.main import group
from retrieval.errors import DataError, RunError
from training.data.sources import FEATURES
from training.loop.begin import begin_run
from training.loop.distributed import ProcessGroup
from training.loop.run import FITTED, LAST, Run
from training.loop.train import train
from training.loop.trainer import Trainer

from ..world import draw
from .conftest import dying_in_epoch, tiny_settings
from .loop.test_trainer import equal, weights

pytestmark = pytest.mark.slow


@pytest.fixture
def copied(catalogue: Path, tmp_path: Path) -> Path:
    """Return a copy of the catalogue that a test may damage."""
    shutil.copytree(catalogue.parent, tmp_path / "photos")
    return tmp_path / "photos" / catalogue.name


def trained_photos(catalogue: Path) -> list[Path]:
    photos = read_catalogue(catalogue)
    return [p.path for p in photos_in_protocol(photos, make_splits(photos).fit, make_evaluation_protocol(photos))]


def test_damaged_photos_are_counted_and_named_before_anything_is_written(copied: Path, tmp_path: Path) -> None:
    damaged = trained_photos(copied)[:5]
    whole = {path: path.read_bytes() for path in damaged}
    for path in damaged[:4]:
        path.write_bytes(whole[path][: len(whole[path]) // 2])  # its header is fine
    damaged[4].unlink()
    with pytest.raises(DataError) as refused:
        train(tiny_settings(copied), tmp_path / "run")
    told = str(refused.value)
    assert told.startswith("5 of ")
    assert told.count(".png: ") == 3
    assert "and 2 more" in told
    assert "data check CATALOGUE --report check.json" in told
    assert not (tmp_path / "run").exists()

    command = ["check", str(copied), "--report", str(tmp_path / "check.json")]
    assert CliRunner().invoke(data, command).exit_code == 1
    listed = json.loads((tmp_path / "check.json").read_text())["unreadable"]
    assert sorted(name for name, _ in listed) == sorted(path.name for path in damaged)

    for path, content in whole.items():
        path.write_bytes(content)
    assert train(tiny_settings(copied, epochs=1), tmp_path / "run").progress["epoch"] == 1


def test_items_of_one_photo_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with (tmp_path / "photos.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "item_id"])
        for item in range(20):
            draw(item, 0).save(tmp_path / f"{item}.png")
            rows.writerow([f"{item}.png", f"item-{item}"])
    with pytest.raises(DataError, match="Add a second photo"):
        train(tiny_settings(tmp_path / "photos.csv"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert readiness(read_catalogue(tmp_path / "photos.csv")).problem is not None


def fail(epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Trainer._epoch

    def out_of_memory(self: Trainer, number: int) -> dict[str, float]:
        if number == epoch:
            (self.run.path / "half.partial").write_text("half")
            raise RuntimeError("out of memory")
        return real(self, number)

    monkeypatch.setattr(Trainer, "_epoch", out_of_memory)


def test_a_failure_in_the_first_epoch_leaves_nothing(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(0, monkeypatch)
    with pytest.raises(RuntimeError, match="out of memory"):
        train(tiny_settings(catalogue), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    corrected = train(tiny_settings(catalogue, epochs=1, items_per_batch=3), tmp_path / "run")
    assert corrected.settings.items_per_batch == 3


def test_what_was_in_the_directory_before_stays(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run" / "notes").mkdir(parents=True)
    (tmp_path / "run" / "notes" / "mine.txt").write_text("mine")
    fail(0, monkeypatch)
    with pytest.raises(RuntimeError):
        train(tiny_settings(catalogue), tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").rglob("*")] == ["notes", "mine.txt"]


def test_a_run_that_was_killed_before_its_first_epoch_can_be_resumed(
    catalogue: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_run(tiny_settings(catalogue), tmp_path / "run", ProcessGroup.join())  # and nothing more
    with pytest.raises(RunError, match="or remove it: no epoch of it is finished"):
        train(tiny_settings(catalogue), tmp_path / "run")
    fail(0, monkeypatch)
    with pytest.raises(RuntimeError):
        train(tiny_settings(catalogue), tmp_path / "run", resume=True)
    monkeypatch.undo()
    resumed = train(tiny_settings(catalogue), tmp_path / "run", resume=True)
    assert equal(weights(run, LAST), weights(resumed, LAST))


@pytest.mark.parametrize("more", [[], ["--epochs", "9"], ["--set", "seed=3"]], ids=["nothing else", "option", "set"])
def test_resuming_with_other_settings_says_that_they_are_ignored(tmp_path: Path, run: Run, more: list[str]) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    done = CliRunner().invoke(group, ["train", "--resume", "-o", str(tmp_path / "run"), *more], catch_exceptions=False)
    assert done.exit_code == 0
    assert ("whatever else is given" in done.stderr) == bool(more)


@pytest.mark.parametrize(
    "step", [*(pytest.param(step, marks=pytest.mark.slow) for step in ("save", "record")), "write_progress"]
)
def test_a_run_that_was_killed_between_two_files_tells_of_every_epoch(
    step: str, catalogue: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, step, killed)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_settings(catalogue), tmp_path / "run")
    monkeypatch.undo()
    resumed = train(tiny_settings(catalogue), tmp_path / "run", resume=True)
    lines = (resumed.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
    assert resumed.progress["epoch"] == 2
    assert equal(weights(run, LAST), weights(resumed, LAST))


def test_a_run_that_was_killed_before_its_last_progress_was_written_is_complete(
    catalogue: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Run.write_progress
    monkeypatch.setattr(Run, "write_progress", lambda run, values: values["epoch"] == 2 or real(run, values))
    killed = train(tiny_settings(catalogue), tmp_path / "run")  # the file is that of the first epoch
    assert json.loads((killed.path / "progress.json").read_text())["epoch"] == 1
    told = killed.progress
    assert (told["epoch"], told["best"]["epoch"]) == (2, run.progress["best"]["epoch"])
    (killed.path / "progress.json").unlink()
    assert killed.progress == told
    with (killed.path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "lo')  # cut off
    resumed = train(tiny_settings(catalogue), killed.path, resume=True)
    lines = (resumed.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]


def test_two_processes_do_not_train_in_one_folder(catalogue: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "of the other").write_text("kept")
    for resume in (False, True):
        with holding(tmp_path / "run"), pytest.raises(RunError, match="another process trains in"):
            train(tiny_settings(catalogue, epochs=1), tmp_path / "run", resume=resume)
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["of the other"]
    assert train(tiny_settings(catalogue, epochs=1), tmp_path / "run").progress["epoch"] == 1


def test_damaged_files_of_a_run_are_named_or_made_again(catalogue: Path, tmp_path: Path) -> None:
    settings = tiny_settings(catalogue, epochs=2, precompute=1)
    whole = train(settings, tmp_path / "whole")
    with dying_in_epoch(1):
        train(settings, tmp_path / "run")
    (tmp_path / "run" / FEATURES).write_bytes((tmp_path / "run" / FEATURES).read_bytes()[:99])
    resumed = train(settings, tmp_path / "run", resume=True)
    assert equal(weights(whole, LAST), weights(resumed, LAST))
    (resumed.path / FITTED).write_bytes(b"PK\x03\x04")
    with pytest.raises(RunError, match=r"fitted\.npz is damaged"):
        resumed.photos()


def test_a_run_that_was_killed_while_it_was_begun_is_begun_again(catalogue: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "splits.json").write_text("{")
    assert train(tiny_settings(catalogue, epochs=1), tmp_path / "run").progress["epoch"] == 1


@pytest.mark.parametrize(("photos_of_each", "batches"), [(8, 2), (5, 1)])
def test_what_data_check_tells_is_what_training_does(
    photos_of_each: int, batches: int, copied: Path, tmp_path: Path
) -> None:
    head, *lines = copied.read_text().splitlines()
    kept = [line for line in lines if int(line.split(".")[0].split("_")[1]) < photos_of_each]
    copied.write_text("\n".join([head, *kept]) + "\n")
    found = readiness(read_catalogue(copied))
    begin_run(tiny_settings(copied, items_per_batch=8, photos_per_item=4), tmp_path / "run", ProcessGroup.join())
    trainer = Trainer(Run.open(tmp_path / "run"))
    splits = trainer.run.splits
    assert found.parts.startswith(
        f"Training fits {len(splits.fit)} items ({len(trainer.labels)} photos; {len(trainer.run.held_out)} others are "
        f"searched to judge it) and validates on {len(splits.validation)}; "
    )
    assert trainer.sampler.batches == batches
