"""Fit a pretrained model to a catalogue: a projection of its features, fitted to a part of the items.

The threshold of the gallery is set on the other items, because fitted items are farther apart than unknown ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from retrieval.bundle.fitted import Fitted, content_hash
from retrieval.catalogue.read import Photo
from retrieval.errors import counted
from training.data.folds import share_of_items
from training.data.reader import PhotoReader, evaluation_batches
from training.model import PretrainedModel

from .pretrained import Pretrained, is_readable
from .projection import LEAST_ITEMS, ProjectionChoice, choose_projection
from .verification import fit_verifier

SHARE, MOST_ITEMS = 0.5, 1000  # largest part of the items that is fitted to
MOST_PHOTOS = 12  # of an item


def fit_to_catalogue(
    pretrained: Pretrained, photos: Sequence[Photo], *, seed: int = 0, verify: bool = False
) -> tuple[Pretrained, str]:
    """Return a pretrained model fitted to a part of a catalogue, if that finds more items, and a sentence about it.

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
    told = (
        f"The model is used as it is: {counted(len(several), 'item has', 'items have')} several photos, and fitting "
        f"it to a catalogue needs {2 * LEAST_ITEMS}, half of them for the threshold."
    )
    projected = len(several) >= 2 * LEAST_ITEMS
    if projected:
        choice = choose_projection(chosen, features_of(pretrained, chosen), seed=seed)
        pretrained, told = _projected(pretrained, choice, chosen, len(counts))
        projected = choice.projection is not None
    if verify:
        chosen = chosen or _readable(photos, set(counts))
        verifier = fit_verifier(chosen, pretrained.preprocessing, catalogue_photos=len(photos), seed=seed)
        pretrained = replace(pretrained, verifier=verifier)
    if projected:
        contents = (content_hash(photo.read(), photo.bbox) for photo in chosen)
        names = {name for photo in chosen for name in (photo.item_id, photo.group_key)}
        pretrained = replace(pretrained, fitted=Fitted.of(names, contents))
    return pretrained, told


def _projected(
    pretrained: Pretrained, choice: ProjectionChoice, photos: Sequence[Photo], catalogue_items: int
) -> tuple[Pretrained, str]:
    """Return a model with the projection that was chosen on photos, if any, and a sentence about it."""
    if choice.projection is None:
        return pretrained, f"The model is used as it is: {choice.reason}."
    items = len({photo.item_id for photo in photos})
    evidence = {"fit": {"items": items, "photos": len(photos), "recall_at_1": choice.unfitted, "gain": choice.gain}}
    model = PretrainedModel(pretrained.model.backbone, projection=choice.projection.module()).eval()
    no_text = "" if pretrained.text is None else "the fit moves the vectors of photos, and not those of texts"
    return replace(pretrained, model=model, evidence=evidence, text=None, no_text=no_text), (
        f"Fitted to {items} of the {catalogue_items} items: in a cross-validation on items that were left out, "
        f"{choice.unfitted + choice.gain:.0%} of the photos find their item first, {choice.unfitted:.0%} without it."
    )


def features_of(pretrained: Pretrained, photos: Sequence[Photo]) -> NDArray[np.float32]:
    """Return the features (n, c) of photos, before they are scaled to length one."""
    reader = PhotoReader(photos, pretrained.preprocessing, cache_bytes=0)
    with tqdm(total=len(photos), desc="fitting", unit="photo") as bar:
        blocks = []
        for pixels in evaluation_batches(reader, range(len(photos))):
            blocks.append(pretrained.features(pixels).numpy())
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
