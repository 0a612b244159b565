"""Reliability of certified thresholds on unseen items, and their cost in TPIR.

    python -m research.benchmarks.promise --output runs/promise

The catalogues are simulated and their true rates known: items in clusters of different density, with photos that vary
by the spread of the item. A repetition calibrates a threshold for FPIR 5 % on some items and searches thousands of new
ones. The benchmark prints how often the target was met, and the TPIR relative to that of the threshold that meets the
target exactly on the new items. It plots both for 30 to 1,000 calibration items. `--sizes` predicts and measures FPIR
in galleries of 10 and 100 times the calibrated number of items.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from index.ann.faiss_index import Candidates
from index.search.distance import plain_distance
from retrieval.bundle.operating_point import CERTIFIED
from retrieval.errors import CalibrationError
from retrieval.metrics.identification import SearchScores, identification_rates, search_scores, threshold_at_fpir
from retrieval.threshold.rule import calibrate

from .gallery_size import size_model
from .tables import NONE, Recorder, parser_of

TARGET, PHOTOS, DIM, CROWDS = 0.05, 6, 24, 40
ASKING = 20_000  # query photos in a larger gallery
ITEMS = (30, 60, 100, 200, 300, 600, 1000)


@dataclass(frozen=True)
class Catalogue:
    """A simulated catalogue: clusters of items, some tighter than others."""

    centres: np.ndarray  # (crowds, d)
    widths: np.ndarray  # (crowds, 1)

    @classmethod
    def draw(cls, generator: np.random.Generator) -> Catalogue:
        return cls(generator.normal(size=(CROWDS, DIM)), generator.uniform(0.5, 1.2, size=(CROWDS, 1)))

    def searches(self, generator: np.random.Generator, items: int, *, asking: int) -> SearchScores:
        """Return searches with `asking` photos of each new item; one more photo of each is in the gallery."""
        vectors, labels, kept = self.photos(generator, items, asking=asking)
        return search_scores(vectors[~kept], labels[~kept], vectors[kept], labels[kept])

    def strangers(self, generator: np.random.Generator, items: int) -> np.ndarray:
        """Return the distances (n,) from up to ASKING photos of new items to the nearest of the other items."""
        vectors, labels, kept = self.photos(generator, items, asking=1)
        queries, gallery = vectors[~kept][:ASKING], vectors[kept]
        rows, _ = Candidates.flat(gallery).search(queries, 2)
        other = np.where(labels[kept][rows[:, 0]] == labels[~kept][:ASKING], rows[:, 1], rows[:, 0])
        return np.asarray(plain_distance(queries, gallery[other]))

    def photos(self, generator: np.random.Generator, items: int, *, asking: int) -> tuple[np.ndarray, ...]:
        """Return unit vectors of `asking` + 1 photos per item, their labels, and the mask of gallery photos."""
        crowd = generator.integers(CROWDS, size=items)
        items_at = self.centres[crowd] + self.widths[crowd] * generator.normal(size=(items, DIM))
        spread = generator.uniform(0.2, 0.5, size=(items, 1))
        labels = np.repeat(np.arange(items), asking + 1)
        photos = items_at[labels] + spread[labels] * generator.normal(size=(len(labels), DIM))
        vectors = (photos / np.linalg.norm(photos, axis=1, keepdims=True)).astype(np.float32)
        return vectors, labels, np.arange(len(labels)) % (asking + 1) == asking


def fresh_searches(catalogue: Catalogue, generator: np.random.Generator, items: int) -> SearchScores:
    """Return searches of many new items in galleries with the number of items used in calibration."""
    parts = [catalogue.searches(generator, items, asking=PHOTOS - 1) for _ in range(max(1, 3000 // items))]
    return SearchScores(
        np.concatenate([part.labels + 10**6 * number for number, part in enumerate(parts)]),
        np.concatenate([part.own for part in parts]),
        np.concatenate([part.impostor for part in parts]),
        items,
    )


def repetition(seed: int, items: int) -> tuple[float, float] | None:
    """Return the realised FPIR and the share of the exact threshold's TPIR; None if no threshold is certified."""
    generator = np.random.default_rng((seed, items))
    catalogue = Catalogue.draw(generator)
    try:
        point = calibrate(catalogue.searches(generator, items, asking=PHOTOS - 1), target_fpir=TARGET)
    except CalibrationError:
        return None
    if point.status != CERTIFIED:
        raise RuntimeError("an estimate was not asked for")
    fresh = fresh_searches(catalogue, generator, items)
    exact = identification_rates(fresh, threshold_at_fpir(fresh, TARGET))
    rates = identification_rates(fresh, point.threshold)
    return rates.fpir, rates.tpir / exact.tpir


