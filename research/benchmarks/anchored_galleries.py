"""Galleries of untrained, trained and mixed items, searched for unknown items at anchored thresholds.

No unknown item is in the gallery, in training or validation, or helps to set the threshold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from index.draws import Probes
from index.kept_draws import OWN, KeptDraws
from retrieval.threshold.drawn_distances import LABELLED, PROBE, REFERENCE

from .anchored_models import Model
from .anchoring import LABELLED_ITEMS, NOTHING, TARGET, Repetition, item_rates, limit, point_of

TARGETS = (TARGET, 0.10)
SERVED, EXACT = "served", "exact"


@dataclass(frozen=True)
class Search:
    """A gallery searched for unknown items at one target."""

    repetition: Repetition  # with the served threshold and the one at exactly the target
    expected: float  # FPIR that the draws predict for the served threshold, 0 without one
    siblings: dict[str, float]  # FPIR of each unknown item with an item of its family in the gallery
    strangers: dict[str, float]  # of the others

    @property
    def rates(self) -> dict[str, float]:
        """Return the realised FPIR of each unknown item."""
        return item_rates(self.repetition.unknown, self.repetition.thresholds[SERVED])

    @property
    def fpir(self) -> float:
        """Return the realised FPIR, with items weighted equally."""
        return self.repetition.fpir(self.repetition.thresholds[SERVED])

    @property
    def unanchored(self) -> bool:
        """Return whether the gallery got no threshold."""
        return self.repetition.thresholds[SERVED] == NOTHING

    def tpir(self, name: str = SERVED) -> float:
        """Return the TPIR at the served threshold or at the exact one."""
        return self.repetition.tpir(self.repetition.thresholds[name])


def searches(
    model: Model,
    gallery: Collection[str],
    unknown: Collection[str],
    draws: KeptDraws,
    *,
    targets: Sequence[float] = (TARGET,),
    others: Collection[str] = (),
) -> list[Search]:
    """Search a gallery of some items for unknown items, at the threshold for each target that it gets from its draws.

    `others` are more unknown items, which count only among those by family.
    """
    data, families = model.data, {model.family_of[item] for item in gallery}
    shown = data.rows(gallery, in_gallery=True)
    known = data.searches(data.rows(gallery, in_gallery=False), shown)
    everything = data.searches(data.rows([*unknown, *others], in_gallery=False), shown)
    scores = everything.where(np.isin(everything.labels, list(unknown)))
    found = []
    for target in targets:
        point = point_of(draws, gallery_items=len(gallery), target=target)
        served = NOTHING if point is None else point.threshold
        rates = item_rates(everything, served)
        search = Search(
            Repetition({SERVED: served, EXACT: limit(scores, target)}, scores, known),
            0.0 if point is None else point.evidence["fpir_expected"],
            {item: rate for item, rate in rates.items() if model.family_of[item] in families},
            {item: rate for item, rate in rates.items() if model.family_of[item] not in families},
        )
        found.append(search)
    return found


def bundle_probes(model: Model, items: Collection[str]) -> dict[str, Probes]:
    """Return the photos of items in the form of a bundle's calibration photos."""
    sources = ((PROBE, False), (REFERENCE, True))
    return {name: model.data.probes(model.data.rows(items, in_gallery=side)) for name, side in sources}


def divisions(model: Model, items: Sequence[str], first: int, count: int) -> Iterator[tuple[list[str], list[str]]]:
    """Yield random divisions of items into `first` items and the rest; they differ from model to model."""
    generator = np.random.default_rng(list(model.data.name.encode()))
    for _ in range(count):
        yield _split(generator.permutation(items).tolist(), first)


