"""Contents that a gallery keeps beside its photos: draws, labelled queries, and vectors to make draws with.

Each content is an npz of arrays under one name. Vectors count as long as the file of their photo is the same. Galleries
of version 0.2.0 name photos by their numbers (`seqs`); these become photo ids when a content is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.database import RESTORE
from index.errors import GalleryCorrupt
from index.files import load_arrays, pack_arrays
from index.gallery import Gallery
from index.location import AnyGallery
from index.photos import CONTENT, NONE, Photos
from index.upkeep.contents_020 import FOLDS_HASH, MOVES, by_number, read_folds_file
from retrieval.bundle.bundle import pack_features, unpack_features
from retrieval.errors import command
from retrieval.measuring.drawing import PartVectors, groups_of
from retrieval.measuring.draws import AllDraws, Draws, Probes, Rows, Texts
from retrieval.measuring.folds import FoldVectors


class Kept(StrEnum):
    """Names of the contents."""

    DRAWS = "draws"
    LOOKS = "second looks"  # vectors of second looks at photos
    WINDOWS = "windows"  # vectors of windows of photos
    NAMES = "names"  # vectors of items' names
    FOLDS = "fold vectors"  # vectors of photos by fold models
    QUERIES = "labelled queries"


ANEW = f"Index the photos again: `{command('index', 'BUNDLE', 'PHOTOS', '-o', 'GALLERY')}`"
ABOUT, SEPARATOR = "about", "/"  # in the npz of draws: name of what all draws share, and separator of source and field
DAMAGE = (
    GalleryCorrupt,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)  # errors of damaged contents that can be made anew


def read(gallery: AnyGallery, name: Kept) -> dict[str, NDArray[Any]] | None:
    """Return the arrays of a content, None if the gallery does not keep it; raise GalleryCorrupt if it is damaged."""
    content = gallery.kept(name)
    return None if content is None else load_arrays(content)


def pack_draws(draws: AllDraws) -> bytes:
    """Return draws as a content."""
    about = {"model": draws.model, "fitted": sorted(draws.fitted), "version": draws.version, "mark": draws.mark}
    about |= {"looks": draws.looks}
    arrays: dict[str, Any] = {ABOUT: np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
    for source, sample in draws.sources.items():
        arrays |= {f"{source}{SEPARATOR}{name}": value for name, value in sample.arrays().items()}
    return pack_arrays(arrays)


def read_draws(gallery: AnyGallery) -> AllDraws | None:
    """Return the draws that a gallery keeps, None if there are none or they are damaged."""
    try:
        arrays = read(gallery, Kept.DRAWS)
        return None if arrays is None else _draws_of(arrays, gallery)
    except DAMAGE:
        return None


def _draws_of(arrays: dict[str, NDArray[Any]], gallery: AnyGallery) -> AllDraws:
    about = json.loads(arrays.pop(ABOUT).tobytes())
    sources: dict[str, dict[str, Any]] = {}
    for name, value in arrays.items():
        source, _, key = name.rpartition(SEPARATOR)
        sources.setdefault(source, {})[key] = value
    is_old = any("seqs" in values for values in sources.values())
    draws = {name: _draws_020(values, gallery) if is_old else Draws.checked(values) for name, values in sources.items()}
    mark = tuple(map(int, (*about["fingerprint"], about["until"]) if is_old else about["mark"]))
    return AllDraws(
        str(about["model"]),
        draws,
        frozenset(about["fitted"]),
        int(about["version"]),
        mark,
        bool(about.get("looks")),
        all("rivals" in values for values in sources.values()),
    )


def _draws_020(values: dict[str, Any], gallery: AnyGallery) -> Draws:
    """Return draws of version 0.2.0, which name photos by numbers and may lack groups and rivals."""
    none, count = Draws.none(), len(values["items"])
    given = {name: value for name, value in values.items() if name not in ("seqs", "own_nearest")}
    given |= {name: _by_number(gallery, values[name])[0] for name in ("nearest", "duplicates")}
    given.setdefault("rivals", np.full((count, none.rivals.shape[1]), NONE))
    given.setdefault("without", np.full((count, none.without.shape[1]), np.inf))
    if "groups" not in given:
        numbers = gallery.snapshot().item_numbers(sorted({*values["items"].tolist()}))
        of = np.array([numbers.get(item, NONE) for item in values["items"].tolist()], dtype=np.int64)
        given["groups"] = groups_of(gallery.snapshot(), of, values["items"])
    return Draws.checked(given)


def _by_number(gallery: AnyGallery, seqs: Rows) -> tuple[Texts, Texts]:
    """Return the ids (n,) of photos by their numbers in a gallery of version 0.2.0, and the hashes of their files."""
    if not isinstance(gallery, Gallery):
        return np.full(len(seqs), ""), np.full(len(seqs), "")
    return by_number(gallery.snapshot(), gallery.kept(MOVES), seqs)


def contents_of(photos: Photos, photo_ids: Texts) -> Texts:
    """Return the hashes of the files of photos (n,), "" for a photo that is not there or has none."""
    positions = photos.positions(photo_ids.tolist())
    there, hashes = positions != NONE, np.full(len(positions), "", dtype=object)
    hashes[there] = [str(metadata.get(CONTENT) or "") for *_, metadata in photos.photos_at(positions[there])]
    return hashes.astype(str)


def _vectors(arrays: Mapping[str, NDArray[Any]], gallery: AnyGallery) -> tuple[Texts, NDArray[Any]]:
    """Return the ids (n,) of the photos that still show what their vectors (n, ...) were made of, and the vectors."""
    is_new = "ids" in arrays
    ids, contents = (arrays["ids"], arrays["contents"]) if is_new else _by_number(gallery, arrays["seqs"])
    same = (ids != "") & (contents_of(gallery.snapshot(), ids) == contents)
    vectors = arrays["vectors"]
    if vectors.ndim != 3 or vectors.shape[2] != gallery.dim or vectors.dtype.kind != "f" or not vectors.shape[1]:
        raise ValueError(f"vectors are {vectors.dtype} {vectors.shape}, not (n, k, {gallery.dim})")
    if not np.isfinite(vectors).all():
        raise ValueError("vectors have values that are not finite")
    return ids[same], vectors[same]


def pack_parts(parts: PartVectors, photos: Photos) -> bytes:
    """Return vectors of parts of photos as a content."""
    return pack_arrays({"ids": parts.ids, "contents": contents_of(photos, parts.ids), "vectors": parts.vectors})


def read_parts(gallery: AnyGallery, name: Kept) -> PartVectors | None:
    """Return the vectors of LOOKS or WINDOWS that a gallery keeps, None if there are none or they are damaged."""
    try:
        arrays = read(gallery, name)
        if arrays is None:
            return None
        return PartVectors(*_vectors(arrays, gallery))
    except DAMAGE:
        return None


def pack_folds(folds: FoldVectors, photos: Photos) -> bytes:
    """Return fold vectors of photos as a content."""
    contents = contents_of(photos, folds.ids)
    return pack_arrays({"key": np.array(folds.key), "ids": folds.ids, "contents": contents, "vectors": folds.vectors})


def read_folds(gallery: AnyGallery, key: str) -> FoldVectors | None:
    """Return the vectors by the fold models of a key, None if there are none; raise GalleryCorrupt for damage."""
    try:
        arrays = read(gallery, Kept.FOLDS) or _folds_020(gallery)
        if arrays is None or str(arrays["key"]) != key:
            return None
        return FoldVectors(key, *_vectors(arrays, gallery))
    except (ValueError, KeyError) as error:
        raise GalleryCorrupt(f"the fold vectors of {gallery.path} cannot be read: {error}", remedy=ANEW) from error


def _folds_020(gallery: AnyGallery) -> dict[str, NDArray[Any]] | None:
    """Return the arrays of the file of version 0.2.0, None if there is none; raise ValueError if it was changed."""
    digest = gallery.kept(FOLDS_HASH)
    return None if digest is None else read_folds_file(Path(gallery.path), digest)


def pack_queries(queries: Probes, features_key: str) -> bytes:
    """Return labelled queries as a content, with their local features if there is a `features_key`."""
    arrays: dict[str, Any] = {
        name: np.array(getattr(queries, name), dtype=str)
        for name in ("ids", "items", "groups")
        if getattr(queries, name)
    }
    arrays |= {} if queries.looks is None else {"looks": queries.looks}
    if features_key:
        packed = pack_features(dict(zip(queries.ids, queries.features, strict=True)))
        arrays |= {"features": np.frombuffer(packed, dtype=np.uint8), "features_key": np.array(features_key)}
    return pack_arrays({"vectors": queries.vectors, **arrays})


def read_queries(gallery: AnyGallery, features_key: str = "") -> Probes | None:
    """Return the labelled queries that a gallery keeps, None if there are none.

    With a `features_key`, which identifies how local features are computed, queries without these features are
    ignored.
    """
    arrays = read(gallery, Kept.QUERIES)
    if arrays is None:
        return None
    groups = arrays["groups"].tolist() if "groups" in arrays else ()
    vectors, ids, items = arrays["vectors"], arrays["ids"].tolist(), arrays["items"].tolist()
    if vectors.shape != (len(ids), gallery.dim) or len(items) != len(ids) or len(groups or ids) != len(ids):
        raise GalleryCorrupt(f"the {Kept.QUERIES} of {gallery.path} do not fit together", remedy=RESTORE)
    looks = arrays.get("looks")
    if looks is not None and looks.shape != vectors.shape:
        raise GalleryCorrupt(f"the {Kept.QUERIES} of {gallery.path} do not fit together", remedy=RESTORE)
    queries = Probes(vectors, ids, items, groups=groups, looks=looks)
    if not features_key:
        return queries
    if "features" not in arrays or str(arrays["features_key"]) != features_key:
        return None
    stored = unpack_features(arrays["features"].tobytes())
    return replace(queries, features=[stored[photo_id] for photo_id in queries.ids])
