"""Groups of items: items of one group are no rivals of each other, such as one product under two ids.

A photo names the group of its item under the metadata key GROUP. The group of an item is that of its first photo.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

GROUP = "group"  # metadata key of the group of an item


def group_of(item_id: str, metadata: Mapping[str, Any]) -> str:
    """Return the group of an item, "" if it has none.

    A folder above the folders of items is a category: its items are rivals.
    """
    value = metadata.get(GROUP)
    group = "" if value is None or value is False else str(value)
    return "" if item_id.startswith(f"{group}/") else group


def group_key(item_id: str, group: str) -> str:
    """Return the key of the group of an item, or the item id if it has none. No group has the key of an item."""
    return f"group {hashlib.sha256(group.encode(errors='surrogatepass')).hexdigest()[:16]}" if group else item_id


def group_number(key: str) -> int:
    """Return the number of the group or item with a key, the same in every gallery."""
    return int.from_bytes(hashlib.sha256(key.encode(errors="surrogatepass")).digest()[:8], "big", signed=True)


def number_of(item_id: str, metadata: Mapping[str, Any]) -> int:
    """Return the number of an item's group, or of the item if it has none, given the metadata of its first photo."""
    return group_number(group_key(item_id, group_of(item_id, metadata)))


def groups_by_item(values: Iterable[tuple[str, str, Any]]) -> dict[str, str]:
    """Return the group of each item, "" if it has none, given photo_id, item_id and group of all photos in order."""
    return {item: group_of(item, {GROUP: value}) for _, item, value in reversed(list(values))}