def halves(model: Model, items: Sequence[str], count: int) -> Iterator[tuple[list[str], list[str]]]:
    """Yield random halves of items."""
    return divisions(model, items, len(items) // 2, count)


def draws_of(model: Model, gallery: Collection[str], probes: Mapping[str, Probes] | None = None) -> KeptDraws:
    """Return the draws of a gallery of some items: own ones of items that were not fitted on, and probes."""
    shown = model.data.rows(gallery, in_gallery=True)
    return model.data.draws(shown, probes or {}, fitted=model.splits.fit)


# Grocery


def untrained(model: Model, count: int) -> Iterator[list[Search]]:
    """Search random halves of the untrained items for the other half; yield the searches of each target."""
    for known, unknown in halves(model, model.untrained, count):
        yield searches(model, known, unknown, draws_of(model, known), targets=TARGETS)


def trained(model: Model) -> Iterator[list[Search]]:
    """Search the training items for siblings that were kept out of training, and for the test items."""
    draws = draws_of(model, model.trained, bundle_probes(model, model.splits.calibration))
    yield searches(model, model.trained, model.kept_out, draws, targets=TARGETS, others=model.splits.test)


def mixed(model: Model, count: int) -> Iterator[list[Search]]:
    """Search the training items and half of the untrained ones for the other half and the items kept out."""
    for known, unknown in halves(model, model.untrained, count):
        gallery, asked = [*model.trained, *known], [*model.kept_out, *unknown]
        yield searches(model, gallery, asked, draws_of(model, gallery), targets=TARGETS)


# Cars, birds and covers


def untrained_sources(model: Model, count: int) -> Iterator[dict[str, Search]]:
    """Search random halves of items for the other half; yield the search by what its threshold was set with.

    The kinds are own draws, labelled queries of some known items, and own draws with a bundle's probes and query shift.
    For the last, as many untrained items as there are calibration items are set aside before the others are divided.
    """
    for known, unknown in halves(model, model.untrained, count):
        labelled = model.data.rows(known[:LABELLED_ITEMS], in_gallery=False)
        draws = draws_of(model, known, {LABELLED: model.data.probes(labelled)})
        own = replace(draws, sources={OWN: draws.sources[OWN]})
        held_out, rest = _split([*known, *unknown], len(model.splits.calibration))
        known_rest, unknown_rest = _split(rest, len(rest) // 2)
        probed = draws_of(model, known_rest, bundle_probes(model, held_out))
        yield {
            "own": searches(model, known, unknown, own)[0],
            "labelled": searches(model, known, unknown, draws)[0],
            "own and probes": searches(model, known_rest, unknown_rest, probed)[0],
        }


def _split(items: list[str], first: int) -> tuple[list[str], list[str]]:
    return items[:first], items[first:]


def trained_sources(model: Model, count: int) -> Iterator[dict[str, Search]]:
    """Search the training items for untrained ones; yield the search by what its threshold was set with.

    As many untrained items as there are calibration items are the probes. With them, the validation items give own
    draws, because the model was not fitted on them. For comparison, a threshold is also set by
    leaving out the fitted items one at a time.
    """
    left_out = model.data.draws(model.data.rows(model.splits.fit, in_gallery=True), {})
    for known, unknown in divisions(model, model.untrained, len(model.splits.calibration), count):
        both = draws_of(model, model.trained, bundle_probes(model, known))
        probes = replace(both, sources={PROBE: both.sources[PROBE]})
        yield {
            "probes": searches(model, model.trained, unknown, probes)[0],
            "own and probes": searches(model, model.trained, unknown, both)[0],
            "fitted items left out": searches(model, model.trained, unknown, left_out)[0],
        }


def against_true_items(model: Model, count: int) -> Iterator[tuple[float, float]]:
    """Yield realised FPIR of thresholds from own draws, and from as many true unknown items.

    The untrained items are divided into thirds: the gallery, the unknown items that set a threshold for it, and those
    that test both thresholds. Each third takes each part once.
    """
    data, third = model.data, len(model.untrained) // 3
    for order, _ in divisions(model, model.untrained, 3 * third, count):
        thirds = [order[:third], order[third : 2 * third], order[2 * third :]]
        for first in range(3):
            gallery, setting, unknown = (thirds[(first + place) % 3] for place in range(3))
            search = searches(model, gallery, unknown, draws_of(model, gallery))[0]
            shown = data.rows(gallery, in_gallery=True)
            true = limit(data.searches(data.rows(setting, in_gallery=False), shown))
            yield search.fpir, search.repetition.fpir(true)
