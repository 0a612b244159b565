"""Export of a run as a bundle: the ONNX model, checked against torch, and a threshold from the calibration items."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from retrieval.bundle.bundle import (
    CALIBRATION,
    CALIBRATION_FEATURES,
    FITTED,
    GOLDEN,
    REPORT,
    Bundle,
    check_new,
    write_bundle,
)
from retrieval.bundle.embedder import pack_golden
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.errors import InvalidParameter, RunError
from retrieval.metrics.identification import SearchScores, identification_rates, threshold_at_fpir
from retrieval.threshold.rule import calibrate
from training.evaluation.distance_selection import validation_split
from training.evaluation.evaluate import item_labels, score_split
from training.loop.run import Run

from .calibration_items import CalibrationItems, compare_with_fp32
from .variants import REFERENCE, ExportedModel, ModelExporter, Variant, check_parity
from .verification import OFF, ValidationPhotos, VerificationChoice, check_verify, choose_verification

QUANTILES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)  # of the certainties, tried as cuts
NEVER = 1e9  # distance to the own item of a rejected search: still mated, never accepted


def export(
    run: Run,
    path: Path,
    *,
    target_fpir: float = 0.05,
    allow_estimate: bool = False,
    reject_uncertain: bool = False,
    variant: Variant = REFERENCE,
    verify: str = OFF,
) -> Bundle:
    """Write a bundle to `path` and return it. The threshold is set on the calibration items, with the ONNX model.

    Parameters
    ----------
    target_fpir:
        Promise of the threshold.
    allow_estimate:
        Accept a threshold whose FPIR could not be certified.
    reject_uncertain:
        Answer searches of low certainty with a no-match. The validation items decide what is low.
    variant:
        Precision and execution provider.
    verify:
        Geometric verification: "on", "off", or "auto" to keep it if it finds more validation items.

    Raises
    ------
    RunError
        If the ONNX model differs too much from torch, or the run has no calibration items.
    CalibrationError, BundleError
        If no threshold keeps the promise, or `path` exists.
    """
    check_verify(verify)
    check_new(path)
    if not run.splits.calibration:
        raise RunError("the run has no calibration items", remedy="Assign some items to the partition calibration")
    with tempfile.TemporaryDirectory() as folder:
        exporter = ModelExporter(run, Path(folder), target_fpir=target_fpir)
        model = exporter.reference if variant.is_reference else exporter.make(variant)
        items = CalibrationItems.embed(exporter, model, _verification(exporter, model, verify))
        parity = check_parity(items.vectors, model.whitened(items.raw), variant)
        cut, tried = _validated_cut(exporter, items) if reject_uncertain else (0.0, {})
        scores = without_uncertain(items.searches, items.certainties, cut)
        point = calibrate(
            scores,
            target_fpir=target_fpir,
            allow_estimate=allow_estimate,
            groups=items.groups,
            vectors=items.vectors[items.split.queries],
            seen_labels=[*run.splits.fit, *run.splits.validation],
        )
        point = replace(point, min_certainty=cut)
        comparison = [] if variant.is_reference else compare_with_fp32(exporter, items)
        evidence = {
            "parity": {**parity, "photos": len(items.photos)},
            "beside_fp32": comparison,
            "certainty": {"cut": cut, "fnir_of_cuts_tried": {f"{value:.4g}": fnir for value, fnir in tried.items()}},
            **_facts(run, items),
        }
        return _write(path, run, items, point, evidence, report=items.report(point, scores, comparison))


def _verification(exporter: ModelExporter, model: ExportedModel, verify: str) -> VerificationChoice:
    """Return the verification that the validation items choose."""
    run, photos = exporter.run, exporter.photos
    fit = np.flatnonzero(np.isin([photo.item_id for photo in photos], run.splits.fit))
    split = validation_split(photos, run.splits, run.protocol)
    vectors = model.whitened(model.fitted.vectors)
    return choose_verification(
        ValidationPhotos(photos, vectors, item_labels(photos), split, fit),
        preprocessing=run.preprocessing,
        base=model.choice.distance_form,
        target_fpir=exporter.target_fpir,
        verify=verify,
        catalogue_photos=len(run.photos()),
    )


def _facts(run: Run, items: CalibrationItems) -> dict[str, Any]:
    """Return what the bundle records of the run and of the choices for its model."""
    variant, splits = items.model.variant, run.splits
    return {
        "protocol": vars(run.protocol),
        "calibration_items": list(splits.calibration),
        "training_items": len(splits.fit) + len(splits.validation),
        "form": {"precision": variant.precision, "provider": variant.provider, "made": items.model.method},
        "distances_tried": items.model.choice.tried,
        "verification": items.verification.to_dict(),
        "validation": (run.progress.get("best") or {}).get("metrics", {}),
        "settings": run.settings.to_dict(),
    }


def _write(
    path: Path, run: Run, items: CalibrationItems, point: OperatingPoint, evidence: Mapping[str, Any], *, report: bytes
) -> Bundle:
    """Write the bundle."""
    model, verification = items.model, items.verification
    features = {} if verification.verifier is None else {CALIBRATION_FEATURES: items.pack_features()}
    return write_bundle(
        path,
        model=model.onnx,
        preprocessing=run.preprocessing,
        dim=run.settings.embedding_size,
        operating_point=point,
        distance_form=verification.form(model.choice.distance_form),
        precision=model.variant.precision,
        provider=model.variant.provider,
        evidence=evidence,
        files={
            CALIBRATION: items.pack(),
            FITTED: run.fitted_on().pack(),
            GOLDEN: pack_golden(model.embedder),
            REPORT: report,
            **features,
        },
    )


def _validated_cut(exporter: ModelExporter, items: CalibrationItems) -> tuple[float, dict[float, float]]:
    """Return the best cut on the certainty for the validation items, searched as the calibration items are."""
    model, photos, run = items.model, exporter.photos, exporter.run
    split = validation_split(photos, run.splits, run.protocol)
    vectors, labels = model.whitened(model.fitted.vectors), item_labels(photos)
    form, features = items.verification.searched(model.choice.distance_form, photos, run.preprocessing)
    scores = score_split(split, vectors, labels, distance_form=form, features=features)
    return choose_cut(scores, model.fitted.certainties[split.queries], exporter.target_fpir)


def without_uncertain(scores: SearchScores, certainties: ArrayLike, cut: float) -> SearchScores:
    """Return scores in which searches with a certainty below the cut return nothing."""
    low = np.asarray(certainties, dtype=np.float64) < cut
    if low.shape != scores.own.shape:
        raise InvalidParameter("certainties", "have one value a search", low.shape)
    own = np.where(low & scores.mated, NEVER, scores.own)
    return replace(scores, own=own, impostor=np.where(low, np.inf, scores.impostor))


def choose_cut(scores: SearchScores, certainties: ArrayLike, target_fpir: float) -> tuple[float, dict[float, float]]:
    """Return the cut with the lowest FNIR at the target FPIR (0 if none helps), and the FNIR of every cut tried."""
    values = np.asarray(certainties, dtype=np.float64)
    cuts = [0.0 if not share else float(np.quantile(values, share)) for share in QUANTILES]
    tried = {}
    for cut in cuts:
        kept = without_uncertain(scores, values, cut)
        tried[cut] = identification_rates(kept, threshold_at_fpir(kept, target_fpir)).fnir
    return min(tried, key=lambda cut: (tried[cut], cut)), tried
