"""Export of a run as a bundle: the ONNX model, checked against torch, and a threshold from the calibration items."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from index.distance import accepts
from index.draws import Probes
from retrieval.bundle.bundle import CALIBRATION, FITTED, GOLDEN, REPORT, Bundle, write_bundle
from retrieval.bundle.calibration_set import CalibrationSet
from retrieval.bundle.fitted import Fitted, content_hash
from retrieval.bundle.golden import pack_golden
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.catalogue.read import Photo
from retrieval.errors import BundleError, InvalidParameter, RunError
from retrieval.files import check_place
from retrieval.images import open_image, thumbnail, to_tensor
from retrieval.metrics.consistency import FAR_RANGE, opis_of_ranges, utility_curves
from retrieval.metrics.identification import SearchScores
from retrieval.threshold.calibrate import calibrate
from retrieval.threshold.certainty import auroc, choose_cut, risk_coverage, without_uncertain, wrong_answers
from retrieval.threshold.pair_protocol import calibrate_pairs
from retrieval.threshold.report import ReportData, render_report
from retrieval.threshold.targets import Target
from training.data.splits import photos_in_protocol
from training.evaluation.distance_selection import validation_split
from training.evaluation.evaluate import EvaluationSplit, item_labels, make_evaluation_split, score_split
from training.loop.run import Run

from .comparison import VariantMetrics, images_per_second, medians
from .exported_models import ExportedModel, ModelExporter, embed_with_torch
from .onnx_embedding import embed_with_onnx
from .variants import REFERENCE, Variant, check_parity

FAR_RANGES = (FAR_RANGE, (1e-4, 1e-3), (1e-3, 1e-2), (1e-2, 5e-2), (1e-1, 3e-1))  # of pairs, in the report
PICTURES = 4  # photos per item in the report
TIMED = 32  # photos in the batch for timing


def export(
    run: Run,
    path: Path,
    *,
    target_fpir: float = 0.05,
    allow_estimate: bool = False,
    gallery_size: int | None = None,
    target: Target | None = None,
    reject_uncertain: bool = False,
    pairs_far_range: tuple[float, float] | None = None,
    variant: Variant = REFERENCE,
) -> Bundle:
    """Write a bundle to `path` and return it.

    The threshold is set on the calibration items, with the ONNX model and the search code that serves.

    Parameters
    ----------
    target_fpir, target:
        Promise of the threshold. A `target` of another kind replaces the FPIR, at which distances are still compared.
    allow_estimate:
        Accept a threshold whose FPIR could not be certified.
    gallery_size:
        Number of items that the promise is for; by default the number of calibration items.
    reject_uncertain:
        Answer searches of low certainty with a no-match. The validation items decide what is low.
    pairs_far_range:
        Set the threshold for 1:1 use instead, on pairs within these false-accept rates, with a plain distance.
    variant:
        Precision and execution provider. Everything is measured with this variant.

    Raises
    ------
    RunError
        If the ONNX model differs too much from torch, or the run has no calibration items.
    CalibrationError
        If no threshold keeps the promise.
    BundleError
        If `path` exists.
    """
    if path.exists():
        raise BundleError(f"{path} exists and bundles are immutable", remedy="Choose a new name")
    check_place(path)
    if pairs_far_range is not None and (target is not None or gallery_size is not None or reject_uncertain):
        raise InvalidParameter("protocol pairs", "be used without options for searches", pairs_far_range)
    if target is not None and target.fpir is not None:
        target_fpir = target.fpir
    settings, splits, protocol = run.settings, run.splits, run.protocol
    if not splits.calibration:
        raise RunError(
            "the run has no calibration items",
            remedy="Assign some items to the partition calibration and train again",
        )
    photos = photos_in_protocol(run.photos(), splits.calibration, protocol)
    split = make_evaluation_split("calibration", photos, splits.calibration, protocol)
    with tempfile.TemporaryDirectory() as folder:
        exporter = ModelExporter(run, Path(folder), target_fpir=target_fpir, only_plain=pairs_far_range is not None)
        exported_model = exporter.reference if variant.is_reference else exporter.make(variant)
        choice = exported_model.choice
        embeddings, appearances = embed_with_onnx(exported_model.embedder, photos)
        exported, certainties = embeddings.vectors, embeddings.certainties[split.queries]
        raw = embed_with_torch(run, exporter.model, photos).vectors
        trained = exported_model.whitened(raw)
        parity = check_parity(exported, trained, variant)
        labels = np.array([photo.item_id for photo in photos])
        distance_form = choice.distance_form
        searches = score_split(split, exported, labels, distance_form=distance_form)
        cut, tried = _validated_cut(exporter, exported_model) if reject_uncertain else (0.0, {})
        scores = without_uncertain(searches, certainties, cut)
        groups = _groups(split, photos)
        photo_ids = np.array([photos[i].photo_id for i in split.queries])
        if pairs_far_range is None:
            point = calibrate(
                scores,
                target_fpir=target_fpir if target is None else target.as_fpir(scores),
                allow_estimate=allow_estimate,
                groups=groups,
                seen_labels=[*splits.fit, *splits.validation],
                gallery_size=gallery_size,
            )
            point = replace(point, min_certainty=cut)
        else:
            items = [photo.item_id for photo in photos]
            point = calibrate_pairs(exported, items, scores, far_range=pairs_far_range, allow_estimate=allow_estimate)
        flips = decision_flips(
            searches, score_split(split, trained, labels, distance_form=distance_form), point.threshold
        )
        comparison = [] if variant.is_reference else compare_with_fp32(exporter, exported_model, photos, raw, exported)
        evidence: dict[str, Any] = {
            "protocol": vars(protocol),
            "calibration_items": list(splits.calibration),
            "training_items": len(splits.fit) + len(splits.validation),
            "parity": {**parity, "photos": len(photos), "decision_flips": flips},
            "form": {
                "precision": variant.precision,
                "provider": variant.provider,
                "made": exported_model.method,
            },
            "beside_fp32": comparison,
            "distances_tried": choice.tried,
            "certainty": {
                **_certainty_metrics(searches, certainties),
                "cut": cut,
                "fnir_of_cuts_tried": {f"{value:.4g}": fnir for value, fnir in tried.items()},
            },
            "validation": (run.progress.get("best") or {}).get("metrics", {}),
            "settings": settings.to_dict(),
        }
        queries = (exported[split.queries], appearances[split.queries])
        gallery_photos = [photos[i] for i in split.gallery]
        searched = Probes(
            exported[split.gallery], [p.photo_id for p in gallery_photos], [p.item_id for p in gallery_photos]
        )
        return write_bundle(
            path,
            model=exported_model.onnx,
            preprocessing=run.preprocessing,
            dim=settings.dim,
            operating_point=point,
            distance_form=distance_form,
            precision=variant.precision,
            provider=variant.provider,
            evidence=evidence,
            files={
                CALIBRATION: CalibrationSet(searches, groups, photo_ids, certainties, *queries, searched).pack(),
                FITTED: _fitted(run).pack(),
                GOLDEN: pack_golden(exported_model.embedder),
                REPORT: _report(point, scores, exported_model, exported, photos, comparison).encode(),
            },
        )


def _fitted(run: Run) -> Fitted:
    """Return what the run was fitted on: the training items, and the content of every photo of them."""
    items = set(run.splits.fit)
    photos = [photo for photo in run.photos() if photo.item_id in items]
    return Fitted.of(items, (content_hash(photo.read(), photo.bbox) for photo in photos))


def compare_with_fp32(
    exporter: ModelExporter,
    exported_model: ExportedModel,
    photos: Sequence[Photo],
    raw: np.ndarray,
    exported: np.ndarray,
) -> list[dict[str, Any]]:
    """Return the metrics of fp32 on the CPU and of another model, each with its own threshold.

    Parameters
    ----------
    photos, raw, exported:
        Calibration photos, and their unit vectors (n, d): by torch before whitening, and by the exported model.
    """
    reference, run = exporter.reference, exporter.run
    split = make_evaluation_split("calibration", photos, run.splits.calibration, run.protocol)
    labels = item_labels(photos)
    tensor = to_tensor(exported_model.embedder.read([photo.read() for photo in photos[:TIMED]]), run.preprocessing)
    rates = medians(images_per_second([reference.embedder, exported_model.embedder], tensor))
    rows = []
    for model, vectors, rate in zip(
        (reference, exported_model), (reference.whitened(raw), exported), rates, strict=True
    ):
        scores = score_split(split, vectors, labels, distance_form=model.choice.distance_form)
        name = model.variant.describe()
        rows.append(VariantMetrics.of(name, rate, vectors, labels, scores, target_fpir=exporter.target_fpir).to_dict())
    return rows


def _validated_cut(exporter: ModelExporter, exported_model: ExportedModel) -> tuple[float, dict[float, float]]:
    """Return the best cut on the certainty for the validation items, and the FNIR of all cuts tried."""
    split = validation_split(exporter.photos, exporter.run.splits, exporter.run.protocol)
    vectors = exported_model.whitened(exported_model.fitted.vectors)
    scores = score_split(
        split, vectors, item_labels(exporter.photos), distance_form=exported_model.choice.distance_form
    )
    return choose_cut(scores, exported_model.fitted.certainties[split.queries], exporter.target_fpir)


def _certainty_metrics(searches: SearchScores, certainties: np.ndarray) -> dict[str, float | None]:
    """Return how well the certainty of a query predicts that its first answer is wrong."""
    wrong, mated = wrong_answers(searches), searches.mated
    return {
        "auroc_of_a_wrong_first_answer": auroc(certainties[mated], wrong[mated]),
        "risk_at_full_coverage": float(wrong[mated].mean()),
        "mean_risk_over_coverage": risk_coverage(certainties[mated], wrong[mated]).area,
    }


def _report(
    point: OperatingPoint,
    scores: SearchScores,
    exported_model: ExportedModel,
    vectors: np.ndarray,
    photos: Sequence[Photo],
    comparison: Sequence[dict[str, Any]],
) -> str:
    items = [photo.item_id for photo in photos]

    def pictures(item: str) -> list[bytes]:
        item_photos = [photo for photo in photos if photo.item_id == item][:PICTURES]
        return [thumbnail(open_image(photo.read())) for photo in item_photos]

    return render_report(
        ReportData(
            point,
            scores,
            exported_model.choice.tried,
            pair_curves=utility_curves(vectors, items, np.linspace(0, 2, 101)[1:]),
            pair_opis=dict(zip(FAR_RANGES, opis_of_ranges(vectors, items, far_ranges=FAR_RANGES), strict=True)),
            photos=pictures,
            beside_fp32=comparison,
        )
    )


def decision_flips(first: SearchScores, second: SearchScores, threshold: float) -> int:
    """Return the number of queries whose own item, or another one, is accepted in only one of the two."""
    own = accepts(first.own, threshold) != accepts(second.own, threshold)
    impostor = accepts(first.impostor, threshold) != accepts(second.impostor, threshold)
    return int((own | impostor).sum())


def _groups(split: EvaluationSplit, photos: Sequence[Photo]) -> np.ndarray | None:
    """Return the group of each query, or None if the catalogue has no groups."""
    groups = np.array([photos[i].group for i in split.queries])
    return groups if all(groups) else None
