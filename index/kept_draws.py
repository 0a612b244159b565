"""The draws that a gallery keeps: brought up to date with its photos, and packed to be kept with a version."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .distance import DistanceForm
from .draws import Drawer, Draws, Probes
from .reader import Reader

OWN, PROBES, ABOUT = "own draws", "probe draws", "draws"
IsFitted = Callable[[str, str | None], bool]  # item id and hash of a photo's file: was the model fitted on it?


@dataclass(frozen=True)
class KeptDraws:
    """The draws of a gallery version, by one distance form and for one model."""

    model: str  # names what the draws depend on besides the gallery: model, probes and fitted items
    own: Draws
    probes: Draws
    fitted: frozenset[str]  # items of the gallery that the model was fitted on: they are not drawn

    def pack(self) -> dict[str, bytes | None]:
        """Return the contents to keep in a gallery."""
        about = {"model": self.model, "fitted": sorted(self.fitted)}
        return {OWN: self.own.pack(), PROBES: self.probes.pack(), ABOUT: json.dumps(about).encode()}

    @classmethod
    def read(cls, gallery: Reader) -> KeptDraws | None:
        """Return the draws that are kept in a gallery, None if there are none."""
        about, own, probes = (gallery.kept(name) for name in (ABOUT, OWN, PROBES))
        if about is None or own is None or probes is None:
            return None
        values = json.loads(about)
        return cls(values["model"], Draws.unpack(own), Draws.unpack(probes), frozenset(values["fitted"]))


def update_draws(
    gallery: Reader,
    known: KeptDraws | None,
    *,
    model: str,
    distance_form: DistanceForm,
    probes: Probes,
    is_fitted: IsFitted | None = None,
    content_key: str = "",
) -> KeptDraws:
    """Return the draws of the newest version, reusing `known` where they are of the same model.

    Parameters
    ----------
    content_key:
        Metadata key with the hash of a photo's file, to recognise duplicates and fitted photos.
    """
    if known is not None and known.model != model:
        known = None
    with gallery._guard:
        now = gallery.snapshot()
        fitted = set() if known is None else set(known.fitted)
        if is_fitted is not None:
            since = 0 if known is None else known.own.until
            rows = gallery._store.contents_since(since, content_key)
            fitted |= {item for item, content in set(rows) if is_fitted(item, content)}
        numbers = gallery._store.item_numbers([*fitted, *dict.fromkeys(probes.items)])
    excluded = np.array(sorted(numbers[item] for item in fitted if item in numbers), dtype=np.int32)
    drawer = Drawer(now, distance_form, gallery.densities(distance_form), content_key)
    placed = [numbers.get(item, -1) for item in probes.items]
    own = drawer.own(None if known is None else known.own, excluded=excluded)
    others = drawer.probes(None if known is None else known.probes, probes, numbers=placed)
    return KeptDraws(model, own, others, frozenset(item for item in fitted if item in numbers))
