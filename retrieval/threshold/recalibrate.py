"""Another threshold for the same model: the searches that a bundle was calibrated on, kept in the bundle.

calibration.npz holds, for n searches of photos of products that nothing else was decided on: `own`, `impostor` (n,)
and `near` (n, k) distances, `certainty`, `item_id`, `group` and `photo_id` (n,), `vector` (n, d) and
`appearance` (n, 3) of the photos that asked, and `gallery_items`.
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

CAP = "feedback_cap"  # in the evidence: no threshold beyond it


@dataclass(frozen=True)
class Searches:
    """The searches of a calibration."""

    scores: SearchScores
    groups: NDArray[np.str_] | None  # (n,) product family, where the catalogue names them
    photo_ids: NDArray[np.str_]  # (n,)
    certainties: NDArray[np.float32]  # (n,)
    vectors: NDArray[np.float32] | None = None  # (n, d) of the photos that asked
    appearances: NDArray[np.float32] | None = None  # (n, 3) brightness, contrast, sharpness of theirs


def pack_searches(searches: Searches) -> bytes:
    """Return searches as npz."""
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
    """Return the searches that a bundle was calibrated on; BundleError where it keeps none."""
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
    """Return what an approximate index is asked to see what it loses: the bundle's threshold, distance and queries."""
    known = CALIBRATION in bundle.manifest["files"]
    return Probe(bundle.threshold, bundle.measure, searches_of(bundle).vectors if known else None)


@dataclass(frozen=True)
class Proposal:
    """Another operating point, before anything is written."""

    point: OperatingPoint
    scores: SearchScores
    tally: Tally | None  # of the feedback, None where there is none


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
    """Write a bundle with the same model and another operating point; its galleries stay valid.

    Parameters
    ----------
    target, gallery_size:
        What is promised, and for how many items; by default what the bundle promises now.
    feedback:
        Verdicts on live answers. They tighten the threshold where it lets through too many unknown items, and stay
        with the bundle from then on; with `accept_biased` they may also loosen it, and it is `estimated` then.
    trusted:
        Names of keys whose verdicts count without a bound (`verdicts`); the empty name is that of a server without
        keys.

    Raises
    ------
    CalibrationError
        Where no threshold keeps the promise, and for a bundle of pairs (`pair_protocol`), which promises searches
        nothing.
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
    """Return the operating point that `recalibrate` would write."""
    _refuse_pairs(bundle)
    now = bundle.operating_point
    searches = searches_of(bundle)
    scores = without_uncertain(searches.scores, searches.certainties, now.min_certainty)
    target_fpir = now.target_fpir if target is None else target.as_fpir(scores)
    cap, biased, tally = float(now.evidence.get(CAP, math.inf)), None, None
    if feedback:
        tally = weigh(bundle, feedback, trusted=trusted)
        least, most = feedback_caps(tally, target_fpir)
        if accept_biased:  # it moves as little as the verdicts ask for, in either direction
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
    """Raise CalibrationError for a bundle whose threshold is one of pairs: it keeps no promise for searches."""
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
    except MissingDependency:  # a machine that only serves: the bundle goes without pictures
        return {}


@dataclass(frozen=True)
class Outlook:
    """What a bundle's threshold does in a gallery of so many items."""

    items: int
    promised_items: int  # the promise holds up to here
    target_fpir: float
    fpir: float  # expected now
    known: bool  # False beyond ten times what was calibrated: a guess then

    @property
    def outgrown(self) -> bool:
        """Whether the gallery is larger than the promise was made for."""
        return self.items > self.promised_items

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**vars(self), "outgrown": self.outgrown}

    def warning(self, bundle: Path | None = None) -> str:
        """Say that it is outgrown, and what to do; empty where it is not. The command names the bundle where given."""
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
    """Return what to expect in a gallery of so many items, None where the bundle cannot tell."""
    point = bundle.operating_point
    if CALIBRATION not in bundle.manifest["files"] or items < 1 or point.evidence.get("protocol") == PAIRS:
        return None
    searches = searches_of(bundle)
    scores = without_uncertain(searches.scores, searches.certainties, point.min_certainty)
    promised = int(point.evidence.get("gallery_size", scores.gallery_items))
    fpir = size_model(scores).fpir(point.threshold, items)
    return Outlook(items, promised, point.target_fpir, fpir, known=items <= EXTRAPOLATION * scores.gallery_items)
