"""Fit a pretrained model to a catalogue: a projection of its features, fitted to a part of the items.

The threshold of the gallery is set on the other items, because fitted items are farther apart than unknown ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from retrieval.bundle.fitted import Fitted, content_hash
from retrieval.catalogue.read import Photo
from retrieval.encoders.export import NOT_FITTED, Encoder, Fit
from retrieval.errors import counted
from training.data.folds import share_of_items
from training.data.reader import PhotoReader, evaluation_batches, is_readable

from .projection import LEAST_ITEMS, ProjectionChoice, choose_projection
from .verification import fit_verifier

if TYPE_CHECKING:
    from .pretrained import Pretrained

SHARE, MOST_ITEMS = 0.5, 1000  # largest part of the items that is fitted to
MOST_PHOTOS = 12  # of an item


Model = TypeVar("Model", "Pretrained", Encoder)


def fit_to_catalogue(
    model: Model, photos: Sequence[Photo], *, seed: int = 0, verify: bool = False
) -> tuple[Model, str]:
    """Return a model fitted to a part of a catalogue, if that finds more items, and a sentence about it.

    At most half of the items, and at most 1,000, are used for the fit. Groups are not divided. Items with a single
    photo, and photos that cannot be read, are left out.

    Parameters
    ----------
    verify:
        Compare local features (geometric verification), with a vocabulary fitted to the same photos.
    """
    counts = Counter(photo.item_id for photo in photos)
    several = [item for item, count in counts.items() if count > 1]
    share = min(SHARE, MOST_ITEMS / max(1, len(several)))
    chosen = _readable(photos, set(share_of_items(photos, several, share=share, seed=seed))) if several else []
    fit = NOT_FITTED
    told = (
        f"The model is used as it is: {counted(len(several), 'item has', 'items have')} several photos, and fitting "
        f"it to a catalogue needs {2 * LEAST_ITEMS}, half of them for the threshold."
    )
    if len(several) >= 2 * LEAST_ITEMS:
        choice = choose_projection(chosen, features_of(model, chosen), seed=seed)
        fit, told = _projected(choice, chosen, len(counts))
    if verify:
        used = chosen or _readable(photos, set(counts))
        verifier = fit_verifier(used, model.preprocessing, catalogue_photos=len(photos), seed=seed)
        fit = replace(fit, verifier=verifier)
    return model if fit is NOT_FITTED else model.with_fit(fit), told


def _projected(choice: ProjectionChoice, photos: Sequence[Photo], catalogue_items: int) -> tuple[Fit, str]:
    """Return the projection that was chosen on photos, if any, and a sentence about it."""
    if choice.projection is None:
        return NOT_FITTED, f"The model is used as it is: {choice.reason}."
    items = len({photo.item_id for photo in photos})
    evidence = {"fit": {"items": items, "photos": len(photos), "recall_at_1": choice.unfitted, "gain": choice.gain}}
    contents = (content_hash(photo.read(), photo.bbox) for photo in photos)
    names = {name for photo in photos for name in (photo.item_id, photo.group_key)}
    return Fit(choice.projection, Fitted.of(names, contents), evidence), (
        f"Fitted to {items} of the {catalogue_items} items: in a cross-validation on items that were left out, "
        f"{choice.unfitted + choice.gain:.0%} of the photos find their item first, {choice.unfitted:.0%} without it."
    )


def features_of(model: Pretrained | Encoder, photos: Sequence[Photo]) -> NDArray[np.floating[Any]]:
    """Return the features (n, c) of photos, before they are scaled to length one."""
    reader = PhotoReader(photos, model.preprocessing, cache_bytes=0)
    with tqdm(total=len(photos), desc="fitting", unit="photo") as bar:
        blocks = []
        for pixels in evaluation_batches(reader, range(len(photos))):
            blocks.append(np.asarray(model.features(pixels)))
            bar.update(len(pixels))
    return np.concatenate(blocks)


def _readable(photos: Sequence[Photo], items: set[str]) -> list[Photo]:
    """Return at most MOST_PHOTOS photos of each of the items, without those that cannot be read."""
    readable: list[Photo] = []
    counts: Counter[str] = Counter()
    for photo in photos:
        if photo.item_id in items and counts[photo.item_id] < MOST_PHOTOS and is_readable(photo):
            counts[photo.item_id] += 1
            readable.append(photo)
    return readable