def coverage(repetitions: int, output: Path, record: Recorder) -> None:
    columns = (
        "calibration items",
        "certified",
        "promise kept",
        "realised FPIR, mean",
        "TPIR, of the exact threshold's",
    )
    record.table("coverage", columns)
    rows = []
    for items in ITEMS:
        done = [repetition(seed, items) for seed in tqdm(range(repetitions), desc=f"{items} items")]
        found = np.array([figure for figure in done if figure is not None]).reshape(-1, 2)
        kept = int((found[:, 0] <= TARGET).sum())
        means = found.mean(axis=0) if len(found) else (float("nan"), float("nan"))
        shown = (f"{mean:.{digits}f}" if len(found) else NONE for mean, digits in zip(means, (4, 3), strict=True))
        record.add(f"{items}", f"{len(found)}", f"{kept} of {len(found)}", *shown)
        rows.append((items, len(found), kept, *means))
    plot(np.array(rows, dtype=float), repetitions, output / "promise.png")


def plot(rows: np.ndarray, repetitions: int, path: Path) -> None:
    """Plot realised FPIR and relative TPIR against the number of calibration items."""
    import matplotlib.pyplot as plt

    items, certified, kept, fpir, tpir = rows.T
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), constrained_layout=True)
    axes[0].plot(items, fpir, "o-", label="realised on fresh items, mean")
    axes[0].axhline(TARGET, color="0.4", linestyle="--", label="promised")
    axes[0].set(xscale="log", xlabel="calibration items", ylabel="FPIR", ylim=(0, 1.2 * TARGET))
    axes[0].legend(loc="upper right")
    axes[1].plot(items, tpir, "o-", label="TPIR, of the exact threshold's")
    axes[1].plot(items, certified / repetitions, "s:", label="share of repetitions certified")
    held = np.divide(kept, certified, out=np.full(len(kept), np.nan), where=certified > 0)
    axes[1].plot(items, held, "^:", label="share of promises kept")
    axes[1].set(xscale="log", xlabel="calibration items", ylim=(0, 1.05))
    axes[1].legend(loc="upper right")
    figure.savefig(path, dpi=120)
    print(f"\nWrote {path}.")


def sizes(catalogues: int, record: Recorder) -> None:
    ratio = "predicted over measured: median [10 %, 90 %] of catalogues"
    record.table("sizes", ("calibrated items", "gallery", "measured FPIR", ratio))
    shares = (0.01, 0.03, 0.1, 0.3)
    for items in (300, 1000):
        ratios: dict[tuple[int, float], list[float]] = {}
        for seed in tqdm(range(catalogues), desc=f"{items} items"):
            generator = np.random.default_rng((seed, 7))
            catalogue = Catalogue.draw(generator)
            model = size_model(catalogue.searches(generator, items, asking=PHOTOS - 1))
            for factor in (10, 100):
                nearest = catalogue.strangers(generator, items * factor)
                for share in shares:
                    predicted = model.fpir(float(np.quantile(nearest, share)), items * factor - 1)
                    ratios.setdefault((factor, share), []).append(predicted / share)
        for (factor, share), values in ratios.items():
            low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
            record.add(f"{items}", f"{factor} times", f"{share:g}", f"{middle:.2f} [{low:.2f}, {high:.2f}]")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/promise"))
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--sizes", type=int, default=0, metavar="CATALOGUES", help="Measure larger galleries instead.")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with Recorder("promise-sizes" if arguments.sizes else "promise", arguments) as record:
        if arguments.sizes:
            sizes(arguments.sizes, record)
        else:
            coverage(arguments.repetitions, arguments.output, record)


if __name__ == "__main__":
    main()
