"""Galleries of untrained, trained and mixed items, searched for unknown items at anchored thresholds.

No unknown item is in the gallery, in training or validation, or helps to set the threshold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from index.draws import Probes
from index.kept_draws import KeptDraws
from retrieval.threshold.drawn_distances import PROBE, REFERENCE

from .anchored_models import Model
from .anchoring import NOTHING, TARGET, Repetition, item_rates, limit, point_of

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


def search(
    model: Model,
    gallery: Collection[str],
    unknown: Collection[str],
    draws: KeptDraws,
    *,
    target: float = TARGET,
    others: Collection[str] = (),
) -> Search:
    """Search a gallery of some items for unknown items, at the threshold that it gets from its draws.

    `others` are more unknown items, which count only among those by family.
    """
    data = model.data
    shown = data.rows(gallery, in_gallery=True)
    point = point_of(draws, gallery_items=len(gallery), target=target)
    served = NOTHING if point is None else point.threshold
    scores = data.searches(data.rows(unknown, in_gallery=False), shown)
    known = data.searches(data.rows(gallery, in_gallery=False), shown)
    rates = item_rates(data.searches(data.rows([*unknown, *others], in_gallery=False), shown), served)
    families = {model.family_of[item] for item in gallery}
    return Search(
        Repetition({SERVED: served, EXACT: limit(scores, target)}, scores, known),
        0.0 if point is None else point.evidence["fpir_expected"],
        {item: rate for item, rate in rates.items() if model.family_of[item] in families},
        {item: rate for item, rate in rates.items() if model.family_of[item] not in families},
    )


def bundle_probes(model: Model, items: Collection[str]) -> dict[str, Probes]:
    """Return the photos of items as a bundle has those of its calibration items."""
    sources = ((PROBE, False), (REFERENCE, True))
    return {name: model.data.probes(model.data.rows(items, in_gallery=side)) for name, side in sources}


def divisions(items: Sequence[str], first: int, count: int) -> Iterator[tuple[list[str], list[str]]]:
    """Yield random divisions of items into `first` items and the rest."""
    generator = np.random.default_rng(0)
    for _ in range(count):
        order = generator.permutation(items).tolist()
        yield order[:first], order[first:]


def draws_of(model: Model, gallery: Collection[str], probes: Mapping[str, Probes] | None = None) -> KeptDraws:
    """Return the draws of a gallery of some items: own ones of items that were not fitted on, and probes."""
    shown = model.data.rows(gallery, in_gallery=True)
    return model.data.draws(shown, probes or {}, fitted=model.splits.fit)


def untrained(model: Model, count: int) -> Iterator[list[Search]]:
    """Search random halves of the untrained items for the other half; yield the searches of each target."""
    for known, unknown in divisions(model.untrained, len(model.untrained) // 2, count):
        draws = draws_of(model, known)
        yield [search(model, known, unknown, draws, target=target) for target in TARGETS]


def trained(model: Model) -> Iterator[list[Search]]:
    """Search the training items for siblings of theirs that were kept out of training, and for the test items."""
    draws = draws_of(model, model.trained, bundle_probes(model, model.splits.calibration))
    others = model.splits.test
    yield [search(model, model.trained, model.kept_out, draws, target=target, others=others) for target in TARGETS]


def mixed(model: Model, count: int) -> Iterator[list[Search]]:
    """Search the training items and half of the untrained ones for the other half and the items kept out."""
    for known, unknown in divisions(model.untrained, len(model.untrained) // 2, count):
        gallery, asked = [*model.trained, *known], [*model.kept_out, *unknown]
        draws = draws_of(model, gallery)
        yield [search(model, gallery, asked, draws, target=target) for target in TARGETS]


def with_bundle(model: Model, count: int) -> Iterator[Search]:
    """Search random halves of the test items for the other half, with own draws and the bundle's probes and shift."""
    test = list(model.splits.test)
    for known, unknown in divisions(test, len(test) // 2, count):
        yield search(model, known, unknown, draws_of(model, known, bundle_probes(model, model.splits.calibration)))


def trained_with_probes(model: Model, count: int) -> Iterator[tuple[Search, Search]]:
    """Search the training items for untrained ones, at two thresholds.

    One is set with as many untrained items as probes as there are calibration items, the other with the training
    items themselves, each left out of the gallery.
    """
    left_out = model.data.draws(model.data.rows(model.splits.fit, in_gallery=True), {})
    for known, unknown in divisions(model.untrained, len(model.splits.calibration), count):
        probed = draws_of(model, model.trained, bundle_probes(model, known))
        yield tuple(search(model, model.trained, unknown, draws) for draws in (probed, left_out))


def against_true_items(model: Model, count: int) -> Iterator[tuple[float, float]]:
    """Yield realised FPIR of thresholds from own draws, and from as many true unknown items.

    The untrained items are divided into thirds: the gallery, the unknown items that set a threshold for it, and those
    that test both thresholds.
    """
    data, third = model.data, len(model.untrained) // 3
    for order, _ in divisions(model.untrained, 3 * third, count):
        thirds = [order[:third], order[third : 2 * third], order[2 * third :]]
        for first in range(3):
            gallery, setting, unknown = (thirds[(first + place) % 3] for place in range(3))
            point = point_of(draws_of(model, gallery), gallery_items=third)
            shown = data.rows(gallery, in_gallery=True)
            tests, true = (data.searches(data.rows(i, in_gallery=False), shown) for i in (unknown, setting))
            thresholds = NOTHING if point is None else point.threshold, limit(true)
            yield tuple(float(np.mean(list(item_rates(tests, t).values()))) for t in thresholds)
