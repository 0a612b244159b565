"""Export of a run as a bundle: the ONNX model, checked against torch, and a threshold from the calibration items."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from index.files import working_folder
from index.search.item_distance import ItemDistance
from retrieval.bundle.bundle import (
    CALIBRATION,
    CALIBRATION_FEATURES,
    FITTED,
    GOLDEN,
    REPORT,
    VERIFICATION,
    Bundle,
    check_new,
    write_bundle,
)
from retrieval.bundle.embedder import pack_golden
from retrieval.errors import CalibrationError, InvalidParameter, RunError, counted
from retrieval.measuring.point import Point
from retrieval.metrics.bounds import items_needed
from retrieval.verification.verifier import GeometricVerifier
from training.loop.run import Run, started_from

from .calibration_items import CalibrationItems, compare_with_fp32
from .cross_fitted import export_cross_fitted
from .variants import REFERENCE, ModelExporter, Variant, check_parity
from .verification import fit_verifier


def export(
    run: Run,
    path: Path,
    *,
    target_fpir: float = 0.05,
    certify: bool = False,
    variant: Variant = REFERENCE,
    item_distance: ItemDistance | None = None,
    verify: bool = False,
    even_if_worse: bool = False,
) -> Bundle:
    """Write a bundle to `path` and return it, with a threshold that is set on the calibration items, if there are any.

    Parameters
    ----------
    target_fpir:
        Promise of the threshold.
    certify:
        Certify the target FPIR, or raise. A certified threshold finds fewer items than an estimated one.
    variant:
        Precision and execution provider.
    item_distance:
        Constants of the item distance, by default those of `ItemDistance.default`.
    verify:
        Compare local features (geometric verification), with a vocabulary fitted to the fit items.
    even_if_worse:
        Export a run that finds less than the model that it started from.

    Raises
    ------
    RunError
        If the run is worse than its start or has no calibration items, or the ONNX model differs too much from torch.
    CalibrationError, BundleError
        If no threshold keeps the promise or calibration items were seen in training, or `path` exists.
    """
    _check(run, path, target_fpir=target_fpir, certify=certify, even_if_worse=even_if_worse)
    distance = item_distance or ItemDistance.default(verified=verify)
    if run.folds:
        return export_cross_fitted(run, path, target_fpir=target_fpir, variant=variant, item_distance=distance)
    with working_folder() as folder:
        exporter = ModelExporter(run, folder)
        verifier, model = _verifier(exporter) if verify else None, exporter.make(variant)
        items = CalibrationItems.embed(exporter, model, distance, verifier)
        parity = check_parity(items.vectors, items.raw, variant)
        point = items.point(target_fpir, certify=certify)
        comparison = [] if variant.is_reference else compare_with_fp32(items, target_fpir)
        parities = {"parity": {**parity, "photos": len(items.photos)}, "beside_fp32": comparison}
        evidence = {**parities, **_facts(run, items)}
        report = {REPORT: items.report(point, comparison)} if point.decides else {}
        return _write(path, run, items, point, evidence, report)


def _check(run: Run, path: Path, *, target_fpir: float, certify: bool, even_if_worse: bool) -> None:
    """Raise an error, before minutes of work, if the run cannot be exported or needs a word for it."""
    check_new(path)
    if run.worse and not even_if_worse:
        raise RunError(
            f"{run.path} finds less than the model that it started from ({started_from(run)}): for new photos in a "
            f"gallery of fitted and unfitted items, {', and '.join(run.worse)}",
            remedy=f"Export that model (`{run.export_command}`), train in another way, or pass --even-if-worse",
        )
    if run.folds and certify:
        remedy = "Leave it out: fold models can estimate a threshold, but not certify it"
        raise InvalidParameter("--certify", "be left out for a run on all items", certify, remedy=remedy)
    if run.folds:
        return
    if not run.splits.calibration:
        raise RunError("the run has no calibration items", remedy="Assign some items to the partition calibration")
    seen = sorted({*run.splits.fit, *run.splits.validation} & {*run.splits.calibration})
    if seen:
        were = counted(len(seen), "calibration item was", "calibration items were")
        raise CalibrationError(
            f"{were} seen in training, such as {seen[0]}",
            remedy="Calibrate on items that training never saw",
        )
    items, needed = len(run.splits.calibration), items_needed(target_fpir) if 0 < target_fpir < 1 else 0
    if certify and items < needed:
        raise CalibrationError(
            f"{counted(items, 'item')} for calibration cannot certify an FPIR of {target_fpir:g}: it takes {needed}",
            remedy="Bring more calibration items, or leave --certify out",
        )


def _verifier(exporter: ModelExporter) -> GeometricVerifier:
    """Return a verifier that is fitted to the photos of the fit items."""
    run, fit = exporter.run, set(exporter.run.splits.fit)
    photos = [photo for photo in exporter.photos if photo.item_id in fit]
    return fit_verifier(photos, run.preprocessing, catalogue_photos=len(run.photos()))


def _facts(run: Run, items: CalibrationItems) -> dict[str, Any]:
    """Return what the bundle records of the run and of its model."""
    variant, splits = items.model.variant, run.splits
    return {
        "protocol": vars(run.protocol),
        "calibration_items": list(splits.calibration),
        "training_items": len(splits.fit) + len(splits.validation),
        "form": {"precision": variant.precision, "provider": variant.provider, "made": items.model.method},
        "validation": (run.progress.get("best") or {}).get("metrics", {}),
        "settings": run.settings.to_dict(),
    }


def _write(
    path: Path,
    run: Run,
    items: CalibrationItems,
    point: Point,
    evidence: Mapping[str, Any],
    report: Mapping[str, bytes],
) -> Bundle:
    """Write the bundle, with a report if there is a threshold."""
    model = items.model
    verified = {}
    if items.verifier is not None:
        verified = {VERIFICATION: items.verifier.pack(), CALIBRATION_FEATURES: items.pack_features()}
    return write_bundle(
        path,
        model=model.onnx,
        preprocessing=run.preprocessing,
        dim=run.settings.embedding_size,
        operating_point=point,
        item_distance=items.item_distance,
        precision=model.variant.precision,
        provider=model.variant.provider,
        evidence=evidence,
        files={
            CALIBRATION: items.pack(),
            FITTED: run.fitted_on().pack(),
            GOLDEN: pack_golden(model.embedder),
            **report,
            **verified,
        },
    )
