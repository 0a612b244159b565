"""Draws that a gallery keeps: pack them, read them, and update them after a change of photos."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from .arrays import load_arrays
from .copies import IsCopy
from .distance import DistanceForm
from .drawable import Drawable
from .draws import Drawer, Draws, Probes
from .errors import GalleryCorrupt, InvalidParameter
from .verified import VerifiedDistance

OWN = "own"  # the source of draws with gallery photos
DRAWS = "draws"  # the name under which a gallery keeps draws
ABOUT, MARK = "about", "/"  # in the npz: the key of model and fitted items, and the separator of source and field
IsFitted = Callable[[str, str | None], bool]  # takes an item id and the hash of a photo's file


@dataclass(frozen=True)
class KeptDraws:
    """The draws of a gallery version by source, for one model and distance form."""

    model: str  # identifies what else the draws depend on: model, distance form and fitted items
    sources: Mapping[str, Draws]
    fitted: frozenset[str]  # items of the gallery that the model was fitted on; there are no own draws of them
    photos: int = -1  # number of live photos that were searched
    seqs: int = -1  # sum of their seqs
    photos_per_query: int = 1
    regions: str = ""  # name of the policy that divides the photos of queries into regions (`region_draws`)

    @property
    def until(self) -> int:
        """One more than the seq of the newest photo that every source has searched."""
        return min((draws.until for draws in self.sources.values()), default=0)

    def covers(self, gallery: Drawable) -> bool:
        """Return whether the draws are those of exactly the photos of a gallery's newest version."""
        return (self.photos, self.seqs) == gallery.fingerprint()

    def pack(self) -> dict[str, bytes | None]:
        """Return the draws as content for `Writer.keep`."""
        about = {"model": self.model, "fitted": sorted(self.fitted), "photos": self.photos, "seqs": self.seqs}
        file = io.BytesIO()
        arrays: dict[str, Any] = {ABOUT: np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
        for source, draws in self.sources.items():
            arrays |= {f"{source}{MARK}{name}": value for name, value in draws.arrays().items()}
        np.savez(file, **arrays)
        return {draws_name(self.photos_per_query, self.regions): file.getvalue()}

    @classmethod
    def read(cls, gallery: Drawable, *, photos_per_query: int = 1, regions: str = "") -> KeptDraws | None:
        """Return the draws that a gallery keeps, None if there are none or they are damaged."""
        try:
            content = gallery.kept(draws_name(photos_per_query, regions))
            if content is None:
                return None
            return replace(cls._unpacked(load_arrays(content)), photos_per_query=photos_per_query, regions=regions)
        except (GalleryCorrupt, ValueError, KeyError, TypeError, EOFError, BadZipFile):
            return None

    @classmethod
    def _unpacked(cls, arrays: dict[str, NDArray[Any]]) -> KeptDraws:
        about = json.loads(arrays.pop(ABOUT).tobytes())
        sources: dict[str, dict[str, Any]] = {}
        for name, value in arrays.items():
            source, _, field = name.rpartition(MARK)
            sources.setdefault(source, {})[field] = value
        draws = {source: Draws.of_arrays(values) for source, values in sources.items()}
        return cls(about["model"], draws, frozenset(about["fitted"]), int(about["photos"]), int(about["seqs"]))


def draws_name(photos_per_query: int, regions: str = "") -> str:
    """Return the name under which a gallery keeps the draws of queries of this many photos, or of regions."""
    if regions:
        return f"{DRAWS} of regions {regions}"
    return DRAWS if photos_per_query == 1 else f"{DRAWS} of {photos_per_query} photos"


def update_draws(
    gallery: Drawable,
    known: KeptDraws | None,
    *,
    model: str,
    distance_form: DistanceForm,
    probes: Mapping[str, Probes],
    is_fitted: IsFitted | None = None,
    own: bool = True,
    content_key: str = "",
    is_copy: IsCopy | None = None,
    photos_per_query: int = 1,
) -> KeptDraws:
    """Return the draws of the newest version, reusing `known` if they belong to the same model.

    Parameters
    ----------
    probes:
        Photos from elsewhere to search the gallery with, by source.
    is_fitted:
        Whether the model was fitted on a gallery item. Such items have no own draws.
    own:
        Whether to search with the gallery's photos. Without it, every item is left out of the own draws.
    content_key:
        Metadata key of the hash of a photo's file, used to find duplicates and fitted photos.
    is_copy:
        Whether two photos show the same picture, used to find more duplicates.
    photos_per_query:
        Number of photos of each query. Probes of one item are grouped.
    """
    if is_fitted is not None and not content_key:
        raise InvalidParameter("content_key", "name a metadata key if is_fitted is given", content_key)
    if known is None or known.model != model or known.photos_per_query != photos_per_query:
        known = KeptDraws(model, {}, frozenset())
    probes = {name: source.grouped(photos_per_query) for name, source in probes.items()}
    with gallery.one_version():
        now, densities = gallery.snapshot(), gallery.densities(distance_form)
        search = gallery.verified_search(distance_form) if isinstance(distance_form, VerifiedDistance) else None
        fitted = set(known.fitted)
        if is_fitted is not None:
            for item, content in gallery.contents_since(known.until, content_key):
                if item not in fitted and is_fitted(item, content):
                    fitted.add(item)
        names = {item for source in probes.values() for item in source.items}
        numbers = gallery.item_numbers(sorted(fitted | names))
    excluded = np.array(sorted(numbers[item] for item in fitted if item in numbers), dtype=np.int32)
    excluded = excluded if own else np.unique(now.items)
    drawer = Drawer(now, distance_form, densities, content_key, search, is_copy)
    sources = {OWN: drawer.own(known.sources.get(OWN), excluded=excluded, photos_per_query=photos_per_query)}
    for name, source in probes.items():
        placed = [numbers.get(item, -1) for item in source.items]
        sources[name] = drawer.probes(known.sources.get(name), source, numbers=placed)
    present = frozenset(item for item in fitted if item in numbers)
    return KeptDraws(model, sources, present, *now.fingerprint, photos_per_query)
