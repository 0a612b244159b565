import itertools
import json
from pathlib import Path

import pytest
import torch

from retrieval.errors import InvalidParameter, RunError
from training.loop.distributed import ProcessGroup
from training.loop.optimizer import WARMUP, learning_rate_factor
from training.loop.run import BEST, LAST, Run
from training.loop.train import begin_run, train

from ..conftest import dying_in_epoch, tiny_settings


def weights(run: Run, name: str) -> dict[str, torch.Tensor]:
    return run.load(name)[0]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_a_run_leaves_what_it_promises(run: Run) -> None:
    assert run.progress["epoch"] == 2
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    wanted = {
        f"validation {name}" for name in ("R@1", "TPIR", "mean TPIR", "fitted TPIR", "unfitted FPIR", "unfitted OPIS")
    }
    assert all(wanted <= line.keys() for line in lines)
    assert "loss" in lines[0]
    assert list((run.path / "tensorboard").iterdir())
    assert run.progress["best"]["metrics"].items() <= lines[-1].items()


def test_a_run_records_the_backbone_that_was_chosen_and_the_length_of_its_embedding(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.backbones.hub.choose_backbone", lambda: ("efficientnet-lite0", "no hub answers"))
    settings = tiny_settings(catalogue, backbone="auto", dim=0)
    begin_run(settings, tmp_path / "run", ProcessGroup.join())
    opened = Run.open(tmp_path / "run")
    assert (opened.settings.backbone, opened.settings.dim) == ("efficientnet-lite0", 1280)
    assert opened.new_model().head.weight.shape == (1280, 1280)


@pytest.mark.usefixtures("empty_pictures")
def test_fewer_than_five_validation_items_choose_nothing(
    catalogue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tiny_settings(catalogue, select="tpir"), tmp_path / "run")
    assert len(run.splits.validation) == 2
    assert run.progress["best"]["epoch"] == 2
    assert run.progress["best"]["rank"] == []
    assert "2 items for validation, too few to choose a checkpoint (minimum 5)" in capsys.readouterr().out


@pytest.mark.end_to_end
def test_training_learns(catalogue: Path, tmp_path: Path) -> None:
    settings = tiny_settings(catalogue, epochs=6, loss="smooth_ap")
    run = train(settings, tmp_path / "run")
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < 0.6 * lines[1]["loss"]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_another_seed_another(catalogue: Path, tmp_path: Path, run: Run) -> None:
    again = train(tiny_settings(catalogue), tmp_path / "again")
    assert equal(weights(run, LAST), weights(again, LAST))
    other = train(tiny_settings(catalogue, seed=1), tmp_path / "other")
    assert not equal(weights(run, LAST), weights(other, LAST))


@pytest.mark.parametrize("dying", [pytest.param(0, marks=pytest.mark.end_to_end), 1])
def test_resuming_gives_the_same_result(dying: int, catalogue: Path, tmp_path: Path, run: Run) -> None:
    with dying_in_epoch(dying):
        train(tiny_settings(catalogue), tmp_path / "run")
    resumed = train(tiny_settings(catalogue), tmp_path / "run", resume=True)
    assert equal(weights(run, LAST), weights(resumed, LAST))
    assert equal(weights(run, BEST), weights(resumed, BEST))
    assert resumed.progress == run.progress or resumed.progress["epoch"] == 2


def test_a_run_is_never_overwritten(catalogue: Path, run: Run) -> None:
    with pytest.raises(RunError, match="--resume"):
        train(tiny_settings(catalogue), run.path)


def test_an_unknown_loss_is_refused_before_anything_is_written(catalogue: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="smooth_ap"):
        train(tiny_settings(catalogue, loss="smoothap"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_learning_rate_rises_and_then_falls_to_nothing() -> None:
    factors = [learning_rate_factor(step, 200) for step in range(200)]
    assert factors[0] == pytest.approx(1 / (200 * WARMUP))
    assert max(factors) == pytest.approx(1.0)
    assert all(a >= b for a, b in itertools.pairwise(factors[10:]))
    assert factors[-1] < 0.01
