"""What a form of a model does beside fp32: photos a second, OPIS, and FPIR and TPIR, as numbers and as a table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.bundle.embedder import Embedder
from retrieval.metrics.consistency import opis, search_opis
from retrieval.metrics.identification import SearchScores, identification_rates, threshold_at_fpir

ROUNDS = 7


@dataclass(frozen=True)
class Figures:
    """What a form does on the calibration photos; rates at the largest threshold that keeps the target there."""

    form: str
    images_per_second: float
    opis: float  # of pairs
    search_opis: float
    fpir: float
    tpir: float

    @classmethod
    def of(
        cls,
        form: str,
        rate: float,
        vectors: NDArray[np.float32],
        labels: NDArray[Any],
        scores: SearchScores,
        *,
        target_fpir: float,
    ) -> Figures:
        """Measure vectors (n, d) of items (n,), and the searches among them."""
        rates = identification_rates(scores, threshold_at_fpir(scores, target_fpir))
        pairs, searches = opis(vectors, labels).value, search_opis(scores, target_fpir).value
        return cls(form, rate, pairs, searches, rates.fpir, rates.tpir)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def images_per_second(
    embedders: Sequence[Embedder],
    tensor: NDArray[np.float32],
    *,
    rounds: int = ROUNDS,
    repeat: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Return the photos a second of each model alone, on a batch (n, 3, size, size), in each of interleaved rounds.

    Where others use the machine, `time.process_time` as the clock counts what the model itself took of it.
    """
    rates: list[list[float]] = [[] for _ in embedders]
    for embedder in embedders:
        embedder.embed_tensor(tensor)  # what is made once is made here
    for _ in range(rounds):
        for embedder, mine in zip(embedders, rates, strict=True):
            started = clock()
            for _ in range(repeat):
                embedder.embed_tensor(tensor)
            mine.append(repeat * len(tensor) / (clock() - started))
    return rates


def medians(rates: Sequence[Sequence[float]]) -> list[float]:
    """Return the median of each."""
    return [statistics.median(mine) for mine in rates]


def render_beside(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return an aligned table of figures as plain values."""
    head = ("form", "images/s", "OPIS", "OPIS of searches", "FPIR", "TPIR")
    cells = [
        (
            str(row["form"]),
            f"{row['images_per_second']:.0f}",
            f"{row['opis']:.2e}",
            f"{row['search_opis']:.2e}",
            f"{row['fpir']:.3f}",
            f"{row['tpir']:.3f}",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" if not place else f"{cell:>{width}}" for place, (cell, width) in enumerate(line))
        for line in (list(zip(row, widths, strict=True)) for row in (head, *cells))
    )
