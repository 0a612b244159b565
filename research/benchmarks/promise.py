"""Reliability of certified thresholds on unseen items, and their cost in TPIR.

    python -m research.benchmarks.promise

The catalogues are simulated and their true rates known: items in clusters of different density, with photos that vary
by the spread of the item. A repetition calibrates a threshold for FPIR 5 % on some items and searches thousands of new
ones. The benchmark prints how often the target was met, and the TPIR relative to that of the threshold that meets the
target exactly on the new items, for 30 to 1,000 calibration items.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from retrieval.bundle.operating_point import CERTIFIED
from retrieval.errors import CalibrationError
from retrieval.metrics.identification import SearchScores, identification_rates, search_scores, threshold_at_fpir
from retrieval.threshold.rule import calibrate

from .tables import NONE, Recorder, parser_of

TARGET, PHOTOS, DIM, CROWDS = 0.05, 6, 24, 40
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


def coverage(repetitions: int, record: Recorder) -> None:
    columns = (
        "calibration items",
        "certified",
        "promise kept",
        "realised FPIR, mean",
        "TPIR, of the exact threshold's",
    )
    record.table("coverage", columns)
    for items in ITEMS:
        done = [repetition(seed, items) for seed in tqdm(range(repetitions), desc=f"{items} items")]
        found = np.array([figure for figure in done if figure is not None]).reshape(-1, 2)
        kept = int((found[:, 0] <= TARGET).sum())
        means = found.mean(axis=0) if len(found) else (float("nan"), float("nan"))
        shown = (f"{mean:.{digits}f}" if len(found) else NONE for mean, digits in zip(means, (4, 3), strict=True))
        record.add(f"{items}", f"{len(found)}", f"{kept} of {len(found)}", *shown)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--repetitions", type=int, default=200)
    arguments = parser.parse_args()
    with Recorder("promise", arguments) as record:
        coverage(arguments.repetitions, record)


if __name__ == "__main__":
    main()
