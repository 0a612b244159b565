"""Item ids as people write them: their plain form, the spelling that a gallery has, look-alikes and nearest ids."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from retrieval.errors import MOST_LISTED, counted

from .photos import Photo, plain

PADDING = re.compile(r"^0+(?=\w)|(?<=\d)\.0+$")  # what programs write around a number that is an id: 0042, 42.0


def as_spelled(photos: Sequence[Photo], items: Iterable[str]) -> list[Photo]:
    """Return the photos with the items of a gallery spelled as they are there.

    An item is the same if its plain form is. In a folder without sub-folders, the item of `kiwi.jpg` is `kiwi`, or
    `kiwi.jpg` if the gallery calls it so.
    """
    known = set(items)
    spelled = {plain(item): item for item in known}
    named = [_spelling(photo, known, spelled) for photo in photos]
    return [
        photo if photo.item_id == item else replace(photo, item_id=item, group=_category(photo, item))
        for photo, item in zip(photos, named, strict=True)
    ]


def _spelling(photo: Photo, known: Collection[str], spelled: Mapping[str, str]) -> str:
    if photo.item_id in known:
        return photo.item_id
    is_file = photo.photo_id in known and photo.item_id == photo.metadata.get("name")
    return photo.photo_id if is_file else spelled.get(plain(photo.item_id), photo.item_id)


def _category(photo: Photo, item: str) -> str:
    """Return the group of a photo whose item is spelled otherwise: a category is the beginning of the item."""
    return (
        "/".join(item.split("/")[: photo.group.count("/") + 1])
        if photo.item_id.startswith(f"{photo.group}/")
        else photo.group
    )


def look_alikes(items: Iterable[str]) -> list[str]:
    """Return each set of ids that the eye cannot tell apart, as text: equal but for case, spaces and Unicode forms."""
    alike: dict[str, list[str]] = defaultdict(list)
    for item in items:
        visible = item if item.isascii() else "".join(c for c in item if unicodedata.category(c) != "Cf")
        alike[" ".join(unicodedata.normalize("NFKC", visible).casefold().split())].append(item)
    return [" and ".join(map(repr, sorted(ids))) for ids in alike.values() if len(ids) > 1]


def nearest(missing: Iterable[str], items: Collection[str]) -> dict[str, str]:
    """Return the id of a gallery that is most like each id that it lacks, in words, for as many as a message shows."""
    folded = {PADDING.sub("", item.casefold()): item for item in items}
    near = {
        item: get_close_matches(PADDING.sub("", item.casefold()), folded, n=1) for item in sorted(missing)[:MOST_LISTED]
    }
    return {item: f"near {folded[names[0]]!r}" for item, names in near.items() if names}


def describe_missing(counts: Mapping[str, int], items: Collection[str]) -> list[str]:
    """Return a line for each id that a gallery lacks: "'1.0' (2 photos; near '1')"."""
    near = nearest(counts, items)
    return [
        f"{item!r} ({'; '.join(filter(None, (counted(count, 'photo'), near.get(item))))})"
        for item, count in sorted(counts.items())
    ]
