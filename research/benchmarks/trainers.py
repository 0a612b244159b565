"""Comparison with the trainers of pytorch-metric-learning and OML: same photos, backbone, batches, rates and epochs.

    pip install --no-deps --target peers open-metric-learning==4.0.0 omegaconf antlr4-python3-runtime==4.9.3 \\
        validators albumentations albucore opencv-python-headless simsimd stringzilla
    python -m research.benchmarks.trainers --epochs 3 --seeds 5 --peers peers --tuned studies/finetuned/best.toml

Each peer uses its own loop or sampler, miner and loss, as shown in its README. For all of them, this project reads,
crops and colour-augments the photos, the optimizer is AdamW with the learning rates and schedule of this project, and
the epoch with the lowest FNIR on validation items is kept. Every recipe sees the same number of photos. OML imports
torchvision and gdown for models that are not used here; empty modules replace them.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from training.config import Settings
from training.data.samplers import Sampler
from training.data.sources import PixelSource
from training.evaluation.report import evaluate_run
from training.loop.distributed import ProcessGroup
from training.loop.optimizer import learning_rate_factor, make_optimizers
from training.loop.run import BEST, Run
from training.loop.train import begin_run
from training.loop.trainer import Trainer
from training.model import EmbeddingModel

from .grocery import START, report_of
from .tables import Recorder, parser_of

METRICS = ("R@1", "MAP@R", "OPIS", "TPIR at exactly the target")
BETTER = {"R@1": 1, "MAP@R": 1, "OPIS": -1, "TPIR at exactly the target": 1}
P, K = 16, 4


class Labelled(Dataset[tuple[Tensor, int]]):
    """Inputs of a model with labels, in the format of both peers."""

    labels: list[int]

    def __len__(self) -> int:
        return len(self.labels)


class Task(Protocol):
    """What a peer trains: the model, with the settings and the number of batches of an epoch."""

    @property
    def model(self) -> EmbeddingModel: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def sampler(self) -> Sampler: ...


class Photos(Labelled):
    """Augmented photos."""

    def __init__(self, trainer: Trainer, seed: int) -> None:
        self._source: PixelSource = trainer.source  # type: ignore[assignment]
        self.labels = trainer.labels.tolist()
        self._generator = np.random.default_rng(seed)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        pixels = self._source.augment(position, self._generator)
        return self._source.prepare(pixels[None].copy())[0], self.labels[position]


def with_pml(task: Task, photos: Labelled, keep: Callable[[], None]) -> None:
    """Train with `MetricLossOnly`, `MPerClassSampler`, the triplet loss and the multi-similarity miner."""
    from pytorch_metric_learning import losses, miners, samplers
    from pytorch_metric_learning.trainers import MetricLossOnly

    optimizer, schedule = _optimizer(task)
    MetricLossOnly(
        models={"trunk": task.model},
        optimizers={"trunk_optimizer": optimizer},
        lr_schedulers={"trunk_scheduler_by_iteration": schedule},
        batch_size=P * K,
        loss_funcs={"metric_loss": losses.TripletMarginLoss(margin=0.1)},
        mining_funcs={"tuple_miner": miners.MultiSimilarityMiner(epsilon=0.1)},
        dataset=photos,
        sampler=samplers.MPerClassSampler(photos.labels, m=K, length_before_new_iter=len(photos)),
        iterations_per_epoch=task.sampler.batches,
        freeze_trunk_batchnorm=True,
        dataloader_num_workers=0,
        end_of_epoch_hook=lambda _: keep(),
    ).train(num_epochs=task.settings.epochs)


def with_oml(task: Task, photos: Labelled, keep: Callable[[], None]) -> None:
    """Train with `BalanceSampler` and `TripletLossWithMiner(0.1, AllTripletsMiner())`, in the loop of OML's README."""
    missing = ["gdown", *(f"torchvision{part}" for part in ("", ".ops", ".transforms", ".models", ".models.resnet"))]
    sys.modules |= {name: _Absent(name) for name in missing}
    from oml.losses.triplet import TripletLossWithMiner
    from oml.miners.inbatch_all_tri import AllTripletsMiner
    from oml.samplers.balance import BalanceSampler

    for name in missing:  # transformers checks whether these packages are installed
        del sys.modules[name]
    optimizer, schedule = _optimizer(task)
    criterion = TripletLossWithMiner(0.1, AllTripletsMiner())
    sampler = BalanceSampler(photos.labels, n_labels=P, n_instances=K)
    batches: Iterator[Any] = iter(())
    for _ in range(task.settings.epochs):
        for _ in range(
            task.sampler.batches
        ):  # an epoch of this sampler covers items: repeat it until the number of photos is reached
            batch = next(batches, None)
            if batch is None:
                batches = iter(DataLoader(photos, batch_sampler=sampler))
                batch = next(batches)
            pixels, labels = batch
            embeddings = nn.functional.normalize(task.model(pixels), dim=1)
            criterion(embeddings, labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        keep()


PEERS = {"pytorch-metric-learning": with_pml, "OML": with_oml}


def _optimizer(task: Task) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
    settings, steps = task.settings, task.sampler.batches * task.settings.epochs
    (optimizer,) = make_optimizers(task.model, nn.Module(), settings)
    course = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: learning_rate_factor(s, steps, settings.warmup))
    return optimizer, course


