"""Seeded transformations of the training photos: label noise, image noise, fewer classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from retrieval.catalogue.read import Photo
from retrieval.errors import DataError, InvalidParameter

Positions = Sequence[int]  # of the training photos in the list of all photos


def label_noise(photos: Sequence[Photo], train: Positions, share: float, seed: int) -> list[Photo]:
    """Give a share of the training photos the label of another random training item."""
    changed, generator = list(photos), np.random.default_rng(seed)
    items = sorted({photos[i].item_id for i in train})
    for position in generator.choice(np.array(train), round(share * len(train)), replace=False):
        others = [item for item in items if item != photos[position].item_id]
        changed[position] = dataclasses.replace(photos[position], item_id=others[generator.integers(len(others))])
    return changed


def image_noise(
    photos: Sequence[Photo], train: Positions, share: float, seed: int, strangers: Sequence[Photo]
) -> list[Photo]:
    """Replace a share of the training photos by unrelated photos, keeping their labels."""
    wanted = round(share * len(train))
    if wanted and not strangers:
        raise DataError("there are no strange photos to mix in", remedy="Name a catalogue of some with --strangers")
    changed, generator = list(photos), np.random.default_rng(seed)
    places = generator.choice(np.array(train), wanted, replace=False)
    for position in places:
        stranger = strangers[int(generator.integers(len(strangers)))]
        changed[position] = dataclasses.replace(
            photos[position], path=stranger.path, span=stranger.span, bbox=stranger.bbox
        )
    return changed


def first_classes(photos: Sequence[Photo], train: Positions, share: float, seed: int) -> list[Photo]:  # noqa: ARG001
    """Keep the first share of the training classes in alphabetical order; at least four, for a validation split."""
    items = sorted({photos[i].item_id for i in train})
    kept = set(items[: max(4, round(share * len(items)))])
    dropped = {i for i in train if photos[i].item_id not in kept}
    return [photo for i, photo in enumerate(photos) if i not in dropped]


def one_set(photos: Sequence[Photo], train: Positions, share: float, seed: int) -> list[Photo]:  # noqa: ARG001
    """Drop the roles of query and gallery; every photo is then searched among all others."""
    return [dataclasses.replace(photo, role="", source="") for photo in photos]


Transformation = Callable[[Sequence[Photo], Positions, float, int], list[Photo]]
TRANSFORMATIONS: Mapping[str, Transformation] = {
    "label noise": label_noise,
    "first classes": first_classes,
    "one set": one_set,
}
IMAGE_NOISE = "image noise"


def transform(
    photos: Sequence[Photo],
    train_items: Sequence[str],
    what: tuple[str, float] | None,
    *,
    seed: int,
    strangers: Sequence[Photo] = (),
) -> list[Photo]:
    """Return the photos with the training items transformed; raise InvalidParameter for an unknown transformation."""
    if what is None:
        return list(photos)
    name, share = what
    if not 0 <= share <= 1:
        raise InvalidParameter(name, "be a share in [0, 1]", share)
    inside = set(train_items)
    train = [i for i, photo in enumerate(photos) if photo.item_id in inside]
    if name == IMAGE_NOISE:
        return image_noise(photos, train, share, seed, strangers)
    if name not in TRANSFORMATIONS:
        known = ", ".join([*TRANSFORMATIONS, IMAGE_NOISE])
        raise InvalidParameter("photos of a variant", f"be one of {known}", name)
    return TRANSFORMATIONS[name](photos, train, share, seed)
