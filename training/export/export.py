"""Export of a run as a bundle: the ONNX model, checked against torch, and a threshold from the calibration items."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

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
from retrieval.errors import RunError
from retrieval.threshold.rule import calibrate
from training.evaluation.distance_selection import validation_split
from training.evaluation.evaluate import item_labels
from training.loop.run import Run

from .calibration_items import CalibrationItems, compare_with_fp32
from .variants import REFERENCE, ExportedModel, ModelExporter, Variant, check_parity
from .verification import OFF, ValidationPhotos, VerificationChoice, check_verify, choose_verification

NEVER = 1e9  # distance to the own item of a rejected search: still mated, never accepted


def export(
    run: Run,
    path: Path,
    *,
    target_fpir: float = 0.05,
    allow_estimate: bool = False,
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
        point = calibrate(
            items.searches,
            target_fpir=target_fpir,
            allow_estimate=allow_estimate,
            groups=items.groups,
            vectors=items.vectors[items.split.queries],
            seen_labels=[*run.splits.fit, *run.splits.validation],
        )
        comparison = [] if variant.is_reference else compare_with_fp32(exporter, items)
        evidence = {
            "parity": {**parity, "photos": len(items.photos)},
            "beside_fp32": comparison,
            **_facts(run, items),
        }
        return _write(path, run, items, point, evidence, report=items.report(point, comparison))


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
