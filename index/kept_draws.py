"""Draws that a gallery keeps: pack them, read them, and update them after a change of photos."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays import load_arrays
from .distance import DistanceForm
from .draws import Drawer, Draws, Probes
from .reader import Reader

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

    @property
    def until(self) -> int:
        """One more than the seq of the newest photo that every source has searched."""
        return min((draws.until for draws in self.sources.values()), default=0)

    def pack(self) -> dict[str, bytes | None]:
        """Return the draws as content for `Writer.keep`."""
        about = {"model": self.model, "fitted": sorted(self.fitted)}
        file = io.BytesIO()
        arrays: dict[str, Any] = {ABOUT: np.array(json.dumps(about, ensure_ascii=False))}
        for source, draws in self.sources.items():
            arrays |= {f"{source}{MARK}{name}": value for name, value in draws.arrays().items()}
        np.savez(file, **arrays)
        return {DRAWS: file.getvalue()}

    @classmethod
    def read(cls, gallery: Reader) -> KeptDraws | None:
        """Return the draws that a gallery keeps, None if there are none."""
        content = gallery.kept(DRAWS)
        if content is None:
            return None
        arrays = load_arrays(content)
        about = json.loads(str(arrays.pop(ABOUT)))
        sources: dict[str, dict[str, Any]] = {}
        for name, value in arrays.items():
            source, _, field = name.rpartition(MARK)
            sources.setdefault(source, {})[field] = value
        draws = {source: Draws.of_arrays(values) for source, values in sources.items()}
        return cls(about["model"], draws, frozenset(about["fitted"]))


def update_draws(
    gallery: Reader,
    known: KeptDraws | None,
    *,
    model: str,
    distance_form: DistanceForm,
    probes: Mapping[str, Probes],
    is_fitted: IsFitted | None = None,
    content_key: str = "",
) -> KeptDraws:
    """Return the draws of the newest version, reusing `known` if they belong to the same model.

    Parameters
    ----------
    probes:
        Photos from elsewhere to search the gallery with, by source.
    is_fitted:
        Whether the model was fitted on a gallery item. Such items give no own draws.
    content_key:
        Metadata key of the hash of a photo's file, used to find duplicates and fitted photos.
    """
    if known is None or known.model != model:
        known = KeptDraws(model, {}, frozenset())
    with gallery._guard:
        now = gallery.snapshot()
        fitted = set(known.fitted)
        if is_fitted is not None:
            rows = gallery._store.contents_since(known.until, content_key)
            fitted |= {item for item, content in set(rows) if is_fitted(item, content)}
        names = {item for source in probes.values() for item in source.items}
        numbers = gallery._store.item_numbers(sorted(fitted | names))
    excluded = np.array(sorted(numbers[item] for item in fitted if item in numbers), dtype=np.int32)
    drawer = Drawer(now, distance_form, gallery.densities(distance_form), content_key)
    sources = {OWN: drawer.own(known.sources.get(OWN), excluded=excluded)}
    for name, source in probes.items():
        placed = [numbers.get(item, -1) for item in source.items]
        sources[name] = drawer.probes(known.sources.get(name), source, numbers=placed)
    return KeptDraws(model, sources, frozenset(item for item in fitted if item in numbers))
