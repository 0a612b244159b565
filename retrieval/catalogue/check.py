"""Check a catalogue: how it was read, problems with its photos, and a preview of training on it.

Training uses the same functions (`splits`, `batches_per_epoch`), which guarantees agreement.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from retrieval.errors import DataError, ImageRefused, counted, photos_of_items
from retrieval.images import DAMAGED, crop, open_image
from retrieval.measuring.fpir import LEAST_ITEMS

from .folders import describe_folders
from .photos import Photo
from .remote import is_url
from .splits import (
    Splits,
    make_evaluation_protocol,
    make_splits,
    photos_in_protocol,
    photos_to_hold_out,
    require_mates,
)
from .tables import CSV, read_header

ITEMS_PER_BATCH, PHOTOS_PER_ITEM = 16, 4  # defaults of the training settings
TRAINS_FROM = 20  # items with several photos, from which training is suggested
LEAST_GROUPS = 10  # two for each of five folds


@dataclass(frozen=True)
class CatalogueReport:
    """Problems of a catalogue; every list is empty for a valid one."""

    photos: int
    items: int
    unreadable: list[tuple[str, str]]  # photo_id, reason
    duplicates: list[list[str]]  # photo_ids with the same bytes
    single_photo_items: list[str]
    split_items: list[str]  # items in more than one partition
    damaged: list[str] = field(default_factory=list)  # photo_ids of JPEGs with lost or noisy blocks, which are usable

    @property
    def usable(self) -> bool:
        """Return whether training can use the catalogue: every photo opens and no item is in two partitions."""
        return not (self.unreadable or self.split_items)


def describe_catalogue(path: str | Path, photos: Sequence[Photo]) -> str:
    """Describe how a catalogue was read: "60 photos of 12 items, from a CSV with commas"."""
    groups = {photo.group for photo in photos} - {""}
    text = photos_of_items(len(photos), len({photo.item_id for photo in photos}))
    text += f" in {counted(len(groups), 'group')}" if groups else ""
    if is_url(path):
        return text
    path = Path(path)
    if path.is_dir() and all(type(photo) is Photo and photo.span is None for photo in photos):
        return f"{text}, from {describe_folders(photos)}"
    return f"{text}, from {read_header(path).describe()}" if path.suffix.lower() in CSV else text


def check_catalogue(photos: Sequence[Photo], *, progress: bool = True) -> CatalogueReport:
    """Open every photo and report problems that would affect training or a gallery."""
    unreadable: list[tuple[str, str]] = []
    damaged: list[str] = []
    by_content: dict[str, list[str]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    partitions: dict[str, set[str]] = defaultdict(set)
    for photo in tqdm(photos, desc="checking", unit="photo", disable=not progress):
        counts[photo.item_id] += 1
        partitions[photo.item_id].add(photo.partition)
        try:
            data = photo.read()
            image = crop(open_image(data, min_side=64 if photo.bbox is None else 0), photo.bbox)
            damaged += [photo.photo_id] if DAMAGED in image.info else []
            by_content[hashlib.sha256(data).hexdigest()].append(photo.photo_id)
        except ImageRefused as error:
            unreadable.append((photo.photo_id, error.message))
    return CatalogueReport(
        photos=len(photos),
        items=len(counts),
        unreadable=unreadable,
        duplicates=[ids for ids in by_content.values() if len(ids) > 1],
        single_photo_items=sorted(item for item, count in counts.items() if count == 1),
        split_items=sorted(item for item, names in partitions.items() if len(names) > 1),
        damaged=damaged,
    )


def batches_per_epoch(photos: int, batch_size: int, *, steps: int = 0) -> int:
    """Return the number of batches per epoch: `steps`, or as many as the photos fill, at least one."""
    return steps or max(1, photos // batch_size)


def can_train(photos: Sequence[Photo]) -> bool:
    """Return whether enough items have several photos to suggest training on all items, and groups fill its folds."""
    counts = Counter(photo.item_id for photo in photos)
    groups = {photo.group or photo.item_id for photo in photos}
    return sum(count > 1 for count in counts.values()) >= TRAINS_FROM and len(groups) >= LEAST_GROUPS


@dataclass(frozen=True)
class Readiness:
    """Preview of `train`, `evaluate` and `export` on a catalogue with default settings."""

    parts: str  # description of the split; "" if training refuses the catalogue
    problem: DataError | None  # reason for which training refuses the catalogue
    warnings: tuple[str, ...]  # properties of the split that the user may not intend


def readiness(photos: Sequence[Photo]) -> Readiness:
    """Return the preview for these photos."""
    try:
        splits = make_splits(photos)
        protocol = make_evaluation_protocol(photos)
        require_mates("validation", photos, splits.validation, protocol)
    except DataError as error:
        return Readiness("", error, ())
    held_out = photos_to_hold_out(photos, splits.fit, protocol)
    fit = photos_in_protocol(photos, splits.fit, protocol, left_out=held_out)
    parts = (
        f"Training fits {counted(len(splits.fit), 'item')} ({counted(len(fit), 'photo')}; {len(held_out)} others "
        f"are searched to judge it) and validates on {len(splits.validation)}; {len(splits.calibration)} are left for "
        f"calibration and {len(splits.test)} for the test"
    )
    group_of = {photo.item_id: photo.group for photo in photos if photo.group}
    return Readiness(parts, None, tuple(_few_items(splits, group_of)))


def _few_items(splits: Splits, group_of: Mapping[str, str]) -> list[str]:
    warnings = []
    for part, verbs in (("calibration", "`evaluate` and `export` need"), ("test", "`evaluate` needs")):
        if len(getattr(splits, part)) < 2:
            warnings.append(
                f"the {part} part has {counted(len(getattr(splits, part)), 'item')}, and {verbs} at least two. "
                f"Add more items" + (", or more groups" if group_of else "")
            )
    units = {group_of.get(item, item) for item in splits.calibration}
    if len(splits.calibration) >= 2 and len(units) < LEAST_ITEMS:
        warnings.append(
            f"{counted(len(units), 'item')} for calibration set no threshold (items of one group count as one): "
            f"`export` needs {LEAST_ITEMS}, and makes a bundle without a threshold. A gallery of {LEAST_ITEMS} items "
            "sets its own"
        )
    return warnings
