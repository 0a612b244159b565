"""The item distance against the nearest photo's distance: what both find, and one threshold for all catalogues.

    python -m research.benchmarks.item_distance --output runs/item_distance

Vectors are those of a pretrained model as it is, unless a row says otherwise. Constants, the distance of a copy and
the weight of agreeing local features are compared on the training partitions only. In a random half of a set, half of
the items are known: their gallery photos are searched with their query photos, and the query photos of the other items
are the searches for unknown items. Where one threshold is tested, every query also searches the gallery without its
own item. Thresholds and FPIR weight items equally.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import NamedTuple

import numpy as np

from index.search.item_distance import CANDIDATES, NEAREST_PHOTO, RIVALS, ItemDistance
from retrieval.measuring.rule import choose_threshold
from retrieval.metrics.consistency import GRID, at_equal_tpir, consistency, search_curves, threshold_at_tpir
from retrieval.metrics.identification import SearchScores

from .item_distance_data import ALL, SYMBOLS, TEST, TRAIN, Evidence, PhotoSet, Sets
from .tables import NONE, Recorder, parser_of

TARGET = 0.05
FORMS = {"nearest photo": NEAREST_PHOTO, "item distance": ItemDistance()}
WEIGHTS = ((0, 0.2, 0.35, 0.5, 0.7, 1), (0, 0.2, 0.4, 0.6, 0.9), (0, 0.2, 0.45, 0.7, 1, 1.4))  # nearest, rival, rivals
COPIES, RULE = (0.0, 0.02, 0.1, 0.2, 0.3), 0.005  # distances of a copy; the quantile of the draws that may decide it
SIZES, TYPICAL, REPEATED = (50, 100, 200, 400, 1000), 100, 10  # items of a gallery; repetitions of each size
DETAILS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2)
RANGE = (0.025, 0.975)
CURVE = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3)  # FPIR
SHOWN = ("birds", "cars", "covers", "symbols", "grocery, a to b", "grocery, b to a")
BY_HAND = "nearest photo, by hand"


class Found(NamedTuple):
    """The first item of each query (n,) and its distance (n,)."""

    item: np.ndarray
    distance: np.ndarray


class Rates(NamedTuple):
    """What is found in one half of a set, at exactly the target and with the threshold of the gallery's own draws."""

    recall: float
    exact: float  # TPIR
    served: float  # TPIR
    fpir: float  # realised by the served threshold


class Near(NamedTuple):
    """The items of a gallery near each query (n, m), and their evidence; inf where there is none."""

    item: np.ndarray
    nearest: np.ndarray
    mean: np.ndarray
    inliers: np.ndarray | None

    def first(self, form: ItemDistance) -> Found:
        """Return the first item of each query."""
        there = np.isfinite(self.nearest)
        own = np.where(there, form.own(np.where(there, self.nearest, 0), self.mean, self.inliers), np.inf)
        order = np.argsort(own, axis=1, kind="stable")[:, : RIVALS + 1]
        distances = form.with_rivals(np.take_along_axis(own, order, axis=1), order)[:, 0]
        return Found(np.take_along_axis(self.item, order[:, :1], axis=1)[:, 0], distances)


def near_items(asked: Evidence, shown: np.ndarray, *, leave_out: bool = False, most: int = CANDIDATES) -> Near:
    """Return the items with the nearest photos in a gallery of some items (k,).

    `leave_out` leaves out the query's own item.
    """
    nearest = asked.nearest[:, shown]
    if leave_out:
        nearest = np.where(asked.item[:, None] == shown, np.inf, nearest)
    count = min(most, len(shown))
    near = np.argpartition(nearest, count - 1, axis=1)[:, :count]
    inliers = None if asked.inliers is None else np.take_along_axis(asked.inliers[:, shown], near, axis=1)
    nearest, mean = (np.take_along_axis(each, near, axis=1) for each in (nearest, asked.mean[:, shown]))
    return Near(shown[near], nearest, mean, inliers)


def search(form: ItemDistance, asked: Evidence, shown: np.ndarray, *, leave_out: bool = False) -> Found:
    """Return the first item of each query in a gallery of some items."""
    return near_items(asked, shown, leave_out=leave_out).first(form)


def quantile(distances: np.ndarray, items: np.ndarray, share: float = TARGET) -> float:
    """Return the distance within which a share of searches lies, with their items (n,) weighted equally.

    If more of them are at distance 0 already, the result is negative: no threshold has so small a share.
    """
    order = np.argsort(distances, kind="stable")
    weights = item_weights(items)[order]
    found = float(np.interp(share, np.cumsum(weights) - weights / 2, distances[order]))
    return found if found > 0 else -1.0


