"""The same fresh queries under three thresholds, as tables and sentences."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from retrieval.metrics.consistency import distances_between
from retrieval.text import text_table
from training.data.synthetic.catalogue import PLACE, VARIANT

from .queries import Answers, Rates

BY_HAND, BUNDLE, GALLERY = "chosen by hand (best F1)", "the bundle's", "the gallery's"
HEAD = ("threshold", "distance", "promised FPIR", "realised FPIR", "95 % interval", "TPIR", "precision")
EXPLANATION = (
    "FPIR: share of searches for unknown items that return a match. TPIR: share of searches for catalogue items with",
    "their item first. Precision: share of matches that are right, where half of the searches are for unknown items.",
    "The unknown items are new ones of the catalogue's population. All thresholds answer the same new photos.",
)


def best_f1_threshold(vectors: np.ndarray, items: np.ndarray) -> float:
    """Return the plain distance with the best F1 over all pairs of photos, as people choose a threshold by hand.

    `vectors` (m, d) are of length one, `items` (m,) are the items that the photos show.
    """
    first, second = np.triu_indices(len(items), 1)
    distances = distances_between(vectors, first, second)
    order = np.argsort(distances)
    same = items[first[order]] == items[second[order]]
    f1 = 2 * np.cumsum(same) / (np.arange(1, len(same) + 1) + same.sum())
    return float(distances[order[np.argmax(f1)]])


def compare_thresholds(answers: Answers, *, by_hand: float, bundle: float, gallery: float) -> dict[str, Rates]:
    """Return the rates of the three thresholds, by name."""
    return {
        BY_HAND: answers.rates(answers.plain, by_hand),
        BUNDLE: answers.rates(answers.served, bundle),
        GALLERY: answers.rates(answers.served, gallery),
    }


def threshold_table(rates: Mapping[str, Rates], target_fpir: float) -> list[str]:
    """Return the lines of a table with the rates of each threshold."""
    rows = [
        (
            name,
            f"{found.threshold:.4f}",
            "none" if name == BY_HAND else f"{target_fpir:.1%}",
            f"{found.fpir:.1%}",
            "{:.1%} to {:.1%}".format(*found.interval),
            f"{found.tpir:.1%}",
            f"{found.precision:.1%}",
        )
        for name, found in rates.items()
    ]
    return text_table(HEAD, rows)


def conclude(answers: Answers, rates: Mapping[str, Rates], target_fpir: float) -> list[str]:
    """Return sentences that state what the tables show."""
    variants, places = (answers.matched[answers.kinds == kind].mean() for kind in (VARIANT, PLACE))
    return [
        f"With the threshold chosen by hand on the training photos, {rates[BY_HAND].fpir:.1%} of the searches for "
        "unknown items return a match.",
        f"With the gallery's, {rates[GALLERY].fpir:.1%} do: it promises {target_fpir:.1%} on average, and one "
        "catalogue may have more. The bundle's was set in a smaller gallery.",
        "The promise is for unknown items like those of the catalogue. Of the searches for unknown variants of "
        f"catalogue items, {variants:.1%} return a match, and of those for empty places {places:.1%}.",
    ]
