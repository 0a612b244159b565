import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from retrieval.errors import InvalidParameter, RunError, TrainingDiverged
from training.loop.begin import begin_run
from training.loop.distributed import ProcessGroup
from training.loop.learner import Learner
from training.loop.optimizer import WARMUP, learning_rate_factor
from training.loop.run import BEST, LAST, Run
from training.loop.train import train
from training.loop.trainer import Trainer

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


def nan_loss(learner: Learner) -> None:
    """Let the losses of a learner be NaN."""
    learner.loss.register_forward_hook(lambda _, __, loss: loss * math.nan)


def nan_weight(learner: Learner) -> None:
    """Let a weight become NaN after the last loss was computed."""

    def check_weights() -> None:
        learner.model.head.bias.data.fill_(math.nan)
        Learner.check_weights(learner)

    learner.check_weights = check_weights  # type: ignore[method-assign]


def huge_weight(learner: Learner) -> None:
    """Let weights grow, with finite losses, until embeddings overflow."""
    learner.check_weights = lambda: learner.model.head.weight.data.fill_(3e38)  # type: ignore[method-assign]


@pytest.mark.usefixtures("empty_pictures")
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (nan_loss, r"epoch 2: the loss of step \d+ is nan; the checkpoint of epoch 1 is kept\. Train with lower"),
        (nan_weight, "epoch 2: model.head.bias is not finite"),
        (huge_weight, "epoch 2: embeddings of validation photos are not finite"),
    ],
)
def test_an_epoch_that_diverges_ends_the_training_and_the_run_goes_on_from_the_one_before(
    fault: Callable[[Learner], None], told: str, catalogue: Path, tmp_path: Path, run: Run
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        real = Trainer._epoch

        def epoch(self: Trainer, number: int) -> object:
            if number == 1:
                fault(self.learner)
            return real(self, number)

        patch.setattr(Trainer, "_epoch", epoch)
        with pytest.raises(TrainingDiverged, match=told):
            train(tiny_settings(catalogue), tmp_path / "run")
    assert Run.open(tmp_path / "run").progress["epoch"] == 1
    resumed = train(tiny_settings(catalogue), tmp_path / "run", resume=True)
    assert equal(weights(run, LAST), weights(resumed, LAST))
    assert equal(weights(run, BEST), weights(resumed, BEST))


def test_labels_stay_those_of_the_run_if_an_item_is_gone(run: Run) -> None:
    """A proxy belongs to its item, whatever became of the items before it."""
    photos, first = run.photos(), min(run.splits.fit)
    whole, rest = (Trainer(run, photos=some) for some in (photos, [p for p in photos if p.item_id != first]))
    assert len(set(whole.labels.tolist())) == len(run.splits.fit)
    assert rest.labels.tolist() == [label for label in whole.labels.tolist() if label != 0]


@pytest.mark.parametrize("loss", ["recall_at_k", "vmf_nca"])
def test_a_learning_rate_without_bounds_leaves_no_run(catalogue: Path, tmp_path: Path, loss: str) -> None:
    settings = tiny_settings(catalogue, head_learning_rate=1e36, select="last", loss=loss)
    with pytest.raises(TrainingDiverged, match=r"diverged in epoch 1.*Train with lower learning rates"):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_scaled_loss_that_overflows_is_a_step_that_the_scaler_skips(catalogue: Path, tmp_path: Path) -> None:
    begin_run(tiny_settings(catalogue), tmp_path / "run", ProcessGroup.join())
    learner = Trainer(Run.open(tmp_path / "run")).learner
    learner._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    learner.loss.register_forward_hook(lambda _, __, loss: loss * 8)
    before = learner.model.head.weight.clone()
    pixels = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3)).astype(np.uint8)
    learner.begin(0)
    assert 2 < learner.take(pixels, torch.arange(8) % 4) < 8
    assert torch.equal(before, learner.model.head.weight)
    assert learner._scaler.get_scale() == 2.0**126
