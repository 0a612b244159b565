"""Measure backward-compatible training: new queries in the gallery of an earlier model.

    python -m research.benchmarks.compatible

The earlier model is a head on a frozen MobileNet, trained on half of the training items of cars. The new one is a head
on EfficientNet-Lite0, trained on all of them, without and with `--compatible-with`. All models train with the same
settings and are measured on the test items with the plain distance: R@1 and, in random divisions into items that are in
the gallery and unknown ones, TPIR at exactly 5 % FPIR, and the FPIR that a threshold anchored for 5 % realises. Where
one model embeds both sides, the gallery's own items and the calibration items set the threshold; in the gallery of the
earlier model, only the calibration items do, which the new model embeds.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from index.distance import PLAIN
from index.draws import Probes
from index.gallery import Gallery
from index.kept_draws import update_draws
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.metrics.identification import SearchScores, search_scores
from retrieval.threshold.drawn_distances import PROBE
from training.config import LITE0, Settings
from training.data.reader import PhotoReader
from training.data.sources import FEATURES
from training.data.splits import Splits, make_splits
from training.evaluation.embedding import embed_photos
from training.export.export import export
from training.export.onnx_embedding import embed_with_onnx
from training.loop.run import Run
from training.loop.train import train

from .anchoring import NOTHING, item_rates, limit, point_of
from .tables import Recorder, parser_of

COLUMNS = (
    *("queries and gallery", "R@1", "TPIR at exactly 0.05", "FPIR realised for 0.05", "TPIR there"),
    "divisions without a threshold",
)
Vectors = np.ndarray  # (n, d) of the held-out photos


@dataclass(frozen=True)
class HeldOut:
    """The photos of the calibration and test items."""

    photos: Sequence[Photo]

    def rows(self, partition: str, role: str) -> np.ndarray:
        """Return the mask (n,) of the gallery or query photos of a partition."""
        return np.array([photo.partition == partition and photo.role == role for photo in self.photos])

    @property
    def items(self) -> np.ndarray:
        """The items of the photos (n,)."""
        return np.array([photo.item_id for photo in self.photos])


@dataclass(frozen=True)
class Case:
    """Vectors of the queries and of the gallery, by models that may differ."""

    name: str
    queries: Vectors
    gallery: Vectors
    mixed: bool


@dataclass(frozen=True)
class Measured:
    """What was measured of a case, in one division or as a mean."""

    recall: float
    exact: float  # TPIR at exactly the target
    realised: float  # FPIR; NaN if there is no threshold
    found: float  # TPIR at that threshold


def settings_of(data: Path, backbone: str, seed: int) -> Settings:
    """Return the settings of all models, which differ in the backbone."""
    return Settings(
        catalogue=str(data / "data" / "cars" / "cars.csv"),
        backbone=backbone,
        loss="proxy_anchor",
        precompute=2,
        epochs=10,
        select="last",
        seed=seed,
        loggers="",
    )


def trained(
    settings: Settings, path: Path, *, splits: Splits, old: Bundle | None = None, features: Run | None = None
) -> Run:
    """Return a finished run, trained unless it is there, with the features of a run on the same photos if given."""
    if (path / "progress.json").exists():
        return train(settings, path, resume=True)
    if features is not None:
        path.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(features.path / FEATURES, path / FEATURES)
    return train(settings, path, splits=splits, compatible_with=old)


def embedded(run: Run, photos: Sequence[Photo]) -> Vectors:
    """Return the unit vectors (n, d) of photos, from the file in the run if it exists."""
    path = run.path / "held_out.npy"
    if not path.exists():
        np.save(
            path, embed_photos(run.best_model(), PhotoReader(photos, run.preprocessing), len(photos), run.preprocessing)
        )
    return np.asarray(np.load(path, allow_pickle=False))


def cases(data: Path, output: Path, held_out: HeldOut, seed: int) -> list[Case]:
    """Train the models of one seed and return the cases."""
    photos = read_catalogue(data / "data" / "cars" / "cars.csv")
    splits = make_splits(photos, seed=0)
    drawn = np.random.default_rng(seed).permutation(splits.fit)
    half = replace(splits, fit=tuple(sorted(drawn[: len(drawn) // 2].tolist())))
    folder = output / str(seed)
    mobile = str(data / "weights" / "mobilenet_v1_0.75_224")
    earlier = trained(settings_of(data, mobile, seed), folder / "old", splits=half)
    if not (folder / "bundle").exists():
        export(earlier, folder / "bundle", allow_estimate=True)
    bundle = Bundle.open(folder / "bundle")
    path = folder / "old.npy"
    if not path.exists():
        np.save(path, embed_with_onnx(bundle.embedder(), held_out.photos)[0].vectors)
    old = np.asarray(np.load(path, allow_pickle=False))
    settings = settings_of(data, LITE0, seed)
    new = trained(settings, folder / "new", splits=splits)
    compatible = trained(settings, folder / "compatible", splits=splits, old=bundle, features=new)
    free, bound = embedded(new, held_out.photos), embedded(compatible, held_out.photos)
    return [
        Case("old queries, old gallery", old, old, mixed=False),
        Case("new queries, old gallery, trained without", free, old, mixed=True),
        Case("new queries, old gallery, trained with --compatible-with", bound, old, mixed=True),
        Case("new queries, new gallery, trained with --compatible-with", bound, bound, mixed=False),
        Case("new queries, new gallery, trained without", free, free, mixed=False),
    ]


def measure(case: Case, held_out: HeldOut, division: int) -> Measured:
    """Divide the test items, set the threshold and search."""
    items = held_out.items
    asked, shown = held_out.rows("test", "query"), held_out.rows("test", "gallery")
    order = np.random.default_rng(division).permutation(np.unique(items[asked]))
    known = np.isin(items, order[: len(order) // 2])
    everything = _searches(case, items, asked, shown)
    unknown, mated = (_searches(case, items, asked & which, shown & known) for which in (~known, known))
    threshold = _anchored(case, held_out, shown & known)
    recall = float(np.mean(everything.own < everything.impostor))
    realised = float(np.mean(list(item_rates(unknown, threshold).values())))
    missing = threshold == NOTHING
    return Measured(recall, _tpir(mated, limit(unknown)), np.nan if missing else realised, _tpir(mated, threshold))


def _searches(case: Case, items: np.ndarray, queries: np.ndarray, gallery: np.ndarray) -> SearchScores:
    return search_scores(case.queries[queries], items[queries], case.gallery[gallery], items[gallery])


def _tpir(scores: SearchScores, threshold: float) -> float:
    return float(np.mean((scores.own <= threshold) & (scores.own < scores.impostor)))


def _anchored(case: Case, held_out: HeldOut, shown: np.ndarray) -> float:
    """Return the threshold that a gallery of some photos gets, NOTHING if it gets none."""
    items, chosen = held_out.items, held_out.rows("calibration", "query")
    probes = Probes(case.queries[chosen], [f"q{i}" for i in np.flatnonzero(chosen)], items[chosen].tolist())
    with (
        tempfile.TemporaryDirectory() as folder,
        Gallery.create(Path(folder) / "g", dim=case.gallery.shape[1], embedding_id="model") as gallery,
    ):
        names = [f"p{i}" for i in np.flatnonzero(shown)]
        gallery.add(names, items[shown].tolist(), case.gallery[shown])
        draws = update_draws(
            gallery, None, model="model", distance_form=PLAIN, probes={PROBE: probes}, own=not case.mixed
        )
        point = point_of(draws, gallery_items=gallery.items)
    return NOTHING if point is None else point.threshold


def row(name: str, measured: Sequence[Measured]) -> tuple[str, ...]:
    """Return the mean of several divisions and seeds, with the deviation of the realised FPIR, as cells."""
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
    parser.add_argument("--output", type=Path, default=Path("runs/compatible"), help="Folder for runs and vectors.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--divisions", type=int, default=20)
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    photos = read_catalogue(data / "data" / "cars" / "cars.csv")
    held_out = HeldOut([photo for photo in photos if photo.partition != "train"])
    found: dict[str, list[Measured]] = {}
    for seed in range(arguments.seeds):
        for case in cases(data, arguments.output, held_out, seed):
            found.setdefault(case.name, []).extend(measure(case, held_out, d) for d in range(arguments.divisions))
    with Recorder("compatible", arguments) as record:
        record.table("cars", COLUMNS, (row(name, measured) for name, measured in found.items()))


if __name__ == "__main__":
    main()
