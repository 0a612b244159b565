"""Anchoring: set the threshold in the gallery that is searched, from its draws.

A draw is a search of this gallery for an item that is not in it (`index.search.leave_one_out`). Own draws exclude items
that the model was fitted on. All draws are one sample: own ones, moved by the query shift where labelled photos show
one, calibration photos of the bundle, and labelled photos. The share of draws within a threshold, with items weighted
equally, estimates its FPIR in this gallery. The estimate assumes that unknown items resemble the drawn items, so that
their distances are exchangeable. A threshold that accepts a share of a small number of draws accepts a larger share of
new items on average. An estimated threshold therefore accepts items that are left out of the gallery in at most the
target share of searches (`DrawnDistances.limit`).

The target is *certified* if the upper 95 % Clopper-Pearson bound over the effective number of independent items keeps
it (`DrawnDistances.design_effect`), and *estimated* if only the observed rate does. With few items, a certified
threshold finds little, so targets are certified from 300 items on, or on request.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from index.database import POINT
from index.gallery import Gallery
from index.location import AnyGallery
from index.maintenance import require_folds
from index.search.leave_one_out import (
    DRAWS,
    OWN,
    Draws,
    FoldVectors,
    KeptDraws,
    Probes,
    Windows,
    make_draws,
    suspected_twins,
)
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.operating_point import CERTIFIED, ESTIMATED, OperatingPoint
from retrieval.catalogue.photos import Photo
from retrieval.errors import CalibrationError, InvalidParameter, counted
from retrieval.indexing.worker import CONTENT
from retrieval.inspect.duplicates import is_copy
from retrieval.metrics.consistency import search_opis
from retrieval.metrics.identification import SearchScores, identification_rates

from .bounds import items_needed
from .error_rates import (
    CERTIFIED_FROM,
    LABELLED,
    LEAST_ITEMS,
    PROBE,
    REFERENCE,
    UNKNOWN,
    DrawnDistances,
    Floats,
    GalleryRates,
    Shift,
)
from .fold_draws import fold_draws
from .gallery_points import carried_point, pack_points, served_point, stored_point
from .labelled_queries import QUERIES, by_source, embed_queries, gallery_shift, pack_queries, read_queries

SOURCES = (OWN, PROBE, LABELLED, UNKNOWN)  # of the draws that set a threshold
CROSS_FITTED = "The five models that were each fitted without a fifth of the items stand for the model that serves."
UNKNOWN_SHARES = (0.1, 0.5, 0.9)  # shares of queries for unknown items, to report precision at


def anchor(
    draws: Mapping[str, Draws],
    target_fpir: float,
    *,
    gallery_items: int,
    shift: Shift | None = None,
    cap: float = math.inf,
    certify: bool = False,
    fitted: Collection[str] = (),
    least_items: int = LEAST_ITEMS,
) -> OperatingPoint:
    """Return the operating point of a gallery.

    All sources of draws are one sample, with items weighted equally. The greatest threshold that keeps the target
    serves. Mated searches would set too small a one, since the photos of one session are near to each other.

    Parameters
    ----------
    draws:
        Draws of the gallery's current version, by source.
    shift, cap:
        Query shift of the own draws, if any, and upper limit of the threshold.
    certify:
        Certify the target even with fewer than 300 items, or raise.
    fitted:
        Items that the model was fitted on. Labelled queries for them tell the TPIR and set no threshold.
    least_items:
        Minimum number of items that set a threshold.

    Raises
    ------
    CalibrationError
        If there are fewer items, they do not support the target, `certify` asks for more than they can, or nothing
        would be found.
    """
    if not 0 < target_fpir < 1:
        raise InvalidParameter("target_fpir", "lie between 0 and 1", target_fpir)
    shift = shift or Shift()
    drawn = DrawnDistances.of(draws, shift=shift, without=fitted)
    if drawn.items < least_items:
        raise CalibrationError(
            f"{counted(drawn.items, 'item')} can set a threshold, too few (minimum {least_items}): items that the "
            "model was fitted on cannot, nor can items of the group of all others, or photos that another item has",
            remedy="Add items to the gallery",
        )
    mated = _Mated.of(draws, gallery_items=gallery_items, least_items=least_items)
    twins = suspected_twins(draws.get(OWN, Draws.none()))
    threshold, status = _choose(drawn, target_fpir, mated, cap, certify=certify, twins=twins)
    evidence = {
        "anchored": True,
        "gallery_items": gallery_items,
        "shift": shift.to_dict(),
        **_drawn_evidence(draws, drawn, threshold, shift),
        "perhaps": _perhaps(drawn, mated, threshold),
        "tpir": None,
        "tpir_of": None,
    }
    if mated is not None:
        evidence |= mated.evidence(threshold, drawn, target_fpir)
    return OperatingPoint(threshold, status, target_fpir, evidence)


def _drawn_evidence(
    draws: Mapping[str, Draws], drawn: DrawnDistances, threshold: float, shift: Shift
) -> dict[str, Any]:
    """Return what draws show of a threshold, and of the gallery."""
    own = draws.get(OWN, Draws.none())
    return {
        "items_drawn": drawn.items,
        "cross_fitted": drawn.cross_fitted,
        "sources": {name: len(set(draws[name].items)) for name in SOURCES if name in draws and len(draws[name])},
        "fpir": drawn.fpir(threshold),
        "fpir_expected": drawn.expected(threshold),
        "fpir_upper": drawn.fpir_upper(threshold),
        "duplicates": int((own.duplicates >= 0).sum()),
        "twins": [list(pair) for pair in suspected_twins(own)],
        "assumptions": assumptions(
            draws, shift_items=shift.items if OWN in draws else 0, cross_fitted=drawn.cross_fitted > 0
        ),
    }


def _uncertified(drawn: DrawnDistances, target_fpir: float) -> CalibrationError:
    if drawn.cross_fitted:
        return CalibrationError(
            f"{drawn.cross_fitted} items are drawn by models that were fitted without them, which estimates a "
            "threshold and certifies none",
            remedy="Leave --certify out, or use a model that was not fitted on these items",
        )
    effective = drawn.items / drawn.design_effect(-math.inf)
    return CalibrationError(
        f"{drawn.items} items cannot certify an FPIR of {target_fpir:g}: "
        f"they count as {effective:.0f} independent ones, and {items_needed(target_fpir)} are needed",
        remedy="Add items, label more photos, accept more false matches with a larger --target-fpir, or leave "
        "--certify out",
    )


def _choose(
    drawn: DrawnDistances,
    target: float,
    mated: _Mated | None,
    cap: float,
    *,
    certify: bool,
    twins: Sequence[tuple[str, str]],
) -> tuple[float, str]:
    """Return the threshold and its status; where there is none, say which items look like one item under two ids.

    Where fold models find nothing, the model that serves may: it was fitted on the items that it finds.
    """
    remedy = "Use a better model"
    if twins:
        pairs = counted(len(twins), "pair of items looks", "pairs of items look")
        remedy = (
            f"{pairs} like one item under two ids, such as {' and '.join(twins[0])}: merge them, or give both one group"
        )
    for status in (CERTIFIED, ESTIMATED):
        if status == CERTIFIED and not certify and drawn.items < CERTIFIED_FROM:
            continue
        limit = drawn.limit(target, certified=status == CERTIFIED)
        if limit is None and certify:
            raise _uncertified(drawn, target)
        if limit is None and status == CERTIFIED:
            continue
        if limit is None:
            least = drawn.smallest_target
            raise CalibrationError(
                f"the draws of {drawn.items} items support no FPIR below {least:.4g}, so not {target:g}",
                remedy=f"Add items, or accept more false matches with --target-fpir {math.ceil(1000 * least) / 1000:g}",
            )
        limit = min(limit, cap)
        if limit < 0:
            raise CalibrationError(
                f"more than {target:g} of the draws are at distance 0 from another item",
                remedy=remedy,
            )
        if mated is None or drawn.cross_fitted or (mated.right <= limit).any():
            return limit, status
    raise CalibrationError(
        f"no threshold with FPIR <= {target:g} in this gallery finds a single item (TPIR 0)",
        remedy=f"{remedy}, or accept more false matches with a larger --target-fpir",
    )


@dataclass(frozen=True)
class _Mated:
    """Draws whose item has another photo in the gallery. They tell how many photos find their item."""

    photos: str  # what the queries are
    draws: Draws
    scores: SearchScores
    right: Floats  # distances (n,) of own and labelled draws that find the right item: few labelled ones may find none

    @classmethod
    def of(cls, sources: Mapping[str, Draws], *, gallery_items: int, least_items: int) -> _Mated | None:
        """Return labelled queries if they are of enough items, else own draws; None if no item has another photo."""
        labelled = LABELLED in sources and len(set(sources[LABELLED].items)) >= least_items
        draws = sources.get(LABELLED if labelled else OWN, Draws.none())
        draws = draws.where(np.isfinite(draws.own))
        if not len(draws):
            return None
        scores = SearchScores(draws.items, draws.own, draws.distances, gallery_items, draws.wrong)
        both = [sources[name] for name in (OWN, LABELLED) if name in sources]
        right = np.concatenate([each.own[np.isinf(each.wrong)] for each in both])
        return cls("labelled queries" if labelled else "catalogue photos", draws, scores, right)

    def evidence(self, threshold: float, drawn: DrawnDistances, target_fpir: float) -> dict[str, Any]:
        """Return the rates at a threshold, unknown where only fold models searched and found nothing, and OPIS."""
        unknown = drawn.cross_fitted > 0 and not (self.right <= threshold).any()
        fpir = drawn.expected(threshold)
        rates = identification_rates(self.scores, threshold)
        plain = replace(self.scores, own=self.draws.own_plain, impostor=self.draws.plain, wrong=None)
        return {
            "tpir": None if unknown else rates.tpir,
            "tpir_of": None if unknown else self.photos,
            "closest_is_right": self.scores.recall,
            "misidentification": rates.misidentification,
            "precision": {
                f"{share:g}": precision(rates.tpir, rates.misidentification, fpir, unknown=share)
                for share in ([] if unknown else UNKNOWN_SHARES)
            },
            "queries": rates.queries,
            "items": len(np.unique(self.draws.items)),
            "opis": {
                "item_distance": search_opis(self.scores, target_fpir).value,
                "nearest_photo": search_opis(plain, target_fpir).value,
            },
        }


def _perhaps(drawn: DrawnDistances, mated: _Mated | None, threshold: float) -> dict[str, Any]:
    """Return the distance up to which an answer is "perhaps", and how often the first item is right there.

    It is the distance up to which the p-value is at most REVIEW_P. It is greater if the first item is right in most of
    the searches between the threshold and it, with as many for unknown items as for items of the catalogue.
    """
    if mated is None:
        return drawn.perhaps(threshold)
    scores = mated.scores
    first, right = np.minimum(scores.correct, scores.misled), np.isfinite(scores.correct)
    order = np.argsort(first, kind="stable")
    beyond = order[(first[order] > threshold) & np.isfinite(first[order])]
    gained = np.cumsum(np.where(right[beyond], 1, -1)) / len(first)
    unknown = np.array([drawn.fpir(distance) for distance in first[beyond]]) - drawn.fpir(threshold)
    mostly = np.flatnonzero(gained >= unknown)
    within = drawn.perhaps(float(first[beyond[mostly[-1]]]) if len(mostly) else threshold)["within"]
    asked = right[beyond][first[beyond] <= within]
    return {"within": within, "right": float(asked.mean()) if len(asked) else None, "searches": len(asked)}


def precision(tpir: float, misidentification: float, fpir: float, *, unknown: float) -> float | None:
    """Return the share of answers with a match whose first item is right, for a share of queries for unknown items."""
    right, wrong = (1 - unknown) * tpir, (1 - unknown) * misidentification + unknown * fpir
    return right / (right + wrong) if right + wrong else None


def assumptions(sources: Collection[str], *, shift_items: int = 0, cross_fitted: bool = False) -> list[str]:
    """Return what a threshold assumes, in plain sentences.

    `sources` are those of the draws that set it, PROBE alone for the threshold of a bundle. The query shift was
    measured on `shift_items` items, 0 if it was not measured. `cross_fitted` draws are by fold models.
    """
    if OWN not in sources:
        told = "the labelled queries" if {LABELLED, UNKNOWN} & set(sources) else "the calibration photos of the bundle"
        photos = f"Users take photos like {told}."
    elif shift_items:
        photos = f"Users' photos differ from catalogue photos as measured on {counted(shift_items, 'item')}."
    else:
        photos = "Users' photos look like catalogue photos; this was not measured"
        few = f", because the labelled photos show fewer than {LEAST_ITEMS} items that the model was not fitted on"
        photos += f"{few if LABELLED in sources else ''}."
    drawn = "the items of this catalogue" if {OWN, LABELLED} & set(sources) else "the calibration items of the bundle"
    return [
        f"Unknown items are like {drawn}: of the same families, in similar shares. Other items are not covered.",
        photos,
        "No item is in the catalogue under two ids, unless both are of one group or have a copy of the same photo.",
        "The bundle's list of items that the model was fitted on is complete.",
        *([CROSS_FITTED] if cross_fitted else []),
    ]


@dataclass(frozen=True)
class Proposal:
    """The draws of a gallery and the operating point that follows from them, before it is written."""

    bundle: Bundle
    draws: KeptDraws
    served: OperatingPoint  # the one that serves now: the gallery's or else the bundle's
    before: OperatingPoint | None  # the one that the gallery has for the bundle
    point: OperatingPoint | None  # None if there are too few draws
    why_not: str = ""  # why there is no point
    is_new: bool = True  # whether the draws were made now
    stored: bytes | None = None  # the points that the gallery kept when it was measured
    action: str = "calibrate"  # for the gallery's list of changes
    labelled: Probes | None = None  # labelled queries to keep
    refused: Sequence[tuple[str, str]] = ()  # photo_id and reason, of labelled photos

    @property
    def after(self) -> OperatingPoint:
        """The new operating point; raise CalibrationError if there is none."""
        if self.point is None:
            raise CalibrationError(self.why_not)
        return self.point

    @property
    def rates(self) -> GalleryRates | None:
        """The rates of the point, None if there is no point or there are too few draws."""
        return None if self.point is None else GalleryRates.of(self.draws, self.point)

    @property
    def is_news(self) -> bool:
        """Return whether there is anything to keep."""
        return self.point is not None and (self.is_new or self.point != self.before)

    def summary(self) -> str:
        """Return a sentence on a threshold that was set or tightened, "" if none was."""
        if self.point is None or self.point == self.before:
            return ""
        if self.before is None:
            return f"The gallery got its first threshold, {self.point.threshold:.4f}."
        rates, old, new = GalleryRates.of(self.draws, self.before), self.before.threshold, self.point.threshold
        found = "" if rates is None else f" of {rates.expected(old):.1%}"
        if new == old:
            return f"The threshold {old:.4f} is no longer certified: it is {self.point.status} for the items left."
        return (
            f"The threshold was tightened from {old:.4f} to {new:.4f}, because its "
            f"FPIR{found} no longer kept the target of {self.before.target_fpir:.1%}."
        )

    def write(self, gallery: AnyGallery, *, actor: str | None = None) -> None:
        """Keep the draws, the point and any new labelled queries as one change, in the log by `actor`.

        If another point was set in the meantime, the draws are kept and the point is left alone.
        """
        if not self.is_news:
            return
        gallery.lock()
        contents: dict[str, bytes | None] = {DRAWS: self.draws.pack()}
        action = "measure the threshold"
        if self.point != self.before and gallery.kept(POINT) == self.stored:
            contents[POINT], action = pack_points(self.stored, self.bundle, self.point), self.action
        if self.labelled is not None:
            contents[QUERIES] = pack_queries(self.labelled, self.bundle.features_key)
        gallery.keep(contents, action, actor=actor)


def propose(
    bundle: Bundle,
    gallery: AnyGallery,
    *,
    target_fpir: float | None = None,
    photos: Sequence[Photo] | None = None,
    certify: bool = False,
) -> Proposal:
    """Return the operating point that follows from the gallery as it is now, without writing it.

    Parameters
    ----------
    target_fpir:
        Target FPIR. Defaults to that of the operating point that serves now.
    photos:
        Users' photos with item ids of the gallery, or "" if they show no item of it. They replace the labelled queries
        that the gallery keeps.
    certify:
        Certify the target even with few items, or raise (`anchor`).

    Raises
    ------
    DataError
        If no labelled photo can be used.
    """
    stored = gallery.kept(POINT)
    before = stored_point(stored, bundle)
    labelled, refused = (None, []) if photos is None else embed_queries(bundle, gallery, photos)
    draws = gallery_draws(bundle, gallery, labelled=labelled)
    target = (before or bundle.operating_point).target_fpir if target_fpir is None else target_fpir
    point, why_not = _point(gallery, draws, target, certify=certify)
    served = served_point(stored, bundle, gallery)
    return Proposal(bundle, draws, served, before, point, why_not, stored=stored, labelled=labelled, refused=refused)


def measure(bundle: Bundle, gallery: AnyGallery, *, cap: float = math.inf, tighten: bool = True) -> Proposal:
    """Measure the promise of a bundle's operating point in a gallery, and propose a stricter one if it is broken.

    Without `tighten`, a point stays as it is, and its rates tell what it does.

    Draws of the newest version that the gallery keeps are reused. A gallery without a point gets one, if it has enough
    items, of at most the threshold `cap`: that of another bundle with the same draws and target if it keeps its
    promise, else a new one. Nothing is written: see `Proposal.write`.
    """
    stored, known = gallery.kept(POINT), KeptDraws.read(gallery)
    is_new = known is None or known.model != bundle.draws_id or known.changed(gallery) > 0
    draws = gallery_draws(bundle, gallery) if known is None or is_new else known
    before, why_not, action = stored_point(stored, bundle), "", "tighten the threshold"
    point = before
    if before is None:
        action, carried = "calibrate", carried_point(stored, bundle)
        rates = None if carried is None else GalleryRates.of(draws, carried)
        if carried is not None and rates is not None and rates.keeps_target(carried) and carried.threshold <= cap:
            point = carried
        else:
            point, why_not = _point(gallery, draws, bundle.operating_point.target_fpir, cap=cap)
    elif tighten:
        point = _stricter(gallery, draws, before) or before
    served = served_point(stored, bundle, gallery)
    return Proposal(bundle, draws, served, before, point, why_not, action=action, stored=stored, is_new=is_new)


def remeasure(bundle: Bundle, gallery: AnyGallery, *, tighten: bool = True) -> Proposal:
    """Measure as `measure` does, and keep the result in the gallery as one change."""
    found = measure(bundle, gallery, tighten=tighten)
    found.write(gallery)
    return found


def changed_share(bundle: Bundle, gallery: AnyGallery) -> float:
    """Return the share of a gallery's photos that changed since its draws were made.

    It is 1 without draws, and 0 if the draws belong to another bundle, which measures the gallery itself.
    """
    known = KeptDraws.read(gallery)
    if known is None:
        return 1.0
    return min(1.0, known.changed(gallery) / max(1, known.photos)) if known.model == bundle.draws_id else 0.0


def _point(
    gallery: AnyGallery,
    draws: KeptDraws,
    target_fpir: float,
    *,
    shift: Shift | None = None,
    cap: float = math.inf,
    certify: bool = False,
) -> tuple[OperatingPoint | None, str]:
    """Return the operating point that follows from draws, or why there is none; measure a shift that is not given."""
    try:
        point = anchor(
            draws.sources,
            target_fpir,
            gallery_items=gallery.items,
            shift=shift or gallery_shift(draws.sources),
            cap=cap,
            certify=certify,
            fitted=draws.fitted,
        )
    except CalibrationError as error:
        return None, str(error)
    evidence = {**point.evidence, "gallery_version": draws.version}
    return replace(point, evidence=evidence), ""


def _stricter(gallery: AnyGallery, draws: KeptDraws, before: OperatingPoint) -> OperatingPoint | None:
    """Return a stricter operating point for one that misses its target, None if it is not needed or there is none.

    A certified point is replaced by an estimated one, of the same threshold if it keeps the target by the observed
    rate, if the items left cannot certify the target. If the draws support
    no FPIR as low as the target, it is replaced by one with the smallest FPIR that they support.
    """
    rates = GalleryRates.of(draws, before)
    if rates is None or rates.keeps_target(before):
        return None
    again = partial(_point, gallery, draws, shift=Shift.of(before), cap=before.threshold)
    new = again(before.target_fpir, certify=True)[0] if before.status == CERTIFIED else None
    new = new or again(max(before.target_fpir, rates.drawn.smallest_target))[0]
    new = None if new is None else replace(new, target_fpir=before.target_fpir)
    return None if new is None or (new.threshold, new.status) == (before.threshold, before.status) else new


def gallery_draws(bundle: Bundle, gallery: AnyGallery, *, labelled: Probes | None = None) -> KeptDraws:
    """Return the draws of the newest version, with the given labelled queries or those that the gallery keeps."""
    queries = read_queries(gallery, bundle.features_key) if labelled is None else labelled
    probes = {**_calibration_photos(bundle), **({} if queries is None else by_source(queries))}
    fitted = bundle.fitted
    is_fitted = (lambda *_: True) if fitted is None else fitted.contains  # without a list, any item may be fitted
    some = fitted is None or len(fitted) > 0
    draws = make_draws(
        gallery,
        model=bundle.draws_id,
        item_distance=bundle.item_distance,
        verifier=bundle.verifier,
        probes=probes,
        is_fitted=is_fitted if some else None,  # without it, not every photo is looked at
        content_key=CONTENT,
        is_copy=partial(is_copy, gallery.thumbnail),
        windows=Windows.read(gallery),
    )
    by_folds = _fold_draws(bundle, gallery, draws.fitted)
    sources = {kind: Draws.joined([draws.sources[kind], some]) for kind, some in by_folds.items()}
    draws = replace(draws, sources={**draws.sources, **sources})
    asked = dict.fromkeys(probes[LABELLED].items) if LABELLED in probes else ()
    return replace(draws, fitted=draws.fitted | {item for item in asked if is_fitted(item, None)})


def _fold_draws(bundle: Bundle, gallery: AnyGallery, fitted: Collection[str]) -> Mapping[str, Draws]:
    """Return the draws of fitted items by fold models, {} without these or their vectors.

    Raises GalleryCorrupt if the vectors are damaged or were lost.
    """
    known = bundle.fitted
    if known is None or not bundle.folds_key or not isinstance(gallery, Gallery):
        return {}
    require_folds(gallery.path)
    folds = FoldVectors.read(gallery, bundle.folds_key)
    if folds is None:
        return {}
    return fold_draws(
        gallery,
        folds,
        {item: fold for item in fitted if (fold := known.fold_of(item)) is not None},
        item_distance=bundle.item_distance,
        content_key=CONTENT,
        is_copy=partial(is_copy, gallery.thumbnail),
    )


def _calibration_photos(bundle: Bundle) -> dict[str, Probes]:
    """Return the calibration photos of a bundle: queries and reference, with the local features if it verifies."""
    calibration, stored = bundle.calibration, bundle.calibration_features
    if calibration is None:
        return {}
    items = [str(label) for label in calibration.scores.labels]
    queries = Probes(calibration.vectors, calibration.photo_ids.tolist(), items)
    found = {PROBE: queries, REFERENCE: calibration.gallery}
    if bundle.verifier is None:
        return found
    return {name: replace(each, features=[stored[photo] for photo in each.ids]) for name, each in found.items()}
