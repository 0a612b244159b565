"""Validation of arguments before anything is written.

Shapes: n vectors, d = embedding size.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .database import Database
from .errors import InvalidParameter, listed
from .features import FeatureFormat, check_features
from .search.filters import BOOLEAN, NUMBER, TEXT, kind_of

MAX_METADATA = 64 * 1024  # bytes of JSON per photo; each search reads and returns the metadata of its matches
MAX_DEPTH = 64  # levels of lists and objects in metadata; an answer may nest them deeper, up to the 255 of JSON writers
LENGTH_TOLERANCE = 1e-3  # maximum deviation of a vector's length from one
LONGEST_ACTOR, LONGEST_ID = 200, 500  # characters
ROUNDING = 1e-6  # deviation due to float32 rounding alone; the `slack` of the candidates relies on it

JSON_TYPES = {TEXT: ("text", "null"), NUMBER: ("integer", "real", "null"), BOOLEAN: ("true", "false", "null")}


def check_ids(name: str, ids: Sequence[str]) -> list[str]:
    """Return ids as a list; raise InvalidParameter for a single string or ids that UTF-8 cannot encode."""
    if isinstance(ids, str):
        raise InvalidParameter(name, "be a sequence of ids", ids, remedy=f"Pass [{ids!r}]")
    for value in ids:
        if not isinstance(value, str) or not value or value.endswith("\0"):
            raise InvalidParameter(name, "hold strings that are not empty and do not end with a zero byte", value)
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidParameter(name, "be valid Unicode", value, remedy="Rename the file or the id") from error
    return list(ids)


def check_lengths(name: str, ids: Sequence[str]) -> None:
    """Raise InvalidParameter if an id is longer than a new one may be."""
    for value in ids:
        if len(value) > LONGEST_ID:
            raise InvalidParameter(name, f"have at most {LONGEST_ID} characters", f"{value[:60]}…")


def check_actor(actor: str, *, parameter: str = "actor") -> str:
    """Return the name of an actor: one line of text for the change log."""
    if not isinstance(actor, str) or not actor.strip() or not actor.isprintable() or len(actor) > LONGEST_ACTOR:
        raise InvalidParameter(parameter, f"be 1 to {LONGEST_ACTOR} printable characters", actor)
    return actor


def check_vectors(vectors: ArrayLike, dim: int) -> NDArray[np.float32]:
    """Return vectors (n, d) scaled to length one; vectors of length one within rounding stay bit-identical."""
    try:
        if np.iscomplexobj(vectors):
            raise TypeError
        exact = np.asarray(vectors, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidParameter("vectors", f"be numbers (n, {dim})", type(vectors).__name__) from error
    if exact.ndim != 2 or exact.shape[1] != dim:
        raise InvalidParameter("vectors", f"be (n, {dim})", exact.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.vecdot(exact, exact))
        off = np.abs(lengths - 1)
    if (off <= ROUNDING).all():
        return exact.astype(np.float32)
    wrong = ~(off <= LENGTH_TOLERANCE)  # catches NaN, too
    if wrong.any():
        raise InvalidParameter("vectors", "be finite and of length one", float(lengths[wrong][0]))
    return (exact / np.where(off <= ROUNDING, 1.0, lengths)[:, None]).astype(np.float32)


def check_values(metadata: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Raise InvalidParameter if a value of a declared column is not of its kind, or a text cannot be compared.

    No filter would find them.
    """
    for values in metadata:
        check_texts(values)
        for name, kind in columns.items():
            value = values.get(name)
            if value is not None and kind_of(value) != kind:
                raise InvalidParameter(f"metadata {name}", f"be a {kind}, as the column is declared", value)


def check_texts(metadata: Mapping[str, Any]) -> None:
    """Raise InvalidParameter for a text with a null character, at which SQLite would cut it."""
    for name, value in metadata.items():
        if isinstance(value, str) and "\0" in value:
            raise InvalidParameter(f"metadata {name}", "have no null character", value, remedy="Remove it")


