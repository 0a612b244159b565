"""Comparison of an exported model with fp32: throughput, OPIS, FPIR and TPIR."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.search.distance import DistanceForm
from index.search.verified import VerifiedDistance
from retrieval.bundle.embedder import Embedder
from retrieval.images import to_tensor
from retrieval.metrics.consistency import opis, search_opis
from retrieval.metrics.identification import SearchScores, identification_rates, threshold_at_fpir
from retrieval.reports.bundle_report import variant_cells
from retrieval.text import text_table
from training.evaluation.evaluate import item_labels, score_split

from .calibration_items import CalibrationItems
from .exported_models import ModelExporter

ROUNDS = 7
TIMED = 32  # photos in the batch for timing


@dataclass(frozen=True)
class VariantMetrics:
    """Metrics of a variant on the calibration photos, with rates at the largest threshold that keeps the target."""

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
    ) -> VariantMetrics:
        """Compute the metrics of vectors (n, d) with items (n,), and of the searches among them."""
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
    """Return the photos per second of each model on a batch (n, 3, size, size), for each of interleaved rounds.

    On a shared machine, pass `time.process_time` as the clock to count the CPU time of this process only.
    """
    rates: list[list[float]] = [[] for _ in embedders]
    for embedder in embedders:
        embedder.embed_tensor(tensor)  # warm-up
    for _ in range(rounds):
        for embedder, embedder_rates in zip(embedders, rates, strict=True):
            started = clock()
            for _ in range(repeat):
                embedder.embed_tensor(tensor)
            embedder_rates.append(repeat * len(tensor) / (clock() - started))
    return rates


def medians(rates: Sequence[Sequence[float]]) -> list[float]:
    """Return the median rate of each model."""
    return [statistics.median(model_rates) for model_rates in rates]


def compare_with_fp32(exporter: ModelExporter, items: CalibrationItems) -> list[dict[str, Any]]:
    """Return the metrics of fp32 on the CPU and of the model that embedded the items, each with its own threshold."""
    reference, exported_model, photos = exporter.reference, items.model, items.photos
    labels, verified = item_labels(photos), items.distance_form
    read = exported_model.embedder.read([photo.read() for photo in photos[:TIMED]])
    tensor = to_tensor(read, exporter.run.preprocessing)
    rates = medians(images_per_second([reference.embedder, exported_model.embedder], tensor))
    rows = []
    for model, vectors, rate in zip(
        (reference, exported_model), (reference.whitened(items.raw), items.vectors), rates, strict=True
    ):
        form: DistanceForm = model.choice.distance_form
        if isinstance(verified, VerifiedDistance):
            form = VerifiedDistance(form, verified.verifier)
        scores = score_split(items.split, vectors, labels, distance_form=form, features=items.features)
        name = model.variant.describe()
        rows.append(VariantMetrics.of(name, rate, vectors, labels, scores, target_fpir=exporter.target_fpir).to_dict())
    return rows


def render_comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a text table of the metrics of several variants."""
    head = ("variant", "images/s", "OPIS", "OPIS of searches", "FPIR", "TPIR")
    cells = [variant_cells(row) for row in rows]
    return "\n".join(text_table(head, cells))
