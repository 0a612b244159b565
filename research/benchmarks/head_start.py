"""Measure a head on a frozen backbone in galleries of items that it was fitted to and of others.

    python -m research.benchmarks.head_start

Items of the training partitions are drawn at random: some are fitted with a few photos each, half of the others join
them in the gallery with as many photos, and the rest are unknown. Up to 8 other photos of each item are searched, by
the item distance; in grocery they come from the other store. "together" has the items of all sets and drawn symbols.
TPIR is at exactly 5 % of the searches for unknown items. Differences are those to the pretrained model as it was
published, with their standard error over the repetitions.

The start is the projection of `training.loop.head_start`; before, it was fitted to unaugmented photos and kept the 512
directions in which these vary most. The second part trains heads from it with other losses, by the same steps.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from index.search.item_distance import ItemDistance
from research.claims.symbols import draw_symbols
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.metrics.consistency import consistency
from retrieval.metrics.identification import SearchScores, search_scores, threshold_at_fpir
from training.backbones import backbone_preprocessing, load_backbone
from training.config import LITE0, Settings
from training.data.samplers import ItemSampler
from training.data.sources import PixelSource
from training.export.fit import features_of
from training.export.pretrained import Pretrained
from training.loop.distributed import ProcessGroup
from training.loop.head_start import start_head
from training.loop.learner import Learner
from training.loop.optimizer import schedule
from training.loop.recipe import build_loss
from training.losses.base import Loss
from training.model import EmbeddingModel

from .tables import Recorder, parser_of

VIEWS, BLOCK = 5, 64  # views of a photo, the first unaugmented; photos whose features are computed at a time
MOST_PHOTOS, SEARCHED = 20, 8  # photos of an item, and those that are searched
SYMBOLS, DRAWINGS = 250, 6  # drawn symbols, and drawings of each
CASES = (  # set, fitted items, photos of each
    *itertools.product(("birds", "cars", "grocery"), ((20, 4), (36, 8))),
    *itertools.product(("birds", "cars"), ((50, 4),)),
    *itertools.product(("together",), ((100, 4), (300, 4))),
)
LOSS_CASES = (("birds", (36, 8)), ("cars", (36, 8)), ("grocery", (36, 8)), ("symbols", (100, 4)))
LOSSES: dict[str, dict[str, Any]] = {
    "smooth_ap": {"loss": "smooth_ap"},
    "smooth_ap + tcm": {"loss": "smooth_ap", "regularizer": "tcm"},
    "recall_at_k": {"loss": "recall_at_k", "regularizer": ""},
    "recall_at_k + tcm": {"loss": "recall_at_k", "regularizer": "tcm"},
    "recall_at_k + 0.2 tcm": {"loss": "recall_at_k", "regularizer": "tcm", "regularizer_arguments": {"weight": 0.2}},
    "proxy_anchor": {"loss": "proxy_anchor"},
    "vmf_nca + 0.3 anchor": {"loss": "vmf_nca", "loss_arguments": {"anchor_weight": 0.3}},
}
PRETRAINED, OLD, OLD_TRAINED, START, TRAINED = (
    *("pretrained", "start before", "trained from it"),
    *("start", "trained"),
)
PARTS = FITTED, UNFITTED, BOTH = "fitted", "unfitted", "both"


RATES = [f"{metric} {part}" for metric in ("R@1", "TPIR") for part in PARTS]
COLUMNS = ("items, photos, model", *RATES, "OPIS", "distance of fitted items", "threshold")


@dataclass(frozen=True)
class Features:
    """Features of the published model (n, c), and of views of photos (V, n, c); their items, and which are new (n,)."""

    published: np.ndarray
    views: np.ndarray
    items: np.ndarray
    new: np.ndarray  # of another store than the gallery's photos

    def joined(self, other: Features) -> Features:
        """Return the photos of both, whose items are others."""
        return Features(
            np.concatenate([self.published, other.published]),
            np.concatenate([self.views, other.views], axis=1),
            np.concatenate([self.items, other.items + self.items.max() + 1]),
            np.concatenate([self.new, other.new]),
        )


class Sets:
    """Features of the training partitions, kept in a folder."""

    def __init__(self, data: Path, folder: Path) -> None:
        self._data, self._folder = data, folder
        folder.mkdir(parents=True, exist_ok=True)
        self._settings = Settings(catalogue="", backbone=LITE0)

    def of(self, name: str) -> Features:
        """Return the features of a set, or of all sets together."""
        if name == "together":
            first, *others = (self.of(each) for each in ("birds", "cars", "grocery", "symbols"))
            for other in others:
                first = first.joined(other)
            return first
        photos = symbol_photos(self._folder / "symbols") if name == "symbols" else self._photos(name)
        published = self._kept(f"{name}-pub", lambda: features_of(Pretrained.load(LITE0), photos))
        views = [self._kept(f"{name}-{view or 'plain'}", partial(self._view, photos, view)) for view in range(VIEWS)]
        items = np.unique([photo.item_id for photo in photos], return_inverse=True)[1]
        return Features(published, np.stack(views), items, np.array([photo.source == "store_b" for photo in photos]))

    def _photos(self, name: str) -> list[Photo]:
        photos = read_catalogue(self._data / "data" / name / f"{name}.csv")
        trained = [photo for photo in photos if photo.partition == "train" and photo.source != "iconic"]
        counts: dict[tuple[str, str], int] = {}
        kept = []
        for photo in trained:
            key = photo.item_id, photo.source or ""
            counts[key] = counts.get(key, 0) + 1
            if counts[key] <= (MOST_PHOTOS // 2 if photo.source else MOST_PHOTOS):
                kept.append(photo)
        return kept

    def _view(self, photos: list[Photo], view: int) -> np.ndarray:
        settings, group = self._settings, ProcessGroup.join()
        sight = backbone_preprocessing(LITE0, size=settings.input_size, crop_ratio=settings.crop_ratio)
        source = PixelSource(photos, [], settings, sight, process_group=group)
        model = EmbeddingModel(load_backbone(LITE0)[0], dim=1, pooling="average").eval()
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        blocks = np.split(np.arange(len(photos)), range(BLOCK, len(photos), BLOCK))
        if not view:
            return np.asarray(source.features(model, np.arange(len(photos)))[0])
        with torch.inference_mode():
            pixels = source.inputs(blocks, view)
            return np.concatenate([model.pool(model.backbone(source.prepare(block))).numpy() for block in pixels])

    def _kept(self, name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        path = self._folder / f"{name}.npy"
        if not path.exists():
            np.save(path, compute())
        return np.asarray(np.load(path, allow_pickle=False), np.float32)


def symbol_photos(folder: Path) -> list[Photo]:
    """Return drawn symbols as photos, written to a folder with a subfolder for each symbol."""
    if not folder.exists():
        from PIL import Image

        drawn = draw_symbols(SYMBOLS, DRAWINGS)
        for number, (pixels, label) in enumerate(zip(drawn.pixels, drawn.labels, strict=True)):
            (folder / f"{label:03d}").mkdir(parents=True, exist_ok=True)
            image = Image.fromarray((255 * (1 - pixels)).round().astype(np.uint8)).convert("RGB")
            image.save(folder / f"{label:03d}" / f"{number}.png")
    return read_catalogue(folder)


@dataclass(frozen=True)
class Division:
    """Photos of the gallery and those that are searched, by position."""

    fitted: np.ndarray  # in the gallery
    unfitted: np.ndarray  # in the gallery
    searched: np.ndarray
    parts: np.ndarray  # of the searched photos: FITTED, UNFITTED or "unknown"

    @classmethod
    def draw(cls, features: Features, fitted: int, photos: int, *, seed: int) -> Division:
        """Divide the items at random."""
        generator = np.random.default_rng(seed)
        items = generator.permutation(features.items.max() + 1)
        middle = fitted + (len(items) - fitted) // 2
        shown: dict[str, list[int]] = {FITTED: [], UNFITTED: [], "unknown": []}
        searched, parts = [], []
        for place, item in enumerate(items):
            part = FITTED if place < fitted else UNFITTED if place < middle else "unknown"
            rows = generator.permutation(np.flatnonzero(features.items == item))
            known, new = rows[~features.new[rows]], rows[features.new[rows]]
            if not len(new):
                photos_shown = min(photos, len(known) - 1)  # one photo at least is searched
                known, new = known[:photos_shown], known[photos_shown:]
            shown[part] += known[:photos].tolist()
            searched += new[:SEARCHED].tolist()
            parts += [part] * len(new[:SEARCHED])
        return cls(np.array(shown[FITTED]), np.array(shown[UNFITTED]), np.array(searched), np.array(parts))


def search(vectors: np.ndarray, features: Features, division: Division) -> SearchScores:
    """Search the gallery with the new photos."""
    gallery = np.concatenate([division.fitted, division.unfitted])
    return search_scores(
        vectors[division.searched].astype(np.float32),
        features.items[division.searched],
        vectors[gallery].astype(np.float32),
        features.items[gallery],
        item_distance=ItemDistance(),
    )


def measure(vectors: np.ndarray, features: Features, division: Division) -> dict[str, float]:
    """Return R@1 and TPIR of both parts, OPIS, and the mean item distance of fitted items from their new photos."""
    return measured(search(vectors, features, division), division)


def measured(scores: SearchScores, division: Division) -> dict[str, float]:
    """Return what `measure` does, of searches."""
    threshold = threshold_at_fpir(scores.where(division.parts == "unknown"), 0.05)
    values = {"threshold": threshold, "distance": float(scores.own[division.parts == FITTED].mean())}
    values["OPIS"] = consistency(scores.where(division.parts != "unknown"), threshold).opis
    for part in PARTS:
        rows = division.parts != "unknown" if part == BOTH else division.parts == part
        values[f"R@1 {part}"] = float(np.isfinite(scores.correct[rows]).mean())
        values[f"TPIR {part}"] = float((scores.correct[rows] <= threshold).mean())
    return values


def trained(
    head: nn.Linear,
    views: np.ndarray,
    labels: np.ndarray,
    *,
    seed: int,
    recipe: Mapping[str, Any],
    make: Callable[..., nn.Module] = build_loss,
) -> nn.Linear:
    """Return the head after a training on features (V, n, c) with the default settings, but for those of a recipe."""
    labels = np.unique(labels, return_inverse=True)[1]
    settings = Settings(catalogue="", backbone=LITE0, precompute=VIEWS, dim=head.out_features, seed=seed, **recipe)
    settings = schedule(settings, photos=len(labels), items=int(labels.max()) + 1)
    model = EmbeddingModel(load_backbone("small")[0], dim=1, pooling="average")
    model.backbone.width, model.head = views.shape[2], head
    steps = settings.epochs * settings.epoch_steps
    loss = make(settings, classes=int(labels.max()) + 1)
    norm = max(part.initial_norm for part in loss.modules() if isinstance(part, Loss))
    with torch.no_grad():  # as a training begins
        factor = norm / head(torch.from_numpy(views[0])).norm(dim=1).mean() if norm else 1.0
        for parameter in head.parameters():
            parameter.mul_(factor)
    group = ProcessGroup.join()
    learner = Learner(model, loss, settings, process_group=group, steps=steps, prepare=torch.from_numpy)
    sampler = ItemSampler(labels.tolist(), items_per_batch=16, photos_per_item=4, seed=seed, steps=settings.epoch_steps)
    for epoch in range(settings.epochs):
        learner.begin(epoch)
        generator = np.random.default_rng((seed, epoch))
        for positions in sampler.epoch(epoch):
            chosen = views[generator.integers(len(views), size=len(positions)), positions]
            learner.take(chosen, torch.from_numpy(labels)[positions])
    return head


def models(features: Features, division: Division, *, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the embeddings of all photos (n, d) by each model."""
    yield PRETRAINED, features.published
    views, items = features.views[:, division.fitted], features.items[division.fitted]
    width = views.shape[2]
    for name, after, dim, seen in ((OLD, OLD_TRAINED, 512, views[:1]), (START, TRAINED, width, views)):
        head = nn.Linear(width, dim)
        start_head(head, seen, items)
        with torch.no_grad():
            yield name, head(torch.from_numpy(features.views[0])).numpy()
        head = trained(head, views, items, seed=seed, recipe={})
        with torch.no_grad():
            yield after, head(torch.from_numpy(features.views[0])).numpy()