def encode_metadata(metadata: Mapping[str, Any]) -> str:
    """Return metadata as JSON text with sorted keys; raise InvalidParameter if it is invalid or too long."""
    try:
        text = json.dumps(dict(metadata), sort_keys=True, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except RecursionError as error:
        raise _too_deep() from error
    except (TypeError, ValueError) as error:
        own = {name: value for name, value in metadata.items() if str(name)[:1] != "_"}  # without reserved keys
        raise InvalidParameter("metadata", f"hold JSON values ({error})", own) from error
    if size > MAX_METADATA:
        raise InvalidParameter(
            "metadata",
            f"have at most {MAX_METADATA:,} bytes as JSON",
            size,
            remedy="Keep long texts elsewhere, under the photo's id",
        )
    level: list[Any] = [metadata]
    for _ in range(MAX_DEPTH):
        if not level:
            return text
        outer = [value.values() if isinstance(value, Mapping) else value for value in level]
        level = [value for values in outer for value in values if isinstance(value, Mapping | list | tuple)]
    if level:
        raise _too_deep()
    return text


def _too_deep() -> InvalidParameter:
    return InvalidParameter("metadata", f"be nested at most {MAX_DEPTH} levels deep", "more")


def check_stored(database: Database, name: str, kind: str) -> None:
    """Raise InvalidParameter if the stored value of a metadata key is of another kind for some photo."""
    marks = ", ".join("?" * len(JSON_TYPES[kind]))
    query = f"SELECT photo_id FROM photos WHERE json_type(metadata, ?) NOT IN ({marks}) LIMIT 1"  # noqa: S608 (marks)
    for (photo_id,) in database.rows(query, (f"$.{name}", *JSON_TYPES[kind])):
        rule = f"be a {kind} in every photo"
        raise InvalidParameter(f"column {name}", rule, str(photo_id), remedy="Declare another kind")


@dataclass(frozen=True)
class Additions:
    """Checked photos to be added."""

    photo_ids: list[str]
    item_ids: list[str]
    vectors: NDArray[np.float32]  # (n, d) of length one
    metadata: Sequence[Mapping[str, Any]]
    thumbnails: Sequence[bytes | None]
    features: Sequence[bytes] | None  # in a gallery with features


def check_additions(
    photo_ids: Sequence[str],
    item_ids: Sequence[str],
    vectors: ArrayLike,
    metadata: Sequence[Mapping[str, Any]] | None,
    thumbnails: Sequence[bytes | None] | None,
    features: Sequence[bytes] | None = None,
    *,
    dim: int,
    features_key: str = "",
    feature_format: FeatureFormat | None = None,
) -> Additions:
    """Return the checked photos; raise InvalidParameter if the arguments differ in length or are invalid."""
    checked = Additions(
        check_ids("photo_ids", photo_ids),
        check_ids("item_ids", item_ids),
        check_vectors(vectors, dim),
        [{}] * len(photo_ids) if metadata is None else metadata,
        [None] * len(photo_ids) if thumbnails is None else thumbnails,
        check_features(features, photo_ids, features_key, feature_format),
    )
    count = len(checked.photo_ids)
    for name in ("item_ids", "vectors", "metadata", "thumbnails"):
        if len(getattr(checked, name)) != count:
            raise InvalidParameter(name, f"have one entry per photo_id ({count})", len(getattr(checked, name)))
    for thumbnail in checked.thumbnails:
        if not isinstance(thumbnail, bytes | None):
            raise InvalidParameter("thumbnails", "hold bytes or None", type(thumbnail).__name__)
    check_lengths("photo_ids", checked.photo_ids)
    check_lengths("item_ids", checked.item_ids)
    repeated = [photo_id for photo_id, times in Counter(checked.photo_ids).items() if times > 1]
    if repeated:
        raise InvalidParameter("photo_ids", "not repeat an id", listed(repeated))
    return checked


def check_removals(photo_ids: Sequence[str] | None, item_ids: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return the ids of the photos and items to remove; raise InvalidParameter if neither is given."""
    if photo_ids is None and item_ids is None:
        raise InvalidParameter("photo_ids or item_ids", "be given", None)
    return check_ids("photo_ids", photo_ids or []), check_ids("item_ids", item_ids or [])


def refuse_present(present: set[str]) -> None:
    """Raise an error if some photos are already in the gallery."""
    if present:
        raise InvalidParameter(
            "photo_ids", "not be in the gallery yet", listed(sorted(present)), remedy="Pass upsert=True to replace"
        )


def refuse_absent(absent: Sequence[str]) -> None:
    """Raise an error if some photos are not in the gallery."""
    if absent:
        raise InvalidParameter("photo_ids", "be in the gallery", listed(sorted(absent)), remedy="Add them first")
