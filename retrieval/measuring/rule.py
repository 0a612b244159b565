"""The rule that sets a threshold: the greatest one that keeps a target FPIR, in a gallery and for a bundle alike.

All sources of draws are one sample: own draws, moved by the query shift where labelled photos show one, labelled
photos, and calibration photos (`setting_draws`). The share of draws within a threshold, with items weighted equally,
estimates its FPIR; items of one group count as one. The estimate assumes that unknown items resemble the drawn items,
so that their distances are exchangeable. A threshold that accepts a share of a small number of draws accepts a larger
share of new items on average, so the rule takes the greatest threshold that accepts items that are left out in at most
the target share of searches (`DrawnDistances.limit`).

Such a threshold is *estimated*: it keeps the target on average. On request the target is *certified*: the upper 95 %
Clopper-Pearson bound over the effective number of independent items keeps it (`DrawnDistances.design_effect`). With a
certificate, far fewer photos find their item.

Where mated queries are independent of the gallery's photos, as calibration photos are, OPIS chooses among the
thresholds below the limit that find as much as the limit does: the one with the smallest variance of the items'
utility. Mated searches with the photos of a gallery itself are ignored: photos from one session are too similar and
would bias the threshold downwards.
"""

from __future__ import annotations

import math

import numpy as np

from retrieval.errors import CalibrationError, InvalidParameter, counted
from retrieval.metrics.bounds import items_needed
from retrieval.metrics.consistency import UtilityCurves, search_curves
from retrieval.metrics.identification import SearchScores

from .draws import OWN, AllDraws
from .fpir import LEAST_ITEMS, DrawnDistances
from .point import BUNDLE, CERTIFIED, ESTIMATED, GALLERY, Origin, Point, Shift
from .rates import Mated, rated
from .twins import suspected_twins

CANDIDATES = 2000  # maximum number of thresholds compared


def set_threshold(
    draws: AllDraws,
    target_fpir: float,
    *,
    items: int,
    shift: Shift | None = None,
    cap: float = math.inf,
    certify: bool = False,
    least_items: int = LEAST_ITEMS,
    origin: Origin = GALLERY,
) -> Point:
    """Return the point with the greatest threshold that keeps the target in a collection.

    Parameters
    ----------
    draws:
        Draws of the current version of the collection.
    items:
        Number of its items.
    shift, cap:
        Query shift of the own draws, if any, and upper limit of the threshold.
    certify:
        Certify the target, or raise.
    least_items:
        Minimum number of items that set a threshold.
    origin:
        Where the point will decide (`Origin`). With "bundle", thresholds below the limit are compared by OPIS.

    Raises
    ------
    CalibrationError
        If there are fewer items, if they do not support the target or cannot certify it, or if no photo would find its
        item.
    """
    if not 0 < target_fpir < 1:
        raise InvalidParameter("target_fpir", "lie between 0 and 1", target_fpir)
    shift = shift or Shift()
    drawn = DrawnDistances.of(draws.sources, shift=shift, without=draws.fitted)
    if drawn.items < least_items:
        raise CalibrationError(
            f"{counted(drawn.items, 'item')} can be used to set a threshold, and {least_items} are needed: items that "
            "the model was fitted on do not count, nor do copies, and items of one group count as one",
            remedy="Add items",
        )
    mated = Mated.of(draws.sources, gallery_items=items, least_items=least_items)
    limit = min(_limit(drawn, target_fpir, certify=certify), cap)
    if limit < 0:
        raise CalibrationError(
            f"more than {target_fpir:g} of the draws are at distance 0 from another item",
            remedy=_remedy(draws),
        )
    threshold = _chosen(limit, drawn, mated, origin)
    if threshold is None:
        raise CalibrationError(
            f"no threshold with FPIR <= {target_fpir:g} finds a single item (TPIR 0)",
            remedy=f"{_remedy(draws)}, or accept more false matches with a larger --target-fpir",
        )
    point = Point(threshold, CERTIFIED if certify else ESTIMATED, target_fpir, origin, shift=shift)
    return rated(point, draws, drawn, mated, items=items)


def _chosen(limit: float, drawn: DrawnDistances, mated: Mated | None, origin: Origin) -> float | None:
    """Return the threshold, at most the limit, or None if no photo finds its item.

    Where fold models find nothing, the model that serves may: it was fitted on the items that it finds.
    """
    if mated is not None and origin == BUNDLE:
        return choose_threshold(mated.scores, limit)
    return limit if mated is None or drawn.cross_fitted or (mated.right <= limit).any() else None


def _limit(drawn: DrawnDistances, target: float, *, certify: bool) -> float:
    """Return the greatest threshold that keeps a target; raise CalibrationError if there is none."""
    limit = drawn.limit(target, certified=certify)
    if limit is not None:
        return limit
    if certify and drawn.cross_fitted:
        raise CalibrationError(
            f"{drawn.cross_fitted} items are drawn by models that were fitted without them, which can "
            "estimate a threshold, but not certify it",
            remedy="Leave --certify out, or use a model that was not fitted on these items",
        )
    if certify:
        raise CalibrationError(
            f"{drawn.items} items cannot certify an FPIR of {target:g}: "
            f"they count as {drawn.independent_items:.0f} independent ones, and {items_needed(target)} are needed",
            remedy="Add items, label more photos, accept more false matches with a larger --target-fpir, or leave "
            "--certify out",
        )
    least = drawn.smallest_target
    raise CalibrationError(
        f"the draws of {drawn.items} items support no FPIR below {least:.4g}, so not {target:g}",
        remedy=f"Add items, or accept more false matches with --target-fpir {math.ceil(1000 * least) / 1000:g}",
    )


def _remedy(draws: AllDraws) -> str:
    """Return what to do where nothing is found, with the items that look like one item under two ids."""
    twins = suspected_twins(draws.get(OWN))
    if not twins:
        return "Use a better model"
    pairs = counted(len(twins), "pair of items looks", "pairs of items look")
    return f"{pairs} like one item under two ids, such as {' and '.join(twins[0])}: merge them, or give both one group"


def choose_threshold(scores: SearchScores, limit: float) -> float | None:
    """Return the threshold chosen by OPIS among those up to `limit`, None if none of them finds anything.

    Utility only grows between two impostor distances, so the candidates lie just below each of them and at the limit.
    """
    below = np.unique(scores.impostor[scores.impostor <= limit])
    candidates = np.append(np.nextafter(below, -np.inf), limit)
    if len(candidates) > CANDIDATES:
        picked = np.linspace(0, len(candidates) - 1, CANDIDATES).round().astype(int)
        candidates = candidates[picked]
    return best_threshold(search_curves(scores, candidates))


def best_threshold(curves: UtilityCurves) -> float | None:
    """Return the threshold with the smallest OPIS of those that find most, of equal ones the largest, or None.

    Among all thresholds, OPIS would choose one that finds less: without matches it is 0.
    """
    found = curves.sensitivity.mean(axis=0)
    if not found.any():
        return None
    equal = np.flatnonzero(found >= found.max() - 1e-12)
    spread = curves.utility[:, equal].var(axis=0)
    return float(curves.distances[equal[spread <= spread.min() + 1e-12][-1]])
