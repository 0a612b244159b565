"""The open-set loss beside TCM, Smooth-AP and Recall@k: heads on frozen features, judged on items that were not fitted.

    python -m research.benchmarks.open_set

The training items of birds, cars and grocery are divided in half, once for each seed: a head on EfficientNet-Lite0 is
fitted to five views of the photos of one half, and the other half is the gallery and the queries, in grocery from the
other store. Every head has the same start (`training.loop.head_start`) and sees the same 100 batches of 16 items with
4 photos. The item distance decides; TPIR is at an FPIR of exactly 5 % on these queries. A change is that from
Smooth-AP on the same division, with its standard error over the divisions. --output has the features of
`research.benchmarks.head_start`; the test partition is not used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from index.search.item_distance import ItemDistance
from research.losses import OpenSet
from research.losses.open_set import draw_folds, label_vectors
from retrieval.metrics.identification import search_scores
from training.data.samplers import ItemSampler
from training.loop.head_start import start_head
from training.loop.optimizer import learning_rate_factor
from training.losses import Regularized, make_loss
from training.losses.base import one_label_each

from .head_start import PRETRAINED, SEARCHED, Features, Sets
from .heads import open_set_metrics
from .pretrained import unit
from .tables import NONE, Recorder, parser_of

SETS, STEPS, FPIR = ("birds", "cars", "grocery"), 100, 0.05
BASE, START = "smooth_ap", "start of the heads"
METRICS = ("R@1", "TPIR")


def open_set_variant(embeddings: Tensor, labels: Tensor, *, largest: bool, cosine: bool) -> Tensor:
    """Return the open-set loss with thresholds from each query's largest score only, or with cosines as scores."""
    unit_, (groups, sizes) = F.normalize(embeddings, dim=1), one_label_each(labels)
    vectors, left = label_vectors(unit_, groups, sizes)
    if cosine:
        scores = unit_ @ F.normalize(vectors, dim=1).T
        near = scores
    else:
        near = -((unit_[:, None] - vectors).square().sum(dim=2) + 1e-6).sqrt()
        scores = 1 / (1 - near)
    folds, total = draw_folds(len(sizes), 4), scores.new_zeros(())
    for fold in range(int(folds.max()) + 1):
        shown = folds != fold
        unknown, known = ~shown[groups], left & shown[groups]
        impostors = scores[unknown][:, shown]
        cuts = impostors.max(dim=1).values if largest else impostors.flatten()
        own = scores[known].gather(1, groups[known][:, None])
        ranks = (9 * (scores[known][:, shown] - own)).sigmoid().sum(dim=1)
        found = (1.5 * (1 - ranks)).sigmoid() * (9 * (own - cuts)).sigmoid().mean(dim=1)
        lowered = (F.softmax(near[unknown][:, shown], dim=1) * impostors).sum(dim=1)
        total = total + 1 - found.mean() + 4 * lowered.mean()
    return total / (int(folds.max()) + 1)


