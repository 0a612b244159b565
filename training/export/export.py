"""A run becomes a bundle: ONNX that proves itself equal, one threshold from photos kept for nothing else."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.bundle.bundle import CALIBRATION, GOLDEN, REPORT, Bundle, write_bundle
from retrieval.bundle.golden import pack_golden
from retrieval.catalogue.byte_ranges import check_place
from retrieval.catalogue.read import Photo
from retrieval.errors import BundleError, InvalidParameter, RunError
from retrieval.images import open_image, thumbnail, to_tensor
from retrieval.metrics.consistency import FAR_RANGE, opis_of_ranges, utility_curves
from retrieval.metrics.identification import SearchScores
from retrieval.threshold.calibrate import OperatingPoint, calibrate
from retrieval.threshold.certainty import auroc, choose_cut, risk_coverage, without_uncertain, wrong_answers
from retrieval.threshold.pair_protocol import calibrate_pairs
from retrieval.threshold.recalibrate import Searches, pack_searches
from retrieval.threshold.report import ReportData, render_report
from retrieval.threshold.targets import Target
from training.data.splits import protocol_photos
from training.evaluation.distance_selection import validation_scene
from training.evaluation.evaluate import Scene, item_labels, make_scene, score_scene
from training.loop.run import Run

from .comparison import Figures, images_per_second, medians
from .forms import Form, Forms, embed_with_torch
from .onnx_embedding import embed_with_onnx
from .variants import REFERENCE, Variant, check_faithful

FAR_RANGES = (FAR_RANGE, (1e-4, 1e-3), (1e-3, 1e-2), (1e-2, 5e-2), (1e-1, 3e-1))  # of pairs, in the report
PICTURES = 4  # of each of the worst items in the report
TIMED = 32  # photos of the batch that forms are timed on


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
    """Write `path` as a bundle and return it.

    The threshold is chosen on the calibration items, through the ONNX model and the search code that serves, for a
    gallery of `gallery_size` items (by default as many as there are calibration items). A `target` of another kind
    replaces the FPIR; distances are compared at the latter all the same. With `reject_uncertain` searches of low
    certainty are answered with a no-match, below the cut that helps the validation items most. With `pairs_far_range`
    the threshold is one for 1:1 use, chosen on pairs within these false-accept rates, by a plain distance. In another
    precision or by another provider (`variant`) everything is measured anew, through that model and provider.
    Raises RunError when the ONNX model differs from torch by more than 1e-5 a component, or in another form by more
    than its floor allows, CalibrationError when no threshold keeps the promise, BundleError when `path` exists.
    """
    if path.exists():
        raise BundleError(f"{path} exists and bundles are immutable", remedy="Choose a new name")
    check_place(path)
    if pairs_far_range is not None and (target is not None or gallery_size is not None or reject_uncertain):
        raise InvalidParameter("protocol pairs", "stand without options of searches", pairs_far_range)
    if target is not None and target.fpir is not None:
        target_fpir = target.fpir
    settings, splits, protocol = run.settings, run.splits, run.protocol
    if not splits.calibration:
        raise RunError(
            "the run kept no calibration items",
            remedy="Give some items the partition calibration and train again",
        )
    photos = protocol_photos(run.photos(), splits.calibration, protocol)
    scene = make_scene("calibration", photos, splits.calibration, protocol)
    with tempfile.TemporaryDirectory() as folder:
        forms = Forms(run, Path(folder), target_fpir=target_fpir, only_plain=pairs_far_range is not None)
        form = forms.reference if variant.is_reference else forms.make(variant)
        choice = form.choice
        made, appearances = embed_with_onnx(form.embedder, photos)
        exported, certainties = made.vectors, made.certainties[scene.queries]
        raw = embed_with_torch(run, forms.model, photos).vectors
        trained = form.whitened(raw)
        faithful = check_faithful(exported, trained, variant)
        labels = np.array([photo.item_id for photo in photos])
        measure = choice.measure
        searches = score_scene(scene, exported, labels, measure=measure)
        cut, tried = _validated_cut(forms, form) if reject_uncertain else (0.0, {})
        scores = without_uncertain(searches, certainties, cut)
        groups = _groups(scene, photos)
        photo_ids = np.array([photos[i].photo_id for i in scene.queries])
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
        flips = decision_flips(searches, score_scene(scene, trained, labels, measure=measure), point.threshold)
        beside = [] if variant.is_reference else beside_fp32(forms, form, photos, raw, exported)
        evidence: dict[str, Any] = {
            "protocol": vars(protocol),
            "calibration_items": list(splits.calibration),
            "training_items": len(splits.fit) + len(splits.validation),
            "parity": {**faithful, "photos": len(photos), "decision_flips": flips},
            "form": {"precision": variant.precision, "provider": variant.provider, "made": form.made},
            "beside_fp32": beside,
            "distances_tried": choice.tried,
            "certainty": {
                **_told_by_certainty(searches, certainties),
                "cut": cut,
                "fnir_of_cuts_tried": {f"{value:.4g}": fnir for value, fnir in tried.items()},
            },
            "validation": (run.progress.get("best") or {}).get("figures", {}),
            "settings": settings.to_dict(),
        }
        asked_by = (exported[scene.queries], appearances[scene.queries])
        return write_bundle(
            path,
            model=form.onnx,
            preprocessing=run.preprocessing,
            dim=settings.dim,
            operating_point=point,
            measure=measure,
            precision=variant.precision,
            provider=variant.provider,
            evidence=evidence,
            files={
                CALIBRATION: pack_searches(Searches(searches, groups, photo_ids, certainties, *asked_by)),
                GOLDEN: pack_golden(form.embedder),
                REPORT: _report(point, scores, form, exported, photos, beside).encode(),
            },
        )


def beside_fp32(
    forms: Forms, form: Form, photos: Sequence[Photo], raw: np.ndarray, exported: np.ndarray
) -> list[dict[str, Any]]:
    """Return the figures of fp32 on the CPU and of another form, each with its own threshold.

    Parameters
    ----------
    photos, raw, exported:
        Calibration photos, and their unit vectors (n, d): by torch before any whitening, and by the form.
    """
    reference, run = forms.reference, forms.run
    scene = make_scene("calibration", photos, run.splits.calibration, run.protocol)
    labels = item_labels(photos)
    tensor = to_tensor(form.embedder.read([photo.read() for photo in photos[:TIMED]]), run.preprocessing)
    rates = medians(images_per_second([reference.embedder, form.embedder], tensor))
    found = []
    for one, vectors, rate in zip((reference, form), (reference.whitened(raw), exported), rates, strict=True):
        scores = score_scene(scene, vectors, labels, measure=one.choice.measure)
        name = one.variant.describe()
        found.append(Figures.of(name, rate, vectors, labels, scores, target_fpir=forms.target_fpir).to_dict())
    return found


def _validated_cut(forms: Forms, form: Form) -> tuple[float, dict[float, float]]:
    """Return the certainty below which a no-match helps the validation items most, and the FNIR of all tried."""
    asked = validation_scene(forms.photos, forms.run.splits, forms.run.protocol)
    vectors = form.whitened(form.fitted.vectors)
    scores = score_scene(asked, vectors, item_labels(forms.photos), measure=form.choice.measure)
    return choose_cut(scores, form.fitted.certainties[asked.queries], forms.target_fpir)


def _told_by_certainty(searches: SearchScores, certainties: np.ndarray) -> dict[str, float | None]:
    """Return how well the certainty of a query tells that its first answer is wrong."""
    wrong, mated = wrong_answers(searches), searches.mated
    return {
        "auroc_of_a_wrong_first_answer": auroc(certainties[mated], wrong[mated]),
        "risk_at_full_coverage": float(wrong[mated].mean()),
        "mean_risk_over_coverage": risk_coverage(certainties[mated], wrong[mated]).area,
    }


def _report(
    point: OperatingPoint,
    scores: SearchScores,
    form: Form,
    vectors: np.ndarray,
    photos: Sequence[Photo],
    beside: Sequence[dict[str, Any]],
) -> str:
    items = [photo.item_id for photo in photos]

    def pictures(item: str) -> list[bytes]:
        mine = [photo for photo in photos if photo.item_id == item][:PICTURES]
        return [thumbnail(open_image(photo.read())) for photo in mine]

    return render_report(
        ReportData(
            point,
            scores,
            form.choice.tried,
            pair_curves=utility_curves(vectors, items, np.linspace(0, 2, 101)[1:]),
            pair_opis=dict(zip(FAR_RANGES, opis_of_ranges(vectors, items, far_ranges=FAR_RANGES), strict=True)),
            photos=pictures,
            beside_fp32=beside,
        )
    )


def decision_flips(one: SearchScores, other: SearchScores, threshold: float) -> int:
    """Return how many queries are answered differently: own item accepted, or another one."""
    own = (one.own <= threshold) != (other.own <= threshold)
    impostor = (one.impostor <= threshold) != (other.impostor <= threshold)
    return int((own | impostor).sum())


def _groups(scene: Scene, photos: Sequence[Photo]) -> np.ndarray | None:
    """Return the group of each query, or None where the catalogue names none: then items are the clusters."""
    groups = np.array([photos[i].group for i in scene.queries])
    return groups if all(groups) else None
