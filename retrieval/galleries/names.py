"""Names of a gallery's items, which searches by words are measured with, and their vectors as a content."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from index.files import pack_arrays
from index.groups import GROUP, group_key, groups_by_item
from index.location import AnyGallery
from index.photos import hashed
from retrieval.bundle.text_embedder import checked_text
from retrieval.errors import InvalidParameter
from retrieval.measuring.drawing import NameVectors

from .kept import DAMAGE, Kept, read


def names_of(gallery: AnyGallery, column: str) -> dict[str, str]:
    """Return the name of each item, its most frequent text in a metadata column, as searches by words read it.

    Names that items of several groups share say nothing about one of them and are left out.
    """
    texts, owners = defaultdict[str, Counter[str]](Counter), defaultdict[str, set[str]](set)
    for _, item, value in gallery.values(column):
        if isinstance(value, str):
            texts[item][value] += 1
    names, groups = {}, groups_by_item(gallery.values(GROUP))
    for item, counts in texts.items():
        with suppress(InvalidParameter):  # nobody can search for it
            names[item] = checked_text(max(sorted(counts), key=counts.__getitem__))
            owners[names[item].casefold()].add(group_key(item, groups.get(item, "")))
    return {item: name for item, name in names.items() if len(owners[name.casefold()]) == 1}


def pack_names(made: NameVectors, names: Mapping[str, str]) -> bytes:
    """Return the vectors of items' names, which are given by item, as a content."""
    texts = hashed(names[item] for item in made.items.tolist())
    arrays = {"key": np.array(made.key), "column": np.array(made.column), "items": made.items}
    return pack_arrays({**arrays, "texts": texts, "vectors": made.vectors})


def read_names(gallery: AnyGallery, key: str, column: str = "") -> NameVectors | None:
    """Return the vectors of the names that items still have, by the text tower of a key, None if there are none.

    With a `column`, they are the vectors that are those of the names in this column, too.
    """
    try:
        arrays = read(gallery, Kept.NAMES)
        if arrays is None or str(arrays["key"]) != key:
            return None
        stored, items, vectors = str(arrays["column"]), arrays["items"], arrays["vectors"]
        names = names_of(gallery, column or stored)
        same = hashed(names.get(item, "") for item in items.tolist()) == arrays["texts"]
        return NameVectors(key, stored, items[same], vectors[same].reshape(-1, gallery.dim))
    except DAMAGE:
        return None