def by_loss(features: Features, division: Division, *, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the embeddings of all photos (n, d) by the pretrained model and by heads of each loss."""
    yield PRETRAINED, features.published
    views, items = features.views[:, division.fitted], features.items[division.fitted]
    for name, recipe in LOSSES.items():
        head = nn.Linear(views.shape[2], views.shape[2])
        start_head(head, views, items)
        head = trained(head, views, items, seed=seed, recipe=recipe)
        with torch.no_grad():
            yield name, head(torch.from_numpy(features.views[0])).numpy()


def main() -> None:
    """Measure every case and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/head_start"), help="Folder for computed features.")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", help="Measure this set alone.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sets = Sets(Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")), arguments.output)
    with Recorder("head_start", arguments) as record:
        for table, cases, make in (("mixed", CASES, models), ("losses", LOSS_CASES, by_loss)):
            record.table(table, COLUMNS)
            every: dict[str, list[dict[str, float]]] = {}
            for name, (items, photos) in cases:
                if arguments.only not in (None, name):
                    continue
                features = sets.of(name)
                found: dict[str, list[dict[str, float]]] = {}
                for seed in range(arguments.repetitions):
                    division = Division.draw(features, items, photos, seed=seed)
                    for model, vectors in make(features, division, seed=seed):
                        found.setdefault(model, []).append(measure(vectors, features, division))
                for model, values in found.items():
                    record.add(f"{name}, {items} × {photos}, {model}", *cells(values, found[PRETRAINED]))
                    every.setdefault(model, []).extend(values)
            if table == "losses":
                for model, values in every.items():
                    record.add(f"all sets, {model}", *cells(values, every[PRETRAINED]))


def cells(values: list[dict[str, float]], before: list[dict[str, float]]) -> list[str]:
    """Return a row of the table: the rates with their change, OPIS, the distance of fitted items and the threshold."""
    means = [f"{np.mean([value[key] for value in values]):.3f}" for key in ("OPIS", "distance", "threshold")]
    return [*(told(rate, values, before, plain=values is before) for rate in RATES), *means]


def told(rate: str, values: list[dict[str, float]], before: list[dict[str, float]], *, plain: bool) -> str:
    """Return the mean of a rate, and its difference to the pretrained model with the standard error."""
    own, other = (np.array([each[rate] for each in rows]) for rows in (values, before))
    if plain:
        return f"{own.mean():.3f}"
    error = (own - other).std(ddof=1) / np.sqrt(len(own)) if len(own) > 1 else 0.0
    return f"{own.mean():.3f} ({(own - other).mean():+.3f} ± {error:.3f})"


if __name__ == "__main__":
    main()
