"""Comparison of an exported model with fp32 on the CPU: OPIS, FPIR and TPIR, each with a threshold of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from index.search.distance import DistanceForm
from index.search.verified import VerifiedDistance
from retrieval.metrics.consistency import opis, search_opis
from retrieval.metrics.identification import identification_rates, threshold_at_fpir
from retrieval.reports.bundle_report import variant_cells
from retrieval.text import text_table
from training.evaluation.evaluate import item_labels, score_split

from .calibration_items import CalibrationItems
from .variants import ModelExporter


def compare_with_fp32(exporter: ModelExporter, items: CalibrationItems) -> list[dict[str, Any]]:
    """Return the metrics of fp32 on the CPU and of the model that embedded the items.

    The rates are those of the largest threshold that keeps the target.
    """
    reference, labels, verified = exporter.reference, item_labels(items.photos), items.distance_form
    rows = []
    for model, vectors in ((reference, reference.whitened(items.raw)), (items.model, items.vectors)):
        form: DistanceForm = model.choice.distance_form
        if isinstance(verified, VerifiedDistance):
            form = VerifiedDistance(form, verified.verifier)
        scores = score_split(items.split, vectors, labels, distance_form=form, features=items.features)
        rates = identification_rates(scores, threshold_at_fpir(scores, exporter.target_fpir))
        rows.append(
            {
                "form": model.variant.describe(),
                "opis": opis(vectors, labels).value,
                "search_opis": search_opis(scores, exporter.target_fpir).value,
                "fpir": rates.fpir,
                "tpir": rates.tpir,
            }
        )
    return rows


def render_comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a text table of the metrics of both models."""
    return "\n".join(text_table(("variant", "OPIS", "OPIS of searches", "FPIR", "TPIR"), [*map(variant_cells, rows)]))