def item_weights(items: np.ndarray) -> np.ndarray:
    """Return weights (n,) that sum to 1, the same for each item."""
    _, numbers, counts = np.unique(items, return_inverse=True, return_counts=True)
    return np.asarray(1 / counts[numbers] / len(counts))


def share_within(distances: np.ndarray, items: np.ndarray, threshold: float) -> float:
    """Return the share of searches with a distance of at most a threshold, items weighted equally."""
    return float(item_weights(items) @ (distances <= threshold))


def halves(each: PhotoSet, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the known and the unknown items of random halves."""
    for seed in range(count):
        items = np.random.default_rng(seed).permutation(each.items)
        yield np.sort(items[: each.items // 2]), np.sort(items[each.items // 2 :])


def rates(form: ItemDistance, each: PhotoSet, known: np.ndarray, unknown: np.ndarray) -> Rates:
    """Return the rates of a form in one half."""
    mated, strange = each.searches.of_items(known), each.searches.of_items(unknown)
    drawn = each.draws.of_items(known)
    found, unmated = search(form, mated, known), search(form, strange, known)
    exact = quantile(unmated.distance, strange.item)
    served = quantile(search(form, drawn, known, leave_out=True).distance, drawn.item)
    right = found.item == mated.item
    at_exact, at_served = (float(np.mean(right & (found.distance <= threshold))) for threshold in (exact, served))
    return Rates(float(right.mean()), at_exact, at_served, share_within(unmated.distance, strange.item, served))


def scores_of(form: ItemDistance, asked: Evidence, items: int) -> SearchScores:
    """Return the searches of the whole gallery by a form."""
    everything = np.arange(items)
    found, unmated = search(form, asked, everything), search(form, asked, everything, leave_out=True)
    wrong = np.where(found.item == asked.item, np.inf, found.distance)
    return SearchScores(asked.item, found.distance, unmated.distance, items, wrong)


def mean_over_families(values: Mapping[str, Sequence[np.ndarray]]) -> np.ndarray:
    """Return the mean over families of the mean over their sets."""
    return np.asarray(np.mean([np.mean(each, axis=0) for each in values.values()], axis=0))


def by_family(sets: Sequence[PhotoSet]) -> dict[str, list[PhotoSet]]:
    """Return the sets of each family."""
    return {
        name: [each for each in sets if each.family == name] for name in dict.fromkeys(each.family for each in sets)
    }


def constants(record: Recorder, sets: Sequence[PhotoSet], count: int) -> None:
    """Add the table of the constants that are best on all sets but one, tested on that one."""
    forms = [ItemDistance(near, 1 - near, rival, rivals) for near, rival, rivals in itertools.product(*WEIGHTS)]
    forms = [NEAREST_PHOTO, ItemDistance(), *forms]
    gains: dict[str, list[np.ndarray]] = {}
    for each in sets:
        means = np.mean([exact_rates(forms, each, *half) for half in halves(each, count)], axis=0)
        gains.setdefault(each.family, []).append(np.log(means / means[0]))
    record.table("constants", ("left out", "best on the others", "ratio to the nearest photo", "ratio of the default"))
    for name in gains:
        best = int(mean_over_families({other: gains[other] for other in gains if other != name}).argmax())
        record.add(name, *_gain(forms[best], np.mean(gains[name], axis=0)[[best, 1]]))
    gain = mean_over_families(gains)
    record.add("none", *_gain(forms[int(gain.argmax())], gain[[int(gain.argmax()), 1]]))


def exact_rates(forms: Sequence[ItemDistance], each: PhotoSet, known: np.ndarray, unknown: np.ndarray) -> list[float]:
    """Return TPIR at exactly the target by each form."""
    mated, strange = each.searches.of_items(known), each.searches.of_items(unknown)
    near, others, found = near_items(mated, known), near_items(strange, known), []
    for form in forms:
        first = near.first(form)
        within = first.distance <= quantile(others.first(form).distance, strange.item)
        found.append(float(np.mean(within & (first.item == mated.item))))
    return found


def _gain(form: ItemDistance, logarithms: np.ndarray) -> tuple[str, ...]:
    weights = (form.nearest, form.mean, form.rival, form.rivals)
    return " ".join(f"{weight:.2g}" for weight in weights), *(f"{ratio:.2f}" for ratio in np.exp(logarithms))


def copies(record: Recorder, sets: Sequence[PhotoSet], count: int) -> None:
    """Add the table of TPIR, and of the copies that match, by the distance of a copy."""
    names = [f"{distance:g}" for distance in COPIES] + ["quantile"]
    columns = ("data", *(f"TPIR, {name}" for name in names), *(f"re-encoded, {name}" for name in names), "exact copies")
    record.table("copies", columns)
    for each in sets:
        if (again := each.copies) is not None:
            measured = np.mean(
                [list(copy_rates(each, again, *half)) for half in halves(each, count)], axis=0
            )  # (form, rate)
            tpir, encoded, same = ([f"{value:.3f}" for value in column] for column in measured.T)
            record.add(each.name, *tpir, *encoded, min(same))


def copy_rates(each: PhotoSet, again: Evidence, known: np.ndarray, unknown: np.ndarray) -> Iterator[tuple[float, ...]]:
    """Yield TPIR and the shares of re-encoded and of exact copies that match, by the distance of a copy."""
    mated, strange, drawn = each.searches.of_items(known), each.searches.of_items(unknown), each.draws.of_items(known)
    draws = search(NEAREST_PHOTO, drawn, known, leave_out=True)
    for distance in (*COPIES, quantile(draws.distance, drawn.item, RULE)):
        form = ItemDistance(copy=distance)
        threshold = quantile(search(form, strange, known).distance, strange.item)
        shares = []
        for asked in (mated, again.of_items(known), drawn):
            found = search(form, asked, known)
            shares.append(float(np.mean((found.item == asked.item) & (found.distance <= threshold))))
        yield tuple(shares)


def unknown_distances(form: ItemDistance, each: PhotoSet, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distances of all queries without their own item, in a gallery of some items; and their items."""
    shown = np.sort(np.random.default_rng(seed).permutation(each.items)[:size])
    return search(form, each.searches, shown, leave_out=True).distance, each.searches.item


def common_threshold(form: ItemDistance, sets: Mapping[str, Sequence[PhotoSet]]) -> float:
    """Return the threshold with the target FPIR on average over families of sets, in galleries of a typical size."""
    distances, weights = [], []
    for family in sets.values():
        for each in family:
            found, items = unknown_distances(form, each, TYPICAL, 0)
            distances.append(found)
            weights.append(item_weights(items) / len(family) / len(sets))
    values, shares = np.concatenate(distances), np.concatenate(weights)
    order = np.argsort(values, kind="stable")
    return float(np.interp(TARGET, np.cumsum(shares[order]), values[order]))


def one_threshold(record: Recorder, trained: Sequence[PhotoSet], whole: Sequence[PhotoSet]) -> None:
    """Add the table of the FPIR that the threshold of all other sets realises on each, by the size of the gallery."""
    families = by_family(trained)
    record.table("one threshold", ("data, distance", "threshold", *(f"{size} items" for size in SIZES)))
    for name, form in FORMS.items():
        record.add(f"all, {name}", f"{common_threshold(form, families):.3f}", *[NONE] * len(SIZES))
        for each in whole:
            others = {family: sets for family, sets in families.items() if family != each.family}
            threshold = common_threshold(form, others)
            cells = [_realised(form, each, size, threshold) for size in SIZES]
            record.add(f"{each.name}, {name}", f"{threshold:.3f}", *cells)


def _realised(form: ItemDistance, each: PhotoSet, size: int, threshold: float) -> str:
    if size > each.items:
        return NONE
    drawn = [unknown_distances(form, each, size, seed) for seed in range(REPEATED)]
    return f"{np.mean([share_within(*some, threshold) for some in drawn]):.3f}"


def found(record: Recorder, sets: Sequence[PhotoSet], count: int) -> None:
    """Add the table of what both distances find."""
    columns = ("data", "R@1 by nearest photo", "R@1", "TPIR at exactly 0.05 by nearest photo", "TPIR at exactly 0.05")
    more = ("ratio", "95 % of halves", "TPIR served by nearest photo", "TPIR served", "FPIR realised by nearest photo")
    record.table("found", (*columns, *more, "FPIR realised"))
    for each in sets:
        runs = [[rates(form, each, *half) for form in FORMS.values()] for half in halves(each, count)]
        table = np.array(runs)  # (halves, forms, rates)
        cells = [f"{value:.3f}" for rate in (0, 1) for value in table[:, :, rate].mean(axis=0)]
        served = [f"{value:.3f}" for value in table[:, :, 2].mean(axis=0)]
        realised = [f"{values.mean():.3f} ± {values.std():.3f}" for values in table[:, :, 3].T]
        record.add(each.name, *cells, *ratio(table[:, 0, 1], table[:, 1, 1]), *served, *realised)


def consistency_of(record: Recorder, sets: Sequence[PhotoSet]) -> None:
    """Add the table of how alike items fare by both distances, where both find equally many of the photos."""
    columns = ("data", "distance", "TPIR", "FPIR", "OPIS", "OPIS by chance", "TPIR of the worse half", "never found")
    record.table("consistency", columns)
    for each in sets:
        searched = [scores_of(form, each.searches, each.items) for form in FORMS.values()]
        thresholds = [quantile(scores.impostor, each.searches.item) for scores in searched]
        for name, scores, alike in zip(FORMS, searched, at_equal_tpir(searched, thresholds), strict=True):
            fpir = share_within(scores.impostor, each.searches.item, threshold_at_tpir(scores, alike.tpir))
            values = (alike.tpir, fpir, alike.opis, alike.opis_by_chance, alike.worse_half, alike.never_found)
            record.add(each.name, name, *(f"{value:.3f}" for value in values))


def ties(record: Recorder, sets: Sequence[PhotoSet]) -> None:
    """Add the table of thresholds by OPIS: of those that find as much as the greatest, as in bundles, and of all."""
    rules = ("greatest that keeps 0.05", "OPIS, of those that find as much", "OPIS, within an error of the utility")
    record.table("ties", ("data", *(f"{rate}, {rule}" for rule in rules for rate in ("threshold", "FPIR", "TPIR"))))
    for each in sets:
        scores = scores_of(FORMS["item distance"], each.searches, each.items)
        limit = quantile(scores.impostor, each.searches.item)
        below = np.unique(scores.impostor[scores.impostor <= limit])
        at = search_curves(scores, np.append(np.nextafter(below, -np.inf), limit))
        means, spread = at.utility.mean(axis=0), at.utility.var(axis=0)
        error = at.utility[:, means.argmax()].std(ddof=1) / np.sqrt(len(at.utility))
        near = np.flatnonzero(means >= means.max() - error)
        cells = []
        for threshold in (limit, choose_threshold(scores, limit) or limit, at.distances[near[spread[near].argmin()]]):
            fpir = share_within(scores.impostor, each.searches.item, threshold)
            cells += [f"{threshold:.4f}", f"{fpir:.3f}", f"{consistency(scores, threshold).tpir:.3f}"]
        record.add(each.name, *cells)


def curves(record: Recorder, sets: Sequence[PhotoSet], count: int) -> None:
    """Add the table of TPIR at several FPIR by both distances, as means over random halves."""
    record.table("curves", ("data", "distance", *(f"FPIR {share:g}" for share in CURVE)))
    for each in sets:
        for name, form in FORMS.items():
            found = [at_shares(form, each, known, unknown) for known, unknown in halves(each, count)]
            record.add(each.name, name, *(f"{value:.3f}" for value in np.mean(found, axis=0)))


def at_shares(form: ItemDistance, each: PhotoSet, known: np.ndarray, unknown: np.ndarray) -> list[float]:
    """Return TPIR in one half, at the thresholds with exactly each FPIR of the curve."""
    mated, strange = each.searches.of_items(known), each.searches.of_items(unknown)
    found, unmated = search(form, mated, known), search(form, strange, known)
    thresholds = [quantile(unmated.distance, strange.item, share) for share in CURVE]
    return [float(np.mean((found.item == mated.item) & (found.distance <= each))) for each in thresholds]


def rules(record: Recorder, trained: Sequence[PhotoSet], tested: Sequence[PhotoSet], count: int) -> None:
    """Add the table of other rules to decide: a threshold chosen by hand on other sets, and the ratio of two distances.

    By hand, the nearest photo's threshold is that with the best F1 on the training partitions of the other sets. The
    ratio is the distance to the nearest photo over that to the nearest photo of another item (Lowe, 2004).
    """
    record.table("rules", ("data", *(f"{rate}, {rule}" for rule in RULES for rate in ("FPIR", "TPIR"))))
    families = by_family(trained)
    for each in tested:
        others = [one for family, sets in families.items() if family != each.family for one in sets]
        by_hand = float(np.mean([best_by_hand(one) for one in others]))
        found = []
        for known, unknown in halves(each, count):
            mated, strange = each.searches.of_items(known), each.searches.of_items(unknown)
            drawn = each.draws.of_items(known)
            row: list[float] = []
            for rule, first in RULES.items():
                asked, others_asked = first(near_items(mated, known)), first(near_items(strange, known))
                own = first(near_items(drawn, known, leave_out=True)).distance
                threshold = by_hand if rule == BY_HAND else quantile(own, drawn.item)
                row += [
                    share_within(others_asked.distance, strange.item, threshold),
                    float(np.mean((asked.item == mated.item) & (asked.distance <= threshold))),
                ]
            found.append(row)
        record.add(each.name, *(f"{value:.3f}" for value in np.mean(found, axis=0)))


def best_by_hand(each: PhotoSet) -> float:
    """Return the threshold on the nearest photo's distance with the best F1, half of the items known."""
    known, unknown = next(halves(each, 1))
    mated, strange = each.searches.of_items(known), each.searches.of_items(unknown)
    found, unmated = search(NEAREST_PHOTO, mated, known), search(NEAREST_PHOTO, strange, known)
    right = found.item == mated.item
    points = np.quantile(np.concatenate([found.distance, unmated.distance]), np.linspace(0, 1, GRID))
    accepted = [int(np.sum(found.distance <= point) + np.sum(unmated.distance <= point)) for point in points]
    hits = [int(np.sum(right & (found.distance <= point))) for point in points]
    f1 = [2 * hit / (some + len(right)) for hit, some in zip(hits, accepted, strict=True)]
    return float(points[int(np.argmax(f1))])


def by_ratio(near: Near) -> Found:
    """Return the item of the nearest photo, with its distance over that to the nearest photo of another item."""
    order = np.argsort(near.nearest, axis=1, kind="stable")[:, :2]
    first, second = np.take_along_axis(near.nearest, order, axis=1).T
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(np.isfinite(second) & (second > 0), first / second, 1.0)
    return Found(np.take_along_axis(near.item, order[:, :1], axis=1)[:, 0], share)


RULES: dict[str, Callable[[Near], Found]] = {
    BY_HAND: methodcaller("first", NEAREST_PHOTO),
    "ratio": by_ratio,
    "item distance": methodcaller("first", ItemDistance()),
}


def ratio(before: np.ndarray, after: np.ndarray) -> tuple[str, str]:
    """Return the ratio of the mean rates over halves, and the 95 % range of the ratio of one half."""
    low, high = np.quantile(after / np.maximum(before, 1e-9), RANGE)
    return f"{after.mean() / before.mean():.2f}", f"{low:.2f} to {high:.2f}"


def details(record: Recorder, sets: Sequence[PhotoSet]) -> None:
    """Add the table of R@1 and TPIR by the weight of agreeing local features."""
    columns = (f"{each.name}, {rate}" for each in sets for rate in ("R@1", "TPIR at exactly 0.05"))
    record.table("details", ("weight", *columns))
    for weight in DETAILS:
        form = replace(ItemDistance(), details=weight)
        cells = itertools.chain.from_iterable(whole_gallery(form, each) for each in sets)
        record.add(f"{weight:g}", *(f"{value:.3f}" for value in cells))


def whole_gallery(form: ItemDistance, each: PhotoSet) -> tuple[float, float]:
    """Return R@1 and TPIR at exactly the target, with every item as a candidate.

    Searches for unknown items are those without the query's own item.
    """
    everything, asked = np.arange(each.items), each.searches
    near, others = (near_items(asked, everything, leave_out=out, most=each.items) for out in (False, True))
    mated, unmated = near.first(form), others.first(form)
    right = mated.item == asked.item
    within = mated.distance <= quantile(unmated.distance, asked.item)
    return float(right.mean()), float(np.mean(right & within))


def main() -> None:
    """Measure and print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/item_distance"), help="Folder for computed features.")
    parser.add_argument("--repetitions", type=int, default=50, help="Random halves of a set.")
    parser.add_argument("--compared", type=int, default=20, help="Random halves to compare constants on.")
    parser.add_argument("--demos", type=int, default=5, help="Catalogues and models of the demo to measure.")
    parser.add_argument("--symbols", type=int, default=SYMBOLS, help="Symbols to draw.")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    sets = Sets(data, arguments.output, demos=arguments.demos, symbols=arguments.symbols)
    trained = list(sets.of(TRAIN))
    with Recorder("item_distance", arguments) as record:
        constants(record, trained, arguments.compared)
        copies(record, trained, arguments.compared)
        details(record, list(sets.verified()))
        one_threshold(record, trained, list(sets.of(ALL)))
        tested = [each for each in sets.of(TEST) if each.family != "grocery"]
        tested += [*sets.stores(ALL), *sets.few_photos(), *sets.fitted(), *sets.own_models()]
        found(record, tested, arguments.repetitions)
        consistency_of(record, tested)
        ties(record, tested)
        whole = [each for each in tested if each.name in SHOWN]
        curves(record, whole, arguments.repetitions)
        rules(record, trained, whole, arguments.repetitions)


if __name__ == "__main__":
    main()
