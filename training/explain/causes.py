"""Causes of missed searches: one for each mated query that does not return its own item first, by measured rules.

The rules are tried in this order, and the first that holds names the cause:

blur      the query is less sharp than the median of the gallery's photos by more than FAR spreads (`appearance`)
domain    its brightness or contrast differs by more than FAR spreads, or it is farther from every gallery photo than
          all but a share OUTSIDE of the gallery's photos are from the nearest photo of another item
crop      a closer or wider crop of it returns its own item first (`crops`)
sibling   another item comes first, and it is of the same group, or the two items are each other's nearest
view      its own item is as far away as another item usually is: at least the median distance from a gallery photo to
          the nearest photo of another item
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .appearance import SHARPNESS, Floats
from .crops import CROPS
from .item_search import ItemSearch, Places
from .outcomes import MISIDENTIFIED, MISSED, OUTCOMES, Outcomes

BLUR, DOMAIN, CROP, SIBLING, VIEW, UNEXPLAINED = CAUSES = ("blur", "domain", "crop", "sibling", "view", "unexplained")
FAR = 3.0  # spreads
OUTSIDE = 0.01  # share of the gallery's photos
SAMPLE = 400  # gallery photos that the gallery's figures are from


@dataclass(frozen=True)
class Miss:
    """A mated query that does not return its own item first, with its cause and what was measured."""

    row: int  # of the split's queries
    photo: int
    item: int
    rival: int  # label of the nearest other item, -1 if there is none
    outcome: str  # MISIDENTIFIED or MISSED
    cause: str  # one of CAUSES
    own: float  # distance to its own item
    other: float  # distance to the nearest other item
    deviations: tuple[float, float, float]  # of sharpness, brightness and contrast, in spreads
    crop: str  # the first crop that returns its own item first, "" if none does


@dataclass(frozen=True)
class Scale:
    """Distances of a gallery that the rules compare with."""

    others: float  # median distance from a photo to the nearest photo of another item
    outside: float  # the distance that a share OUTSIDE of the photos exceeds

    @classmethod
    def of(cls, search: ItemSearch, photos: Places) -> Scale:
        """Return the distances from a sample of gallery photos."""
        nearest = []
        for block, distances in search.from_photos(photos):
            own = search.labels[block][:, None] == search.items[None]
            nearest.append(np.where(own, np.inf, distances).min(axis=1))
        others = np.concatenate(nearest)
        return cls(float(np.median(others)), float(np.quantile(others, 1 - OUTSIDE, method="higher")))


def missed_rows(outcomes: Outcomes) -> Places:
    """Return the rows of the mated queries that do not return their own item first."""
    wrong = [OUTCOMES.index(outcome) for outcome in (MISIDENTIFIED, MISSED)]
    return np.flatnonzero(np.isin(outcomes.kind, wrong))


def gallery_sample(search: ItemSearch, *, seed: int = 0) -> Places:
    """Return the positions of at most SAMPLE gallery photos."""
    gallery = search.split.gallery
    chosen = np.random.default_rng(seed).permutation(len(gallery))[:SAMPLE]
    return np.sort(gallery[chosen])


def causes_of(
    search: ItemSearch,
    outcomes: Outcomes,
    groups: Sequence[str],
    *,
    deviations: Floats,
    crop_vectors: NDArray[np.float32],
) -> list[Miss]:
    """Return the misses with their causes.

    Parameters
    ----------
    groups:
        Group of each photo, "" where it has none.
    deviations, crop_vectors:
        Deviations (n, 3) of the missed queries (`GalleryLook`) and unit vectors of their crops (n, len(CROPS), d), in
        the order of `missed_rows`.
    """
    rows = missed_rows(outcomes)
    if not len(rows):
        return []
    scale = Scale.of(search, gallery_sample(search))
    photos = search.split.queries[rows]
    crops = [found_by(search, crop_vectors[:, number], photos) for number in range(len(CROPS))]
    siblings = Siblings(search, groups)
    misses = []
    for place, row in enumerate(rows.tolist()):
        own, other = float(outcomes.own[row]), float(outcomes.impostor[row])
        rival, photo = int(outcomes.nearest_other[row]), int(photos[place])
        crop = next((name for name, found in zip(CROPS, crops, strict=True) if found[place]), "")
        holds = {
            BLUR: deviations[place, 0] < -FAR,
            DOMAIN: np.abs(deviations[place, 1:]).max() > FAR or min(own, other) > scale.outside,
            CROP: bool(crop),
            SIBLING: other <= own and siblings(photo, rival),
            VIEW: own >= scale.others,
            UNEXPLAINED: True,
        }
        sharpness, brightness, contrast = (float(value) for value in deviations[place])
        misses.append(
            Miss(
                row=row,
                photo=photo,
                item=int(search.labels[photo]),
                rival=rival,
                outcome=OUTCOMES[outcomes.kind[row]],
                cause=next(cause for cause, is_so in holds.items() if is_so),
                own=own,
                other=other,
                deviations=(sharpness, brightness, contrast),
                crop=crop,
            )
        )
    return misses


def found_by(search: ItemSearch, vectors: Floats | NDArray[np.float32], photos: Places) -> NDArray[np.bool_]:
    """Return whether vectors (n, d) that stand for photos (n,) return the photos' own items first."""
    found = np.zeros(len(photos), dtype=bool)
    start = 0
    for block, distances in search.from_photos(photos, vectors=np.asarray(vectors, dtype=np.float32)):
        is_own = search.labels[block][:, None] == search.items[None]
        own, other = (np.where(mask, distances, np.inf).min(axis=1) for mask in (is_own, ~is_own))
        found[start : start + len(block)] = (own <= search.threshold) & (own < other)
        start += len(block)
    return found


