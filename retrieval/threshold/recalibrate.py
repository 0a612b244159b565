"""Recalibration: a new threshold for the same model, from the calibration searches stored in the bundle.

calibration.npz holds n searches with photos of items that were used for nothing else: the distances `own` and
`impostor` (n,) and `near` (n, k); `certainty`, `item_id`, `group` and `photo_id` (n,); `vector` (n, d) and
`appearance` (n, 3) of the query photos; and `gallery_items`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.ann.recall import Probe
from index.shell import command
from retrieval.bundle.bundle import CALIBRATION, REPORT, Bundle, write_bundle
from retrieval.errors import BundleError, CalibrationError, MissingDependency
from retrieval.metrics.identification import SearchScores

from .calibrate import OperatingPoint, calibrate, size_model
from .certainty import without_uncertain
from .feedback import Feedback
from .gallery_size import EXTRAPOLATION
from .pair_protocol import PAIRS
from .report import ReportData, render_report
from .targets import Target
from .verdicts import Tally, feedback_caps, weigh

CAP = "feedback_cap"  # key in the evidence: upper limit of later thresholds


@dataclass(frozen=True)
class Searches:
    """The searches that a bundle was calibrated on."""

    scores: SearchScores
    groups: NDArray[np.str_] | None  # (n,) groups of related items, if the catalogue has them
    photo_ids: NDArray[np.str_]  # (n,)
    certainties: NDArray[np.float32]  # (n,)
    vectors: NDArray[np.float32] | None = None  # (n, d) of the query photos
    appearances: NDArray[np.float32] | None = None  # (n, 3) brightness, contrast, sharpness


def pack_searches(searches: Searches) -> bytes:
    """Serialize searches as npz."""
    scores = searches.scores
    if scores.near is None:
        raise BundleError("the searches kept no nearest items")
    file = io.BytesIO()
    np.savez_compressed(
        file,
        own=scores.own,
        impostor=scores.impostor,
        near=scores.near,
        item_id=scores.labels.astype(str),
        group=np.array([], dtype=str) if searches.groups is None else searches.groups.astype(str),
        photo_id=searches.photo_ids.astype(str),
        certainty=searches.certainties,
        vector=np.zeros((0, 0), np.float32) if searches.vectors is None else searches.vectors,
        appearance=np.zeros((0, 3), np.float32) if searches.appearances is None else searches.appearances,
        gallery_items=np.array(scores.gallery_items),
    )
    return file.getvalue()


def searches_of(bundle: Bundle) -> Searches:
    """Return the searches that a bundle was calibrated on; raise BundleError if it stores none."""
    if CALIBRATION not in bundle.manifest["files"]:
        raise BundleError(f"{bundle.path} keeps no calibration searches", remedy="Export it again from its run")
    with np.load(io.BytesIO(bundle.read(CALIBRATION)), allow_pickle=False) as file:
        groups = file["group"] if len(file["group"]) else None
        scores = SearchScores(
            file["item_id"], file["own"], file["impostor"], int(file["gallery_items"]), near=file["near"]
        )
        vectors = file["vector"] if "vector" in file and len(file["vector"]) else None
        looks = file["appearance"] if "appearance" in file and len(file["appearance"]) else None
        return Searches(scores, groups, file["photo_id"], file["certainty"], vectors, looks)


def probe_of(bundle: Bundle) -> Probe:
    """Return the threshold, distance and queries that measure the recall of an approximate index."""
    known = CALIBRATION in bundle.manifest["files"]
    return Probe(bundle.threshold, bundle.measure, searches_of(bundle).vectors if known else None)


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
        measure=bundle.measure,
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
    searches = searches_of(bundle)
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
    if bundle.operating_point.evidence.get("protocol") == PAIRS:
        raise CalibrationError(
            f"{bundle.path} has a threshold of pairs (1:1), which promises nothing of searches",
            remedy=f"Export its run again: `{command('export', 'RUN', '-o', 'NEW')}`",
        )


def _data(point: OperatingPoint, scores: SearchScores, evidence: dict[str, Any]) -> ReportData:
    tried, beside = evidence.get("distances_tried", ()), evidence.get("beside_fp32", ())
    return ReportData(point, scores, tried, beside_fp32=beside)


def _report(data: ReportData) -> dict[str, bytes]:
    try:
        return {REPORT: render_report(data).encode()}
    except MissingDependency:  # serving machines lack matplotlib: write no report
        return {}


@dataclass(frozen=True)
class Outlook:
    """The expected FPIR of a bundle's threshold at a given gallery size."""

    items: int
    promised_items: int  # gallery size that the target applies to
    target_fpir: float
    fpir: float  # expected at this size
    known: bool  # False beyond ten times the calibrated size

    @property
    def outgrown(self) -> bool:
        """Whether the gallery is larger than the size that the target applies to."""
        return self.items > self.promised_items

    def to_dict(self) -> dict[str, Any]:
        """Return the outlook as plain JSON values."""
        return {**vars(self), "outgrown": self.outgrown}

    def warning(self, bundle: Path | None = None) -> str:
        """Return a warning with the command to run if the gallery is outgrown, else an empty string."""
        if not self.outgrown:
            return ""
        old, new = ("BUNDLE", "NEW") if bundle is None else (bundle, f"{bundle}-{2 * self.items}")
        larger = command("recalibrate", old, "-o", new, "--gallery-size", 2 * self.items, "--allow-estimate")
        guess = "" if self.known else ", a guess so far out"
        return (
            f"The gallery has {self.items} items and the threshold was set for {self.promised_items}: about "
            f"{self.fpir:.1%} of photos of unknown items now return something{guess}, where {self.target_fpir:.1%} was "
            f"promised. `{larger}` moves the threshold"
        )


def outlook(bundle: Bundle, items: int) -> Outlook | None:
    """Return the expected FPIR in a gallery of `items` items, or None if the bundle cannot tell."""
    point = bundle.operating_point
    if CALIBRATION not in bundle.manifest["files"] or items < 1 or point.evidence.get("protocol") == PAIRS:
        return None
    searches = searches_of(bundle)
    scores = without_uncertain(searches.scores, searches.certainties, point.min_certainty)
    promised = int(point.evidence.get("gallery_size", scores.gallery_items))
    fpir = size_model(scores).fpir(point.threshold, items)
    return Outlook(items, promised, point.target_fpir, fpir, known=items <= EXTRAPOLATION * scores.gallery_items)
