"""Recalibration: a new threshold for the same model, from the calibration searches stored in the bundle."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from index.shell import command
from retrieval.bundle.bundle import REPORT, Bundle, write_bundle
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.errors import CalibrationError, MissingDependency
from retrieval.metrics.identification import SearchScores

from .calibrate import calibrate
from .certainty import without_uncertain
from .feedback import Feedback
from .report import ReportData, render_report
from .targets import Target
from .verdicts import Tally, feedback_caps, weigh

CAP = "feedback_cap"  # key in the evidence: upper limit of later thresholds


@dataclass(frozen=True)
class Proposal:
    """A proposed operating point, before a bundle is written."""

    point: OperatingPoint
    scores: SearchScores
    tally: Tally | None  # of the feedback, None without feedback


def recalibrate(
    bundle: Bundle,
    path: str | Path,
    *,
    target: Target | None = None,
    gallery_size: int | None = None,
    allow_estimate: bool = False,
    feedback: Sequence[Feedback] = (),
    trusted: Collection[str] = (),
    accept_biased: bool = False,
) -> Bundle:
    """Write a bundle with the same model and a new operating point. Galleries stay valid.

    Parameters
    ----------
    target, gallery_size:
        The target and the number of gallery items it applies to. Both default to the bundle's own.
    feedback:
        Verdicts on live answers. They tighten the threshold if it accepts too many unknown items, and the new bundle
        keeps this limit. With `accept_biased` they may also loosen the threshold; its status is then `estimated`.
    trusted:
        Names of keys whose verdicts count without a limit (`verdicts`). The empty name stands for a server without
        keys.

    Raises
    ------
    CalibrationError
        If no threshold meets the target, or if the bundle's threshold is one for pairs (`pair_protocol`), which has
        no target for searches.
    """
    proposal = propose(
        bundle,
        target=target,
        gallery_size=gallery_size,
        allow_estimate=allow_estimate,
        feedback=feedback,
        trusted=trusted,
        accept_biased=accept_biased,
    )
    evidence = dict(bundle.manifest["evidence"])
    evidence["recalibrated_from"] = bundle.bundle_id
    if proposal.tally is not None:
        evidence["feedback"] = {"keys": dict(proposal.tally.keys), "trusted": sorted(proposal.tally.trusted)}
    return write_bundle(
        path,
        model=bundle.path / "model.onnx",
        preprocessing=bundle.preprocessing,
        dim=bundle.dim,
        operating_point=proposal.point,
        distance_form=bundle.distance_form,
        precision=bundle.precision,
        provider=bundle.provider,
        evidence=evidence,
        files={
            **{name: bundle.read(name) for name in bundle.further_files if name != REPORT},
            **_report(_data(proposal.point, proposal.scores, evidence)),
        },
    )


def propose(
    bundle: Bundle,
    *,
    target: Target | None = None,
    gallery_size: int | None = None,
    allow_estimate: bool = False,
    feedback: Sequence[Feedback] = (),
    trusted: Collection[str] = (),
    accept_biased: bool = False,
) -> Proposal:
    """Return the operating point that `recalibrate` would write, without writing it."""
    _refuse_pairs(bundle)
    now = bundle.operating_point
    searches = bundle.require_calibration()
    scores = without_uncertain(searches.scores, searches.certainties, now.min_certainty)
    target_fpir = now.target_fpir if target is None else target.as_fpir(scores)
    cap, biased, tally = float(now.evidence.get(CAP, math.inf)), None, None
    if feedback:
        tally = weigh(bundle, feedback, trusted=trusted)
        least, most = feedback_caps(tally, target_fpir)
        if accept_biased:  # the smallest move that the verdicts support, in either direction
            cap, biased = math.inf, min(max(now.threshold, least), most)
        else:
            cap = min(cap, most)
    point = calibrate(
        scores,
        target_fpir=target_fpir,
        allow_estimate=allow_estimate,
        groups=searches.groups,
        vectors=searches.vectors,
        gallery_size=int(now.evidence["gallery_size"]) if gallery_size is None else gallery_size,
        cap=cap,
        biased=biased,
    )
    point = replace(point, min_certainty=now.min_certainty)
    if math.isfinite(cap):
        point = replace(point, evidence={**point.evidence, CAP: cap})
    return Proposal(point, scores, tally)


def _refuse_pairs(bundle: Bundle) -> None:
    """Raise CalibrationError if the bundle's threshold is one for pairs, which has no target for searches."""
    if bundle.operating_point.of_pairs:
        raise CalibrationError(
            f"{bundle.path} has a threshold for pairs (1:1), which has no error rate for searches",
            remedy=f"Export its run again: `{command('export', 'RUN', '-o', 'NEW', '--allow-estimate')}`",
        )


def _data(point: OperatingPoint, scores: SearchScores, evidence: dict[str, Any]) -> ReportData:
    tried, beside = evidence.get("distances_tried", ()), evidence.get("beside_fp32", ())
    return ReportData(point, scores, tried, beside_fp32=beside)


def _report(data: ReportData) -> dict[str, bytes]:
    try:
        return {REPORT: render_report(data).encode()}
    except MissingDependency:  # serving machines lack matplotlib: write no report
        return {}
