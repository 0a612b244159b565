"""Measure photos: make their draws, and set, keep or tighten the operating point that follows from them.

Examples
--------
Vectors of 200 items, of three photos each:

>>> import numpy as np
>>> from index.photos.arrays import ArrayPhotos
>>> from index.search.item_distance import ItemDistance
>>> from index.search.item_search import ItemSearch
>>> generator = np.random.default_rng(0)
>>> items = np.repeat(np.arange(200), 3)
>>> vectors = generator.normal(size=(200, 64))[items] + generator.normal(size=(600, 64)) / 2
>>> vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
>>> photos, distance = ArrayPhotos(vectors, items), ItemDistance.default()
>>> point = measure(photos, distance, target_fpir=0.01).required
>>> point.status, point.rates.tpir
('estimated', 1.0)
>>> unknown = np.eye(64, dtype=np.float32)
>>> bool((ItemSearch(photos, distance).nearest(unknown, 1).distances <= point.threshold).any())
False
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np

from index.photos import Photos
from index.search.details import Verifier
from index.search.item_distance import ItemDistance
from retrieval.errors import CalibrationError, InvalidParameter

from .drawing import Drawing, NameVectors, PartVectors
from .draws import LABELLED, OWN, PROBE, REFERENCE, UNKNOWN, AllDraws, Draws, Probes
from .folds import FoldVectors, fold_draws
from .fpir import LEAST_ITEMS, DrawnDistances
from .labelled import query_shift
from .point import CERTIFIED, GALLERY, Origin, Point, Shift
from .rates import Mated, VersionRates, rated
from .rule import set_threshold

PROBE_SOURCES = (PROBE, REFERENCE, LABELLED, UNKNOWN)
SAME = 1e-3  # plain distance up to which two vectors are of one photo that was embedded twice

Rule = Literal["set", "keep", "tighten"]


@dataclass(frozen=True)
class Material:
    """What draws are made with, beside the photos that are searched."""

    probes: Mapping[str, Probes] = field(default_factory=dict)  # photos from elsewhere, by source (`PROBE_SOURCES`)
    fitted: frozenset[str] = frozenset()  # items that the model was fitted on, with others of their groups
    fitted_groups: frozenset[str] = frozenset()  # keys of these groups
    looks: PartVectors | None = None  # the second looks that searches take, None if they take none
    windows: PartVectors | None = None
    names: NameVectors | None = None
    folds: FoldVectors | None = None
    fold_of: Mapping[str, int] = field(default_factory=dict)  # fold of the fitted items that fold models can draw
    verifier: Verifier | None = None  # compares local features
    model: str = ""  # identifies what the draws depend on beside the photos
    version: int = -1  # of the gallery

    def __post_init__(self) -> None:
        for name in self.probes:
            if name not in PROBE_SOURCES:
                raise InvalidParameter("probes", f"have sources among {', '.join(PROBE_SOURCES)}", name)


@dataclass(frozen=True)
class Measurement:
    """Draws, and the operating point that follows from them."""

    draws: AllDraws
    point: Point | None  # None if there are too few draws
    why: str = ""  # why there is no point
    estimated: Point | None = None  # the estimated point beside a certified one

    @property
    def required(self) -> Point:
        """The operating point; raise CalibrationError if there is none."""
        if self.point is None:
            raise CalibrationError(self.why)
        return self.point

    @property
    def rates(self) -> VersionRates | None:
        """The rates of the point, None if there is no point or there are too few draws."""
        return None if self.point is None else VersionRates.of(self.draws, self.point)


def measure(
    photos: Photos,
    distance: ItemDistance,
    *,
    material: Material | None = None,
    draws: AllDraws | None = None,
    before: Point | None = None,
    rule: Rule = "set",
    target_fpir: float = 0.05,
    certify: bool = False,
    cap: float = math.inf,
    origin: Origin = GALLERY,
) -> Measurement:
    """Measure photos, and return their draws with the operating point that follows.

    Where too few items can be drawn, or they do not support the target, there is no point: `Measurement.point` is None,
    and `Measurement.why` says why. `Measurement.required` raises instead.

    Parameters
    ----------
    photos, distance:
        The photos, and the constants of the item distance.
    material:
        Labelled queries, windows and fold vectors, and which items the model was fitted on.
    draws:
        Draws of exactly these photos, if they were made before.
    before, rule:
        The point that serves now. "set" sets a new one for `target_fpir`. "keep" only measures the rates of `before`
        anew. "tighten" replaces `before` by a stricter one if it breaks its promise. Without `before`, a point is set.
    certify:
        Certify the target, or set no point if the items cannot certify it (`set_threshold`).
    cap:
        Upper limit of a new threshold.
    origin:
        Where the point will decide: among these photos, in galleries that a bundle serves, or beside a database.

    Raises
    ------
    InvalidParameter
        If `rule` is none of the three, or `target_fpir` does not lie between 0 and 1.
    """
    if rule not in get_args(Rule):
        raise InvalidParameter("rule", f"be one of {', '.join(get_args(Rule))}", rule)
    draws, items = draws or draw(photos, distance, material or Material()), photos.item_count
    if before is not None and rule != "set":
        stricter = _stricter(draws, before, items, origin) if rule == "tighten" else None
        is_known = stricter is None and before.basis.gallery_version == draws.version
        return Measurement(draws, before if is_known else _remeasured(draws, stricter or before, items))
    return _set(draws, target_fpir, items, origin, cap=cap, certify=certify)


def draw(photos: Photos, distance: ItemDistance, material: Material) -> AllDraws:
    """Return the draws of photos. Fitted items have own draws by fold models only, where there are any."""
    numbers = photos.item_numbers(sorted(material.fitted))
    probes = material.probes if photos.size else {}
    sources = Drawing(photos, distance, material.verifier).every(
        probes,
        excluded=list(numbers.values()),
        looks=material.looks,
        windows=material.windows,
        names=material.names,
    )
    fitted, groups = list(material.fitted), list(material.fitted_groups)
    for name in probes:
        draws = sources[name]
        sources[name] = draws.where(~np.isin(draws.groups, groups) | np.isin(draws.items, fitted))
    if material.folds is not None:
        by_folds = fold_draws(photos, material.folds, material.fold_of, distance, looks=material.looks)
        sources |= {kind: Draws.joined([sources[kind], some]) for kind, some in by_folds.items()}
    here = {*numbers} | (material.fitted & {*probes[LABELLED].items} if LABELLED in probes else set())
    return AllDraws(
        material.model,
        without_copies(sources),
        frozenset(here),
        material.version,
        photos.mark,
        looks=material.looks is not None,
    )


def without_copies(sources: Mapping[str, Draws]) -> dict[str, Draws]:
    """Return draws by source, without draws whose photo from elsewhere is in the collection, too.

    Labelled photos may have been added since they were labelled. If the collection has a calibration photo under
    another item, the whole item has another id here, and all its draws are left out.
    """
    here = {name: draws.plain <= SAME for name, draws in sources.items()}
    renamed = {item for name in (PROBE, REFERENCE) if name in sources for item in sources[name].items[here[name]]}
    kept = dict(sources)
    for name, draws in sources.items():
        if name in (PROBE, REFERENCE):
            kept[name] = draws.where(~np.isin(draws.items, list(renamed)))
        elif name in (LABELLED, UNKNOWN):
            kept[name] = draws.where(~(here[name] | (draws.own_plain <= SAME)))
    return kept


def _set(
    draws: AllDraws,
    target_fpir: float,
    items: int,
    origin: Origin,
    *,
    shift: Shift | None = None,
    cap: float = math.inf,
    certify: bool = False,
) -> Measurement:
    """Return a new point, or why there is none; measure a shift that is not given."""
    shift = shift or query_shift(_by_serving_model(draws))
    try:
        point = set_threshold(draws, target_fpir, items=items, shift=shift, cap=cap, certify=certify, origin=origin)
    except CalibrationError as error:
        return Measurement(draws, None, str(error))
    if not certify:
        return Measurement(draws, point)
    return Measurement(draws, point, estimated=_set(draws, target_fpir, items, origin, shift=shift, cap=cap).point)


def _by_serving_model(draws: AllDraws) -> dict[str, Draws]:
    """Return draws by source without own draws by fold models, which cannot be compared with the other draws."""
    own = draws.get(OWN)
    return {**draws.sources, OWN: own.where(~np.isin(own.items, list(draws.fitted)))}


def _stricter(draws: AllDraws, before: Point, items: int, origin: Origin) -> Point | None:
    """Return a stricter point for one that breaks its promise, None if it is not needed or there is none.

    If the remaining items cannot certify the target, a certified point becomes an estimated one, maybe with the same
    threshold. If the draws support no FPIR as low as the target, the new point has the smallest FPIR that they support.
    """
    rates = VersionRates.of(draws, before)
    if rates is None or not rates.broken(before):
        return None

    def again(target: float, *, certify: bool) -> Point | None:
        return _set(draws, target, items, origin, shift=before.shift, cap=before.threshold, certify=certify).point

    new = again(before.target_fpir, certify=True) if before.status == CERTIFIED else None
    new = new or again(max(before.target_fpir, rates.drawn.smallest_target), certify=False)
    new = None if new is None else replace(new, target_fpir=before.target_fpir)
    return None if new is None or (new.threshold, new.status) == (before.threshold, before.status) else new


def _remeasured(draws: AllDraws, point: Point, items: int) -> Point:
    """Return the point with its rates measured anew on draws, or unchanged if the draws are of too few items."""
    drawn = DrawnDistances.of(draws.sources, shift=point.shift, without=draws.fitted)
    if drawn.items < LEAST_ITEMS:
        return point
    return rated(point, draws, drawn, Mated.of(draws.sources, gallery_items=items), items=items)
