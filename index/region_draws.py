"""Draws of photos that are searched by their regions.

Such a search has a match if any region of the photo is close enough to an item. The distance of a draw is therefore the
least distance over the regions, with all items of the photo left out. A gallery keeps the draws of the single regions
and updates them like other draws when photos change.
Shapes: p photos, r regions of all photos, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .distance import DistanceForm
from .drawable import Drawable
from .drawn import NOBODY, Draws, Probes
from .draws import Drawer
from .kept_draws import KeptDraws


@dataclass(frozen=True)
class RegionProbes:
    """Photos from elsewhere, divided into regions, to search the gallery with."""

    vectors: NDArray[np.float32]  # (r, d) of length 1
    photos: NDArray[np.int64]  # (r,) number of the photo of each region
    ids: Sequence[str]  # (p,)
    items: Sequence[Sequence[str]]  # (p,) items of each photo, all left out; the first one counts as that of the draw

    def where(self, chosen: Collection[int]) -> RegionProbes:
        """Return some of the photos, by number."""
        numbers = sorted(chosen)
        rows = np.isin(self.photos, numbers)
        places = np.searchsorted(numbers, self.photos[rows])
        return RegionProbes(
            self.vectors[rows], places, [self.ids[n] for n in numbers], [self.items[n] for n in numbers]
        )

    @property
    def names(self) -> list[str]:
        """Return a name for each region (r,), which ends in the id of its photo."""
        starts = np.searchsorted(self.photos, np.arange(len(self.ids)))
        return [f"{row - starts[photo]} {self.ids[photo]}" for row, photo in enumerate(self.photos.tolist())]

    def probes(self) -> Probes:
        """Return a probe for each region."""
        return Probes(self.vectors, self.names, [self.items[photo][0] for photo in self.photos.tolist()])


def update_region_draws(
    gallery: Drawable,
    known: KeptDraws | None,
    *,
    model: str,
    distance_form: DistanceForm,
    probes: Mapping[str, RegionProbes],
    regions: str,
) -> KeptDraws:
    """Return the draws of the regions in the newest version, reusing `known` if they belong to the same model.

    Parameters
    ----------
    probes:
        Photos by source. The regions of a photo are consecutive.
    regions:
        Name of the policy that divided the photos.
    """
    if known is None or known.model != model:
        known = KeptDraws(model, {}, frozenset())
    with gallery.one_version():
        now, densities = gallery.snapshot(), gallery.densities(distance_form)
        names = {item for source in probes.values() for items in source.items for item in items}
        numbers = gallery.item_numbers(sorted(names))
    drawer = Drawer(now, distance_form, densities)
    sources = {}
    for name, source in probes.items():
        most = max((len(items) for items in source.items), default=1)
        placed = np.full((len(source.ids), most), NOBODY, np.int32)
        for photo, items in enumerate(source.items):
            placed[photo, : len(items)] = [numbers.get(item, NOBODY) for item in items]
        sources[name] = drawer.probes(
            known.sources.get(name), source.probes(), numbers=placed[source.photos], most=len(source.photos)
        )
    return KeptDraws(model, sources, frozenset(), *now.fingerprint, regions=regions)


def of_photos(kept: KeptDraws, *, found: Collection[str] = ()) -> KeptDraws:
    """Return one draw per photo: the least distance over its regions, and the least distance to an own item.

    Photos with their id in `found` are in the gallery themselves, so they have no distance to their own items.
    """
    return replace(kept, sources={name: _of_photos(draws, found) for name, draws in kept.sources.items()})


def _of_photos(draws: Draws, found: Collection[str]) -> Draws:
    ids = np.array([name.partition(" ")[2] for name in draws.ids.tolist()], dtype=str)
    photos = np.unique(ids, return_inverse=True)[1]
    nearest, own = (_least(values, photos) for values in (draws.distances, draws.own))
    mated = ~np.isin(ids[own], list(found))
    return replace(
        draws,
        ids=ids[nearest],
        items=draws.items[nearest],
        seqs=draws.seqs[nearest],
        distances=draws.distances[nearest],
        nearest=draws.nearest[nearest],
        nearest_items=draws.nearest_items[nearest],
        own=np.where(mated, draws.own[own], np.inf),
        own_nearest=np.where(mated, draws.own_nearest[own], NOBODY),
        duplicates=draws.duplicates[nearest],
    )


def _least(values: NDArray[np.float64], groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of the least value in each group, in the order of the groups."""
    order = np.lexsort((values, groups))
    first = np.r_[True, groups[order][1:] != groups[order][:-1]] if len(order) else np.zeros(0, bool)
    return np.asarray(order[first])