class Siblings:
    """Tells whether items look alike: of the same group, or each other's nearest item in the gallery."""

    def __init__(self, search: ItemSearch, groups: Sequence[str]) -> None:
        self._search, self._groups = search, groups
        self._nearest: dict[int, int] = {}

    def __call__(self, photo: int, rival: int) -> bool:
        """Return whether a photo's item and another item look alike."""
        item = int(self._search.labels[photo])
        gallery = self._search.split.gallery
        theirs = gallery[self._search.labels[gallery] == rival]
        group = self._groups[photo]
        if group and any(self._groups[one] == group for one in theirs.tolist()):
            return True
        return self.nearest(item) == rival and self.nearest(rival) == item

    def nearest(self, item: int) -> int:
        """Return the item nearest to an item's gallery photos, -1 if it has none or there is no other."""
        if item not in self._nearest:
            gallery, best = self._search.split.gallery, (np.inf, -1)
            for _, distances in self._search.from_photos(gallery[self._search.labels[gallery] == item]):
                others = np.where(self._search.items == item, np.inf, distances.min(axis=0))
                best = min(best, (float(others.min()), int(self._search.items[others.argmin()])))
            self._nearest[item] = best[1]
        return self._nearest[item]


def rules() -> dict[str, str]:
    """Return what each cause means, in words for people."""
    return {
        BLUR: f"The {SHARPNESS} is more than {FAR:g} spreads below the median of the gallery's photos.",
        DOMAIN: f"The brightness or contrast is more than {FAR:g} spreads from the gallery's median, or every gallery "
        f"photo is farther away than another item is for {1 - OUTSIDE:.0%} of the gallery's photos.",
        CROP: f"Searched with {', '.join(CROPS[:-1])} or {CROPS[-1]}, the photo returns its own item first.",
        SIBLING: "Another item comes first that is of the same group, or the two items are nearest to each other.",
        VIEW: "Its own item is as far away as another item usually is.",
        UNEXPLAINED: "No rule holds.",
    }