class Variant(nn.Module):
    """`open_set_variant` as a loss."""

    def __init__(self, *, largest: bool = False, cosine: bool = False) -> None:
        super().__init__()
        self.largest, self.cosine = largest, cosine

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss."""
        return open_set_variant(embeddings, labels, largest=self.largest, cosine=self.cosine)


def plain(name: str, **arguments: float) -> Callable[[], nn.Module]:
    return lambda: make_loss(name, classes=2, dim=2, arguments=arguments)


def beside(name: str, other: Callable[[], nn.Module], weight: float = 1.0) -> Callable[[], nn.Module]:
    return lambda: Regularized(plain(name)(), other(), weight)


LOSSES: dict[str, Callable[[], nn.Module] | None] = {
    START: None,
    BASE: plain(BASE),
    "smooth_ap + tcm": beside("smooth_ap", plain("tcm")),
    "smooth_ap + open_set": beside("smooth_ap", OpenSet),
    "smooth_ap + 0.1 open_set": beside("smooth_ap", OpenSet, 0.1),
    "recall_at_k": plain("recall_at_k"),
    "recall_at_k + tcm": beside("recall_at_k", plain("tcm")),
    "recall_at_k + open_set": beside("recall_at_k", OpenSet),
    "recall_at_k + 0.1 open_set": beside("recall_at_k", OpenSet, 0.1),
    "open_set": OpenSet,
    "open_set, largest scores": lambda: Variant(largest=True),
    "open_set, cosine": lambda: Variant(cosine=True),
}


@dataclass(frozen=True)
class Division:
    """Photos of the fitted items, and those of the others in the gallery and searched, by position."""

    fitted: np.ndarray
    shown: np.ndarray
    asked: np.ndarray

    @classmethod
    def draw(cls, features: Features, *, seed: int) -> Division:
        """Divide the items in half; half of an unfitted item's photos, or those of the other store, are searched."""
        generator = np.random.default_rng(seed)
        items = generator.permutation(features.items.max() + 1)
        shown, asked = [], []
        for item in items[len(items) // 2 :]:
            rows = generator.permutation(np.flatnonzero(features.items == item))
            new = features.new[rows]
            searched = new if new.any() else np.arange(len(rows)) >= len(rows) // 2
            shown += rows[~searched][:SEARCHED].tolist()
            asked += rows[searched][:SEARCHED].tolist()
        fitted = np.flatnonzero(np.isin(features.items, items[: len(items) // 2]))
        return cls(fitted, np.array(shown), np.array(asked))


def fitted_head(
    features: Features, fitted: np.ndarray, make: Callable[[], nn.Module] | None, seed: int
) -> tuple[nn.Linear, float]:
    """Return the head after its training on photos (n,), and the milliseconds of a step."""
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    views, items = features.views[:, fitted], features.items[fitted]
    labels = np.unique(items, return_inverse=True)[1]
    head = nn.Linear(views.shape[2], views.shape[2])
    start_head(head, views, labels)
    if make is None:
        return head, 0.0
    loss = make()
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=1e-4)
    sampler = ItemSampler(labels.tolist(), items_per_batch=16, photos_per_item=4, seed=seed, steps=STEPS)
    spent = 0.0
    for step, batch in enumerate(sampler.epoch(0)):
        rows = torch.from_numpy(views[generator.integers(len(views), size=len(batch)), batch])
        optimizer.param_groups[0]["lr"] = 1e-3 * learning_rate_factor(step, STEPS)
        optimizer.zero_grad()
        began = time.perf_counter()
        loss(head(rows), torch.from_numpy(labels[batch])).backward()
        optimizer.step()
        spent += time.perf_counter() - began
    return head, 1e3 * spent / STEPS


def judged(features: Features, division: Division, head: nn.Linear | None) -> list[float]:
    """Return R@1 and TPIR at an FPIR of exactly 5 % on the items that were not fitted."""
    with torch.no_grad():
        vectors = features.published if head is None else head(torch.from_numpy(features.views[0])).numpy()
    vectors, items = unit(vectors), features.items
    scores = search_scores(
        vectors[division.asked],
        items[division.asked],
        vectors[division.shown],
        items[division.shown],
        item_distance=ItemDistance(),
    )
    return [scores.recall, open_set_metrics(scores, FPIR)["TPIR"]]


def cells(values: np.ndarray, base: np.ndarray) -> list[str]:
    """Return the mean and the change of each metric, for values (divisions, metrics)."""
    change = values - base
    error = change.std(axis=0, ddof=1) / np.sqrt(len(change)) if len(change) > 1 else np.zeros(change.shape[1])
    return [
        f"{mean:.3f}" + (f" ({each:+.3f} ± {wide:.3f})" if change.any() else "")
        for mean, each, wide in zip(values.mean(axis=0), change.mean(axis=0), error, strict=True)
    ]


def main() -> None:
    """Train and judge every head, and print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/head_start"), help="Folder for computed features.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", help="Measure this set alone.")
    arguments = parser.parse_args()
    names = [name for name in SETS if arguments.only in (None, name)]
    torch.set_num_threads(1)
    sets = Sets(Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")), arguments.output)
    results: dict[str, dict[str, list[list[float]]]] = {name: {} for name in names}
    times: dict[str, list[float]] = {loss: [] for loss in LOSSES}
    for name in names:
        features = sets.of(name)
        for seed in range(arguments.seeds):
            division = Division.draw(features, seed=seed)
            results[name].setdefault(PRETRAINED, []).append(judged(features, division, None))
            for loss, make in LOSSES.items():
                head, spent = fitted_head(features, division.fitted, make, seed)
                results[name].setdefault(loss, []).append(judged(features, division, head))
                times[loss].append(spent)
            print(name, seed, flush=True)
    with Recorder("open_set", arguments) as record:
        for name in names:
            record.table(name, ("loss", *METRICS))
            for loss, values in results[name].items():
                record.add(loss, *cells(np.array(values), np.array(results[name][BASE])))
        record.table("all sets", ("loss", *METRICS, "a step, ms"))
        for loss in (PRETRAINED, *LOSSES):
            found, base = (np.concatenate([results[name][which] for name in names]) for which in (loss, BASE))
            record.add(loss, *cells(found, base), f"{np.median(times[loss]):.1f}" if any(times.get(loss, ())) else NONE)


if __name__ == "__main__":
    main()
