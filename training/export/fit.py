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

from index.search.distance import PLAIN
from retrieval.bundle.fitted import Fitted, content_hash
from retrieval.catalogue.read import Photo
from training.data.folds import share_of_items
from training.data.reader import PhotoReader, evaluation_batches
from training.evaluation.evaluate import EvaluationSplit, item_labels
from training.model import PretrainedModel

from .pretrained import Pretrained, is_readable
from .projection import LEAST_ITEMS, ProjectionChoice, choose_projection
from .verification import (
    OFF,
    ValidationPhotos,
    check_verify,
    choose_verification,
    not_verified,
)

SHARE, MOST_ITEMS = 0.5, 1000  # largest part of the items that is fitted to
MOST_PHOTOS = 12  # of an item
LEAST_VERIFIED = 20  # items to choose the verification with: half for the vocabulary, half to search for


def fit_to_catalogue(
    pretrained: Pretrained,
    photos: Sequence[Photo],
    *,
    seed: int = 0,
    verify: str = OFF,
    target_fpir: float = 0.05,
) -> tuple[Pretrained, str]:
    """Return a pretrained model fitted to a part of a catalogue, if that finds more items, and sentences about it.

    At most half of the items, and at most 1,000, are used for the fit and to choose the verification. Groups are not
    divided. Items with a single photo, and photos that cannot be read, are left out.

    Parameters
    ----------
    verify:
        Geometric verification of matches: "on", "off", or "auto" to keep it if it finds more items at `target_fpir`.
    """
    check_verify(verify)
    counts = Counter(photo.item_id for photo in photos)
    several = [item for item, count in counts.items() if count > 1]
    verifies = verify != OFF and len(several) >= 2 * LEAST_VERIFIED
    if verify != OFF and not verifies:
        reason = f"only {len(several)} items have several photos"
        remedy = f"Pass a catalogue with {2 * LEAST_VERIFIED} such items"
        pretrained = replace(pretrained, verification=not_verified(verify, reason, remedy))
    if len(several) < 2 * LEAST_ITEMS and not verifies:
        told = (
            f"The model is used as it is: {len(several)} items have several photos, and fitting it to a catalogue "
            f"needs {2 * LEAST_ITEMS}, half of them for the threshold."
        )
        return pretrained, " ".join(filter(None, [told, pretrained.verification.describe()]))
    share = min(SHARE, MOST_ITEMS / len(several))
    chosen = _readable(photos, set(share_of_items(photos, several, share=share, seed=seed)))
    features = features_of(pretrained, chosen)
    choice = choose_projection(chosen, features, seed=seed)
    if verifies:
        verification = choose_verification(
            _validation(chosen, features, seed=seed),
            preprocessing=pretrained.preprocessing,
            base=PLAIN,
            target_fpir=target_fpir,
            verify=verify,
            catalogue_photos=len(photos),
            seed=seed,
        )
        pretrained = replace(pretrained, verification=verification)
    pretrained, told = _projected(pretrained, choice, chosen, len(counts))
    if choice.projection is not None or pretrained.verification.verifier is not None:
        contents = (content_hash(photo.read(), photo.bbox) for photo in chosen)
        pretrained = replace(pretrained, fitted=Fitted.of({photo.item_id for photo in chosen}, contents))
    return pretrained, " ".join(filter(None, [told, pretrained.verification.describe()]))


def _projected(
    pretrained: Pretrained, choice: ProjectionChoice, photos: Sequence[Photo], catalogue_items: int
) -> tuple[Pretrained, str]:
    """Return a model with the projection that was chosen on photos, if any, and a sentence about it."""
    if choice.projection is None:
        return pretrained, f"The model is used as it is: {choice.reason}."
    items = len({photo.item_id for photo in photos})
    evidence = {"fit": {"items": items, "photos": len(photos), "recall_at_1": choice.unfitted, "gain": choice.gain}}
    model = PretrainedModel(pretrained.model.backbone, projection=choice.projection.module()).eval()
    return replace(pretrained, model=model, evidence=evidence), (
        f"Fitted to {items} of the {catalogue_items} items: in a cross-validation on items that were left out, "
        f"{choice.unfitted + choice.gain:.0%} of the photos find their item first, {choice.unfitted:.0%} without it."
    )


def _validation(photos: Sequence[Photo], features: NDArray[np.float32], *, seed: int) -> ValidationPhotos:
    """Return searches for half of the items, with vectors of a projection that is fitted to the other half.

    A projection fitted to all of them separates them better than unknown items, and would hide what verification gains.
    """
    items = sorted({photo.item_id for photo in photos})
    fit_items = share_of_items(photos, items, share=0.5, seed=seed + 1)
    inside = np.isin([photo.item_id for photo in photos], fit_items)
    projection = choose_projection(
        [photo for photo, fits in zip(photos, inside, strict=True) if fits], features[inside], seed=seed
    ).projection
    raw = features.astype(np.float64) if projection is None else projection(features)
    vectors = (raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-12)).astype(np.float32)
    everything = np.arange(len(photos))
    split = EvaluationSplit("validation", everything[~inside], everything)
    return ValidationPhotos(photos, vectors, item_labels(photos), split, everything[inside])


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
