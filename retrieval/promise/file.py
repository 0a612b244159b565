"""The file of a promise: JSON that any language reads, with the mean vectors of the items in a .npz file beside it."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from index.files import load_arrays, naming, pack_arrays, write_file
from index.search.item_distance import ItemDistance
from retrieval.errors import DataError, InvalidParameter, check_format

from .checks import UNIT
from .contents import Contents
from .levels import Level, Limit, PValues
from .metric import METRICS, Metric
from .neighbours import ItemMeans
from .vectors import lengths

FORMAT = 1
MOST = 10  # of a constant of the item distance, and of an item distance
LARGEST = 2**26, 2**34  # bytes of the JSON file and of the .npz file that are read
KINDS = {"ids": "U", "means": "f", "groups": "i", "cosines": "f"}  # of the arrays in the .npz file
AGAIN = "Measure the promise again"
LONGEST = 200  # characters of an error that is quoted


def means_path(path: Path) -> Path:
    """Return the path of the mean vectors beside a promise."""
    return path.with_name(f"{path.name}.npz")


def write(promise: Contents, path: Path) -> None:
    """Write a promise, with its mean vectors beside it if it has them; without them, older ones are deleted.

    If the disk is full, the files that were there before stay. Raises OSError with the file's name.
    """
    means, data, digest = promise.means, b"", None
    if means is not None:
        arrays = {**{name: getattr(means, name) for name in KINDS}, "means": means.means.astype(np.float16)}
        data = pack_arrays(arrays)
        digest = hashlib.sha256(data).hexdigest()
    values = _to_json(promise) | {"means_sha256": digest}
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with naming(path):
            write_file(aside, json.dumps(values, indent=1, allow_nan=False) + "\n")
        if means is not None:
            write_file(means_path(path), data)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    if means is None:
        means_path(path).unlink(missing_ok=True)


def read(path: Path) -> Contents:
    """Read a promise; raise DataError if there is none, or it is damaged, or of a later version."""
    data = _bytes(path, LARGEST[0])
    try:
        values = json.loads(data, parse_constant=_number)
        version = values["format"]
        check_format(version, FORMAT, path, DataError, remedy=AGAIN)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is not a promise: {_short(error)}", remedy="`retrieval promise` makes one") from error
    try:
        return _from_json(values, _means(values, path))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(f"{path} is damaged: {_short(error)}", remedy=AGAIN) from error


def _short(error: Exception) -> str:
    """Return the name of an error and the beginning of its text, which may quote the whole file."""
    text = str(error.reason if isinstance(error, UnicodeDecodeError) else error)
    return f"{type(error).__name__}: {text[:LONGEST]}"


def _bytes(path: Path, most: int) -> bytes:
    try:
        if not path.is_file():
            raise DataError(f"{path} is not a file", remedy="`retrieval promise` makes one")
        size = path.stat().st_size
        if size > most:
            raise DataError(f"{path} has {size:,} bytes, and at most {most:,} are read", remedy=AGAIN)
        return path.read_bytes()
    except (OSError, MemoryError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _means(values: Mapping[str, Any], path: Path) -> ItemMeans | None:
    digest = values["means_sha256"]
    if digest is None:
        return None
    beside = means_path(path)
    if not beside.is_file():
        raise DataError(
            f"{beside} is missing: it holds the means of the items, which decisions need",
            remedy="Copy it along, or measure the promise again without means",
        )
    data = _bytes(beside, LARGEST[1])
    if hashlib.sha256(data).hexdigest() != digest:
        raise DataError(f"{beside} does not belong to {path}, or was changed", remedy=AGAIN)
    arrays = load_arrays(data)
    shape = arrays["means"].shape
    for name, kind in KINDS.items():
        if arrays[name].dtype.kind != kind or arrays[name].shape != (shape if name == "means" else shape[:1]):
            raise ValueError(f"{name}: {arrays[name].dtype} {arrays[name].shape}")
    if shape != (values["items"], values["dimension"]) or len({*arrays["ids"].tolist()}) != len(arrays["ids"]):
        raise ValueError(f"means of {shape}, or ids that repeat")
    means, cosines = (arrays[name].astype(np.float32) for name in ("means", "cosines"))
    if not ((np.abs(lengths(means) - 1) <= UNIT).all() and (np.abs(cosines) <= 1 + UNIT).all()):
        raise ValueError("means that are not of length one")
    return ItemMeans(arrays["ids"], means, arrays["groups"].astype(np.int64), cosines)


def _to_json(promise: Contents) -> dict[str, Any]:
    metric, levels = promise.metric, promise.levels
    by_score, by_distance = promise.p_values_of_scores, promise.p_values_of_distances
    return {
        "format": FORMAT,
        "collection": promise.name,
        "measured": promise.measured,
        "vectors": promise.vectors,
        "items": promise.items,
        "dimension": promise.dimension,
        "metric": metric.name,
        "accept": metric.sign,
        "target_fpir": promise.target_fpir,
        "thresholds": [asdict(level) for level in levels],
        "holds_for_items": promise.holds_for_items,
        "known": promise.known,
        "item_distance": promise.distance.to_dict(),
        "p_values": {
            "items": [by_score.items, by_distance.items],
            "scores": metric.scores(by_score.distances).tolist(),
            "score_shares": by_score.shares.tolist(),
            "item_distances": by_distance.distances.tolist(),
            "item_distance_shares": by_distance.shares.tolist(),
        },
        "largest_gap": promise.largest_gap,
        "fingerprint": promise.fingerprint,
        "assumptions": promise.assumptions,
        "warnings": promise.warnings,
        "twins": promise.twins,
        "twins_cost": promise.twins_cost,
    }


def _from_json(values: Mapping[str, Any], means: ItemMeans | None) -> Contents:
    metric = METRICS[values["metric"]]
    if values["accept"] != metric.sign:
        raise ValueError(f"scores of the {metric.formula} are accepted where they are {metric.sign} a threshold")
    p_values = {name: np.array(list(map(_number, each))) for name, each in values["p_values"].items()}
    items = list(map(_count, values["p_values"]["items"]))
    for first, second in (("scores", "score_shares"), ("item_distances", "item_distance_shares")):
        if p_values[first].shape != p_values[second].shape:
            raise ValueError(f"{first} {p_values[first].shape}, {second} {p_values[second].shape}")
    if not metric.are_possible(p_values["scores"]).all():
        raise ValueError(f"scores that are no {metric.formula}")
    promise = Contents(
        name=_text(values["collection"]),
        metric=metric,
        vectors=_count(values["vectors"]),
        items=_count(values["items"]),
        dimension=_count(values["dimension"]),
        target_fpir=_share(values["target_fpir"]),
        levels=tuple(_level(each, metric) for each in values["thresholds"]),
        distance=ItemDistance.from_dict({name: _up_to(MOST, each) for name, each in values["item_distance"].items()}),
        p_values_of_scores=PValues(metric.distances(p_values["scores"]), p_values["score_shares"], items[0]),
        p_values_of_distances=PValues(p_values["item_distances"], p_values["item_distance_shares"], items[1]),
        known=_text(values["known"]),
        largest_gap=_up_to(2, values["largest_gap"]),
        fingerprint={_text(key): f"{int(bits, 16):016x}" for key, bits in values["fingerprint"].items()},
        assumptions=tuple(map(_text, values["assumptions"])),
        warnings=tuple(map(_text, values["warnings"])),
        twins=tuple((_text(first), _text(second)) for first, second in values["twins"]),
        twins_cost=_or_none(values["twins_cost"]),
        measured=_text(values["measured"]),
        means=means,
    )
    if not any(level.target_fpir == promise.target_fpir for level in promise.levels):
        raise InvalidParameter("target_fpir", "be one of the targets", promise.target_fpir)
    return promise


def _level(values: Mapping[str, Any], metric: Metric) -> Level:
    score, distance = _limit(values["score"]), _limit(values["item_distance"])
    if distance is not None and abs(distance.threshold) > MOST:
        raise ValueError(f"{distance.threshold} is no item distance")
    if score is not None and not metric.are_possible([each for each in (score.threshold, score.perhaps) if each]).all():
        raise ValueError(f"{score.threshold} or {score.perhaps} is no {metric.formula}")
    return Level(_share(values["target_fpir"]), score, distance, _text(values["why"]), _count(values["items_needed"]))


def _limit(values: Mapping[str, Any] | None) -> Limit | None:
    if values is None:
        return None
    threshold, perhaps, tpir = _number(values["threshold"]), _or_none(values["perhaps"]), _or_none(values["tpir"])
    return Limit(threshold, _up_to(1, values["fpir"]), _up_to(1, values["fpir_upper"]), tpir, perhaps)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(float(value)):
        raise TypeError(f"{value!r} is not a finite number")
    return float(value)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is not a number of things")
    return value


def _up_to(most: float, value: object) -> float:
    number = _number(value)
    if not 0 <= number <= most:
        raise ValueError(f"{number} does not lie between 0 and {most}")
    return number


def _or_none(value: object) -> float | None:
    return None if value is None else _number(value)


def _share(value: object) -> float:
    number = _number(value)
    if not 0 < number < 1:
        raise ValueError(f"{number} does not lie between 0 and 1")
    return number