def peer_report(name: str, settings: Settings, path: Path) -> dict[str, Any]:
    """Train with a peer into a run directory and evaluate it as any other run."""
    if (path / "evaluation.json").exists():
        return dict(json.loads((path / "evaluation.json").read_text()))
    if not (path / "settings.json").exists():
        begin_run(settings, path)
    run = Run.open(path)
    torch.manual_seed(settings.seed)
    np.random.seed(settings.seed)  # noqa: NPY002, the peers' samplers draw from it
    trainer = Trainer(run, process_group=ProcessGroup(torch.device("cpu")))
    trainer.learner.begin(0)
    best: list[float] = []

    def keep() -> None:
        trainer.model.eval()
        metrics = trainer._validate()
        rank = [metrics["FNIR"], -metrics["R@1"]]
        print(f"{name}, seed {settings.seed}: R@1 {metrics['R@1']:.3f}, FNIR {metrics['FNIR']:.3f}", flush=True)
        if not best or rank < best:
            best[:] = rank
            run.save(BEST, trainer.model.state_dict())
        trainer.learner.begin(0)

    PEERS[name](trainer, Photos(trainer, settings.seed), keep)
    return evaluate_run(run)


def tables(results: Mapping[str, list[dict[str, Any]]], record: Recorder) -> None:
    """Record mean ± deviation over seeds on unseen items, and the gain of the first recipe over each other."""
    record.table("recipes", ("recipe", *METRICS))
    reports = {name: [report["splits"]["unseen"] for report in reports] for name, reports in results.items()}
    for name, found in reports.items():
        cells = []
        for metric in METRICS:
            values = np.array([report[metric] for report in found])
            digits = 4 if metric == "OPIS" else 3
            spread = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
            cells.append(f"{values.mean():.{digits}f}{spread}")
        record.add(name, *cells)
    record.table("gains", ("gain, paired by seed", *METRICS))
    for one, other in itertools.combinations(reports, 2):
        cells = []
        for metric in METRICS:
            gains = np.array([
                BETTER[metric] * (a[metric] - b[metric]) for a, b in zip(reports[one], reports[other], strict=True)
            ])  # fmt: skip
            half = stats.t.ppf(0.975, len(gains) - 1) * gains.std(ddof=1) / np.sqrt(len(gains))
            cells.append(f"{gains.mean():+.3f} ± {half:.3f}")
        record.add(f"{one} over {other}", *cells)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/trainers"))
    parser.add_argument("--tuned", type=Path, help="TOML of `retrieval tune`; the tuned recipe comes first.")
    parser.add_argument("--peers", type=Path, help="Folder that OML was installed into.")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", action="append", help="Train only this recipe; for two calls at once.")
    arguments = parser.parse_args()
    if arguments.peers:
        sys.path.insert(0, str(arguments.peers))
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")).resolve()
    base: dict[str, Any] = {
        "catalogue": str(data / "data/grocery/grocery.csv"),
        "backbone": str(data / "weights/mobilenet_v1_0.75_224"),
        "epochs": arguments.epochs,
        **START,
        "precision": "fp32",
        "items_per_batch": P,
        "photos_per_item": K,
    }
    recipes: dict[str, dict[str, Any]] = {}
    if arguments.tuned:
        tuned = tomllib.loads(arguments.tuned.read_text())
        fixed = (*base, "precompute", "epoch_steps", "seed", "split_seed")
        recipes["tuned"] = {name: value for name, value in tuned.items() if name not in fixed}
    recipes |= {"default": {}, **{name: {} for name in PEERS}}
    chosen = arguments.only or list(recipes)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    for seed in range(arguments.seeds):
        for name in chosen:
            settings = Settings.from_dict(base | recipes[name] | {"seed": seed})
            path = arguments.output / f"{name.replace(' ', '-')}-{seed}"
            results[name].append((report_of if name not in PEERS else _peer(name))(settings, path))
    with Recorder("trainers", arguments) as record:
        tables(results, record)


def _peer(name: str) -> Callable[[Settings, Path], dict[str, Any]]:
    return lambda settings, path: peer_report(name, settings, path)


class _Absent(ModuleType):
    """Stub for a package that is imported but not used."""

    __path__: ClassVar[list[str]] = []  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


if __name__ == "__main__":
    main()
