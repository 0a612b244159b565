"""Linear heads on features of the frozen backbone, for grocery: features, training, metrics, tuning.

Each training photo is embedded in several augmented views and every other photo once; a linear embedding is trained on
these features with a loss. `paper_claims` and `rotations` use this module.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn
from tqdm import tqdm

from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.catalogue.splits import Splits, make_evaluation_protocol, make_splits, photos_in_protocol
from retrieval.metrics.identification import SearchScores, identification_rates, threshold_at_fpir
from training.backbones import backbone_preprocessing, load_backbone
from training.config import Settings
from training.data.augmentation import Augmentation
from training.data.reader import PhotoReader, evaluation_batches
from training.data.samplers import ItemSampler
from training.evaluation.embedding import to_device
from training.evaluation.evaluate import (
    consistency_metrics,
    identification_metrics,
    item_labels,
    make_evaluation_split,
    rank_metrics,
    score_split,
)
from training.loop.optimizer import learned_by, learning_rate_factor
from training.losses import Regularized, make_loss

VIEWS, EPOCHS, DIM = 8, 30, 128
TUNING_SEEDS = (100, 101, 102)

# losses with the values tuned on the validation items
GRIDS: dict[str, dict[str, Sequence[Any]]] = {
    "smooth_ap": {"temperature": (0.01, 0.03, 0.1, 0.2)},
    "recall_at_k": {"similarity_temperature": (0.01, 0.03, 0.1, 0.2)},
    "proxy_nca": {"scale": (4.5, 9.0, 16.0, 32.0)},
    "arcface": {"scale": (16.0, 32.0), "margin": (0.3, 0.5)},
    "proxy_anchor": {"alpha": (16.0, 32.0), "margin": (0.1, 0.3)},
    "vmf_nca": {"concentration": (20.0, 50.0), "norm": (20.0, 60.0)},
    "vmf_nca + anchor": {"anchor_weight": (0.3, 1.0, 3.0, 10.0)},
    "contextual_sum": {"contextual_weight": (0.4, 0.8, 0.9, 0.95)},
    "multi_similarity": {"beta": (20.0, 50.0), "base": (0.5, 0.7)},
    "mean_field_contrastive": {"positive_margin": (0.02, 0.2), "negative_margin": (0.3, 0.6)},
    "mean_field_class_wise_multi_similarity": {"beta": (20.0, 80.0), "delta": (0.2, 0.5)},
}


MARGINS = (
    (0.9, 0.5),
    (0.8, 0.4),
    (0.7, 0.3),
    (0.6, 0.2),
    (0.5, 0.1),
    (0.8, 0.2),
)  # (positive, negative) margins of TCM


@dataclass(frozen=True)
class FrozenFeatures:
    """Photos with features: training views (views, photos, w), and one per photo (photos, w)."""

    photos: list[Photo]
    splits: Splits
    views: Tensor
    plain: Tensor
    fit: np.ndarray  # positions of the training photos

    @property
    def labels(self) -> np.ndarray:
        return item_labels(self.photos)


@torch.inference_mode()
def load_features(folder: Path, data: Path) -> FrozenFeatures:
    """Return the features of grocery, computed once."""
    settings = Settings(
        catalogue=str(data / "data/grocery/grocery.csv"), backbone=str(data / "weights/mobilenet_v1_0.75_224")
    )
    photos = read_catalogue(Path(settings.catalogue))
    splits = make_splits(photos)
    fit_photos = photos_in_protocol(photos, splits.fit, make_evaluation_protocol(photos))
    position = {photo.photo_id: i for i, photo in enumerate(photos)}
    fit = np.array([position[photo.photo_id] for photo in fit_photos])
    path = folder / "features.npz"
    if not path.exists():
        backbone, _ = load_backbone(settings.backbone)
        sight = backbone_preprocessing(settings.backbone, size=settings.input_size, crop_ratio=settings.crop_ratio)
        backbone.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]

        def features(pixels: np.ndarray) -> np.ndarray:
            maps: Tensor = backbone(to_device(pixels, sight, torch.device("cpu")))
            return maps.mean(dim=(2, 3)).numpy()

        reader, augment = PhotoReader(fit_photos, sight), Augmentation(settings)
        generator = np.random.default_rng(0)
        views = [
            np.concatenate(
                [
                    features(np.stack([augment(reader[int(i)], generator) for i in block]))
                    for block in np.split(np.arange(len(fit)), range(64, len(fit), 64))
                ]
            )
            for _ in tqdm(range(VIEWS), desc="augmented views")
        ]
        everyone = PhotoReader(photos, sight, cache_bytes=0)
        blocks = evaluation_batches(everyone, range(len(photos)))
        plain = np.concatenate([features(b) for b in tqdm(blocks, desc="all photos", total=len(photos) // 64)])
        np.savez(path, views=np.stack(views), plain=plain)
    with np.load(path, allow_pickle=False) as file:
        raw_views, raw_plain = torch.from_numpy(file["views"]), torch.from_numpy(file["plain"])
    mean, scale = raw_views.mean(dim=(0, 1)), raw_views.std()
    return FrozenFeatures(photos, splits, (raw_views - mean) / scale, (raw_plain - mean) / scale, fit)


@dataclass(frozen=True)
class Task:
    """One training run of a head."""

    loss: str
    arguments: Mapping[str, Any]
    seed: int
    tcm: tuple[float, float] | None = None  # TCM margins
    label_noise: float = 0.0  # share of training photos with the label of another item
    items: float = 1.0  # share of the training items in use
    every_epoch: bool = False  # validation after each epoch

    @property
    def name(self) -> str:
        given = ",".join(f"{k}={v}" for k, v in sorted(self.arguments.items()))
        extra = f"+tcm{self.tcm}" if self.tcm else ""
        return f"{self.loss}({given}){extra} noise={self.label_noise} items={self.items} seed={self.seed}"


def train_head(features: FrozenFeatures, task: Task) -> tuple[nn.Linear, list[float]]:
    """Return the trained head, and validation R@1 after each epoch if requested."""
    torch.manual_seed(task.seed)
    generator = np.random.default_rng(task.seed)
    labels = item_labels([features.photos[i] for i in features.fit])
    kept = generator.permutation(labels.max() + 1)[: round(task.items * (labels.max() + 1))]
    rows = np.flatnonzero(np.isin(labels, kept))
    labels = np.unique(labels[rows], return_inverse=True)[1]
    classes = int(labels.max()) + 1
    wrong = generator.random(len(labels)) < task.label_noise
    labels = np.where(wrong, (labels + generator.integers(1, classes, len(labels))) % classes, labels)

    arguments = dict(task.arguments)
    norm = arguments.pop("norm", 0.0)
    loss: nn.Module = make_loss(task.loss, classes=classes, dim=DIM, arguments=arguments)
    if task.tcm:
        margins = {"positive_margin": task.tcm[0], "negative_margin": task.tcm[1]}
        loss = Regularized(loss, make_loss("tcm", classes=classes, dim=DIM, arguments=margins), 1.0)
    head = nn.Linear(features.plain.shape[1], DIM)
    if norm:
        with torch.no_grad():
            factor = norm / head(features.views[0][rows[:256]]).norm(dim=1).mean()
            head.weight.mul_(factor)
            head.bias.mul_(factor)
    groups = [{"params": list(head.parameters()), "lr": 1e-3 * max(1.0, norm / 5), "weight_decay": 1e-4}]
    groups += [{"params": p, "lr": 1e-2 * rate, "weight_decay": 0.0} for rate, p in learned_by(loss).items()]
    optimizer = torch.optim.AdamW(groups)
    rates = [group["lr"] for group in optimizer.param_groups]
    sampler = ItemSampler(labels.tolist(), items_per_batch=16, photos_per_item=4, seed=task.seed)
    batches = len(features.fit) // 64  # same number of photos for every loss
    curve, step = [], 0
    deals = itertools.chain.from_iterable(sampler.epoch(epoch) for epoch in itertools.count())
    for _ in range(EPOCHS):
        for batch in itertools.islice(deals, batches):
            view = torch.from_numpy(generator.integers(VIEWS, size=len(batch)))
            value = loss(head(features.views[view, torch.from_numpy(rows[batch])]), torch.from_numpy(labels[batch]))
            optimizer.zero_grad()
            value.backward()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * learning_rate_factor(step, EPOCHS * batches)
            optimizer.step()
            step += 1
        if task.every_epoch:
            curve.append(validation_metrics(features, head)["validation R@1"])
    return head, curve


@torch.no_grad()
def vectors_of(features: FrozenFeatures, head: nn.Linear) -> tuple[np.ndarray, np.ndarray]:
    """Return unit embeddings (photos, d) and norms (photos,)."""
    raw = head(features.plain)
    return F.normalize(raw, dim=1).numpy(), raw.norm(dim=1).numpy()


def validation_metrics(features: FrozenFeatures, head: nn.Linear) -> dict[str, float]:
    """Return R@1 and OPIS on the validation items."""
    protocol = make_evaluation_protocol(features.photos)
    split = make_evaluation_split("validation", features.photos, features.splits.validation, protocol)
    vectors = vectors_of(features, head)[0]
    metrics = rank_metrics(split, vectors, features.labels) | consistency_metrics(split, vectors, features.labels)
    return {f"validation {name}": metrics[name] for name in ("R@1", "OPIS")}


def head_metrics(features: FrozenFeatures, head: nn.Linear) -> dict[str, Any]:
    """Return metrics on items unseen in training, with the threshold of the calibration items."""
    protocol = make_evaluation_protocol(features.photos)
    vectors, norms = vectors_of(features, head)
    unseen = make_evaluation_split("unseen", features.photos, features.splits.test, protocol)
    calibration = make_evaluation_split("calibration", features.photos, features.splits.calibration, protocol)
    scores = score_split(unseen, vectors, features.labels)
    threshold = threshold_at_fpir(score_split(calibration, vectors, features.labels), 0.05)
    wrong = scores.own > scores.impostor
    metrics = rank_metrics(unseen, vectors, features.labels) | consistency_metrics(unseen, vectors, features.labels)
    metrics |= identification_metrics(identification_rates(scores, threshold))
    metrics["TPIR at exactly the target"] = open_set_metrics(scores, 0.05)["TPIR"]
    metrics["AUROC of the norm"] = auroc(-norms[unseen.queries], wrong)
    metrics["AUROC of the distance"] = auroc(np.minimum(scores.own, scores.impostor), wrong)
    return metrics | validation_metrics(features, head)


def open_set_metrics(scores: SearchScores, target_fpir: float) -> dict[str, float]:
    """Return the rates at the threshold that meets the target on these queries themselves (an oracle)."""
    return identification_metrics(identification_rates(scores, threshold_at_fpir(scores, target_fpir)))


def auroc(score: np.ndarray, positive: np.ndarray) -> float:
    """Return the probability that a positive has a higher score than a negative."""
    ranks = stats.rankdata(score)
    count = int(positive.sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(score) - count)))


class Results:
    """Metrics by task, stored on disk."""

    def __init__(self, features: FrozenFeatures, path: Path) -> None:
        self._features, self._path = features, path
        self._known: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def __call__(self, task: Task) -> dict[str, Any]:
        if task.name not in self._known or (task.every_epoch and not self._known[task.name]["curve"]):
            head, curve = train_head(self._features, task)
            self._known[task.name] = head_metrics(self._features, head) | {"curve": curve}
            aside = self._path.with_suffix(".partial")
            aside.write_text(json.dumps(self._known, indent=1))
            aside.replace(self._path)
        return self._known[task.name]

    def tuned(self, loss: str) -> tuple[str, dict[str, Any]]:
        """Return the name of the loss and the arguments of the grid with the highest R@1 on the validation items."""
        grid = GRIDS[loss]
        name: str = loss
        base: dict[str, Any] = {}
        if loss == "vmf_nca + anchor":
            name, base = self.tuned("vmf_nca")
        choices = [base | dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        return name, max(choices, key=lambda c: self._mean(name, c, None, "validation R@1"))

    def tuned_tcm(self, name: str, arguments: Mapping[str, Any]) -> tuple[float, float]:
        """Return the margins with the lowest validation OPIS among those that lose at most 0.01 of R@1."""
        bare = self._mean(name, arguments, None, "validation R@1")
        allowed = [m for m in MARGINS if self._mean(name, arguments, m, "validation R@1") >= bare - 0.01]
        return min(allowed or MARGINS, key=lambda m: self._mean(name, arguments, m, "validation OPIS"))

    def _mean(self, name: str, arguments: Mapping[str, Any], tcm: tuple[float, float] | None, metric: str) -> float:
        return float(np.mean([self(Task(name, arguments, s, tcm=tcm))[metric] for s in TUNING_SEEDS]))
