"""Measure backward-compatible training: new queries in the gallery of an earlier model.

    python -m research.benchmarks.compatible

Models are linear heads on frozen features of cars, trained with ProxyAnchor. The earlier one is a head on MobileNet,
trained on half of the training items; the new one is a head on EfficientNet-Lite0, trained on all of them, without and
with the influence loss of `--compatible-with`. They are measured on the test items with the plain distance: R@1 and, in
random divisions into items that are in the gallery and unknown ones, TPIR at exactly 5 % FPIR, and the FPIR that a
threshold anchored for 5 % realises. Where one model embeds both sides, the gallery's own items and the calibration
items set the threshold; in the gallery of the earlier model, only the calibration items do, which the new model embeds.
Means and deviations are over divisions and seeds.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from index.distance import PLAIN
from index.draws import Probes
from index.gallery import Gallery
from index.kept_draws import update_draws
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.metrics.identification import SearchScores, search_scores
from retrieval.threshold.drawn_distances import PROBE
from training.config import LITE0
from training.data.samplers import ItemSampler
from training.export.pretrained import Pretrained
from training.loop.optimizer import learning_rate_factor
from training.losses import ProxyAnchor
from training.losses.influence import BackwardCompatible

from .anchoring import NOTHING, features_of, item_rates, limit, point_of
from .pretrained import features_in
from .tables import Recorder, parser_of

DIM, EPOCHS = 128, 30
COLUMNS = (
    *("queries and gallery", "R@1", "TPIR at exactly 0.05", "FPIR realised for 0.05", "TPIR there"),
    "divisions without a threshold",
)
Vectors = np.ndarray  # (n, d) of all photos


@dataclass(frozen=True)
class Cars:
    """The photos of cars, with the features (n, c) of two backbones."""

    photos: Sequence[Photo]
    earlier: Tensor
    new: Tensor

    @property
    def items(self) -> np.ndarray:
        """The items of the photos (n,)."""
        return np.array([photo.item_id for photo in self.photos])

    def rows(self, partition: str, *roles: str) -> np.ndarray:
        """Return the mask (n,) of the photos of a partition, with one of some roles if any are given."""
        return np.array([p.partition == partition and (not roles or p.role in roles) for p in self.photos])


@dataclass(frozen=True)
class Case:
    """Vectors of the queries and of the gallery, by models that may differ."""

    name: str
    queries: Vectors
    gallery: Vectors
    mixed: bool


@dataclass(frozen=True)
class Measured:
    """Rates of a case in one division."""

    recall: float
    exact: float  # TPIR at exactly the target
    realised: float  # FPIR; NaN if there is no threshold
    found: float  # TPIR at that threshold


def load(data: Path, folder: Path) -> Cars:
    """Return the photos with their features, scaled by those of the training photos."""
    photos = read_catalogue(data / "data" / "cars" / "cars.csv")
    trained = torch.tensor([photo.partition == "train" for photo in photos])
    mobilenet = str(data / "weights" / "mobilenet_v1_0.75_224")
    earlier = features_of(photos, folder / "cars-mobilenet.npy", mobilenet)
    new = features_in(folder / "cars-lite0.npy", Pretrained.load(LITE0), photos)
    both = (torch.from_numpy(each).float() for each in (earlier, new))
    return Cars(photos, *((each - each[trained].mean(dim=0)) / each[trained].std() for each in both))


def embed(features: Tensor, labels: np.ndarray, rows: np.ndarray, *, seed: int, old: Vectors | None = None) -> Vectors:
    """Train a head on the photos `rows` (m,) and return the unit vectors (n, d) of all photos.

    With the vectors `old` of an earlier model, the influence loss makes the head compatible with it.
    """
    torch.manual_seed(seed)
    classes = np.unique(labels[rows], return_inverse=True)[1]
    count = int(classes.max()) + 1
    loss: nn.Module = ProxyAnchor(count, DIM)
    if old is not None:
        centres = np.stack([old[rows][classes == c].mean(axis=0) for c in range(count)])
        loss = BackwardCompatible(loss, torch.from_numpy(centres).float(), weight=1.0)
    head = nn.Linear(features.shape[1], DIM)
    rates = (1e-3, 1e-2)
    optimizer = torch.optim.AdamW(
        [{"params": part.parameters(), "lr": rate} for part, rate in zip((head, loss), rates, strict=True)]
    )
    sampler = ItemSampler(classes.tolist(), items_per_batch=16, photos_per_item=4, seed=seed)
    steps = EPOCHS * sampler.batches
    batches = (batch for epoch in range(EPOCHS) for batch in sampler.epoch(epoch))
    for step, batch in enumerate(batches):
        value = loss(head(features[rows[batch]]), torch.from_numpy(classes[batch]))
        optimizer.zero_grad()
        value.backward()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * learning_rate_factor(step, steps, 0.05)
        optimizer.step()
    with torch.no_grad():
        return F.normalize(head(features), dim=1).numpy()


def cases(cars: Cars, seed: int) -> list[Case]:
    """Train the models of one seed and return the cases."""
    items = cars.items
    everyone = np.flatnonzero(cars.rows("train"))
    names = np.random.default_rng(seed).permutation(np.unique(items[everyone]))
    half = everyone[np.isin(items[everyone], names[: len(names) // 2])]
    old = embed(cars.earlier, items, half, seed=seed)
    free = embed(cars.new, items, everyone, seed=seed)
    bound = embed(cars.new, items, everyone, seed=seed, old=old)
    return [
        Case("old queries, old gallery", old, old, mixed=False),
        Case("new queries, old gallery, trained without", free, old, mixed=True),
        Case("new queries, old gallery, trained with --compatible-with", bound, old, mixed=True),
        Case("new queries, new gallery, trained with --compatible-with", bound, bound, mixed=False),
        Case("new queries, new gallery, trained without", free, free, mixed=False),
    ]


def measure(case: Case, cars: Cars, division: int) -> Measured:
    """Divide the test items, set the threshold and search."""
    items = cars.items
    asked, shown = cars.rows("test", "query"), cars.rows("test", "gallery")
    order = np.random.default_rng(division).permutation(np.unique(items[asked]))
    known = np.isin(items, order[: len(order) // 2])
    everything = _searches(case, items, asked, shown)
    unknown, mated = (_searches(case, items, asked & which, shown & known) for which in (~known, known))
    threshold = _anchored(case, cars, shown & known)
    recall = float(np.mean(everything.own < everything.impostor))
    realised = float(np.mean(list(item_rates(unknown, threshold).values())))
    missing = threshold == NOTHING
    return Measured(recall, _tpir(mated, limit(unknown)), np.nan if missing else realised, _tpir(mated, threshold))


def _searches(case: Case, items: np.ndarray, queries: np.ndarray, gallery: np.ndarray) -> SearchScores:
    return search_scores(case.queries[queries], items[queries], case.gallery[gallery], items[gallery])


def _tpir(scores: SearchScores, threshold: float) -> float:
    return float(np.mean((scores.own <= threshold) & (scores.own < scores.impostor)))


def _anchored(case: Case, cars: Cars, shown: np.ndarray) -> float:
    """Return the threshold that a gallery of some photos gets, NOTHING if it gets none."""
    items, chosen = cars.items, cars.rows("calibration", "query")
    probes = Probes(case.queries[chosen], [f"q{i}" for i in np.flatnonzero(chosen)], items[chosen].tolist())
    with (
        tempfile.TemporaryDirectory() as folder,
        Gallery.create(Path(folder) / "g", dim=case.gallery.shape[1], embedding_id="model") as gallery,
    ):
        names = [f"p{i}" for i in np.flatnonzero(shown)]
        gallery.add(names, items[shown].tolist(), case.gallery[shown])
        of_probes = {PROBE: probes}
        draws = update_draws(gallery, None, model="model", distance_form=PLAIN, probes=of_probes, own=not case.mixed)
        point = point_of(draws, gallery_items=gallery.items)
    return NOTHING if point is None else point.threshold


def row(name: str, measured: Sequence[Measured]) -> tuple[str, ...]:
    """Return the means of several divisions and seeds, with the deviation of the realised FPIR, as cells."""
    values: Mapping[str, np.ndarray] = {
        field: np.array([getattr(each, field) for each in measured]) for field in vars(measured[0])
    }
    realised = values["realised"][np.isfinite(values["realised"])]
    shown = f"{realised.mean():.3f} ± {realised.std():.3f}" if len(realised) else "none"
    rates = [f"{values[field].mean():.3f}" for field in ("recall", "exact")]
    return (name, *rates, shown, f"{values['found'].mean():.3f}", str(len(measured) - len(realised)))


def main() -> None:
    """Measure every case and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/compatible"), help="Folder for computed features.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--divisions", type=int, default=10)
    arguments = parser.parse_args()
    cars = load(Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")), arguments.output)
    found: dict[str, list[Measured]] = {}
    for seed in range(arguments.seeds):
        for case in cases(cars, seed):
            found.setdefault(case.name, []).extend(measure(case, cars, d) for d in range(arguments.divisions))
    with Recorder("compatible", arguments) as record:
        record.table("cars", COLUMNS, (row(name, measured) for name, measured in found.items()))


if __name__ == "__main__":
    main()
