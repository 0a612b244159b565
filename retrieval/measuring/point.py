"""Operating points: a threshold with its target, its status, where it was measured, and what was measured."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, TypeVar

from retrieval.errors import InvalidParameter

CERTIFIED, ESTIMATED = "certified", "estimated"
UNCALIBRATED = "uncalibrated"  # there is no threshold, so searches only rank items
UNANCHORED = "unanchored"  # status of the bundle's threshold where it serves, because it was not set in that gallery
NOTHING = -math.inf  # a threshold that accepts nothing

T = TypeVar("T")
Origin = Literal["gallery", "bundle", "promise"]  # where a point was measured
GALLERY: Origin = "gallery"  # among the photos that are searched
BUNDLE: Origin = "bundle"  # among the calibration photos of the model
PROMISE: Origin = "promise"  # among vectors that lie elsewhere


@dataclass(frozen=True)
class Shift:
    """The difference in distance to other items between users' photos and catalogue photos of the same items."""

    value: float = 0.0
    error: float = 0.0  # standard error, by bootstrap over items
    items: int = 0

    @property
    def applied(self) -> float:
        """The shift, or 0 if it does not exceed its standard error."""
        return self.value if abs(self.value) > self.error else 0.0

    def margin(self, errors: float) -> float:
        """Return by how much the applied shift may be too great, allowing for some standard errors."""
        return max(0.0, self.applied - self.value + errors * self.error)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**vars(self), "applied": self.applied}


@dataclass(frozen=True)
class Perhaps:
    """The distance up to which a first item that is no match is worth a question, and how often it is right."""

    within: float
    right: float | None = None  # share of the questions whose item is right, with as many known as unknown items
    searches: int = 0  # mated searches that would be answered with a question
    known: float | None = None  # share of mated searches that are answered with a question
    unknown: float | None = None  # share of searches for unknown items that are answered with a question
    measured_on: str | None = None  # kind of the mated searches


@dataclass(frozen=True)
class Rates:
    """Error rates at a threshold, None where they were not measured. See `retrieval.metrics.identification`."""

    fpir: float | None = None  # share of the draws that return a match
    fpir_expected: float | None = None  # FPIR to expect of new items
    fpir_upper: float | None = None  # upper 95 % bound
    tpir: float | None = None
    tpir_of: str | None = None  # kind of the queries of the TPIR
    closest_is_right: float | None = None  # share of mated queries whose own item comes first, at any distance
    misidentification: float | None = None
    fnir_any_rank: float | None = None
    precision: Mapping[str, float | None] | None = None  # share of right matches, by share of unknown items
    queries: int | None = None
    items: int | None = None
    consistency: Mapping[str, float] | None = None  # see `retrieval.metrics.consistency.Consistency`


@dataclass(frozen=True)
class Basis:
    """The photos and searches that a point was measured with, None where a value does not apply."""

    gallery_items: int | None = None
    gallery_version: int | None = None
    least_items: int | None = None  # minimum of a gallery in which the threshold of a bundle decides
    items_drawn: int | None = None
    cross_fitted: int | None = None  # items that were drawn by fold models
    sources: Mapping[str, int] | None = None  # number of groups by source of draws
    looks: int | None = None  # at a photo, of which the nearest decides; None for one
    duplicates: int | None = None  # draws with a copy of the photo under another item
    twins: tuple[tuple[str, str], ...] | None = None  # pairs of items that look like one item under two ids
    assumptions: tuple[str, ...] | None = None
    confidence: float | None = None  # of the upper bound
    fpir_on_other_half: tuple[float, ...] | None = None  # quantiles over halves of the items
    fpir_range: tuple[float, ...] | None = None  # FPIR that one threshold realised in different catalogues
    clusters: int | None = None  # independent groups of items
    clusters_are: str | None = None
    items_needed: int | None = None  # number that certifies the target if no item has an error


@dataclass(frozen=True)
class Point:
    """A threshold, its target FPIR, and what was measured at it."""

    threshold: float  # NOTHING if the status is UNCALIBRATED
    status: str  # CERTIFIED, ESTIMATED or UNCALIBRATED
    target_fpir: float
    origin: Origin = BUNDLE
    rates: Rates = field(default_factory=Rates)
    basis: Basis = field(default_factory=Basis)
    perhaps: Perhaps | None = None
    shift: Shift = field(default_factory=Shift)

    @classmethod
    def uncalibrated(cls, target_fpir: float, *, origin: Origin = BUNDLE) -> Self:
        """Return the point of a bundle without a threshold, with the target for galleries that set one."""
        if not 0 < target_fpir < 1:
            raise InvalidParameter("target_fpir", "lie between 0 and 1", target_fpir)
        return cls(NOTHING, UNCALIBRATED, target_fpir, origin)

    @property
    def decides(self) -> bool:
        """Return whether there is a threshold, which decides between match and no-match."""
        return self.status != UNCALIBRATED

    @property
    def is_anchored(self) -> bool:
        """Return whether the point was measured in the gallery that is searched."""
        return self.origin == GALLERY

    @property
    def served_status(self) -> str:
        """The status in answers: UNANCHORED for a threshold that was not set in the gallery."""
        return UNANCHORED if self.decides and self.origin == BUNDLE else self.status

    @property
    def threshold_or_none(self) -> float | None:
        """The threshold, or None if there is none, for JSON, which has no infinity."""
        return self.threshold if self.decides else None

    @property
    def evidence(self) -> dict[str, Any]:
        """What was measured, as plain JSON values, for people and programs to read; nothing here decides."""
        values: dict[str, Any] = {"anchored": True} if self.is_anchored else {}
        if self.is_anchored or self.shift != Shift():
            values["shift"] = self.shift.to_dict()
        for part in (self.rates, self.basis):
            values |= {each.name: getattr(part, each.name) for each in fields(part)}
        always = ("tpir", "tpir_of") if self.is_anchored and self.basis.items_drawn is not None else ()
        values = {name: _plain(value) for name, value in values.items() if value is not None or name in always}
        perhaps = {} if self.perhaps is None else {"perhaps": dict(vars(self.perhaps))}
        return values | perhaps

    def to_dict(self) -> dict[str, Any]:
        """Return the operating point as plain JSON values."""
        return {
            "threshold": self.threshold_or_none,
            "status": self.status,
            "target_fpir": self.target_fpir,
            "origin": self.origin,
            "evidence": self.evidence,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Create a point from the output of `to_dict`, also of version 0.2.0. Raises InvalidParameter otherwise."""
        threshold, status, target = values["threshold"], str(values["status"]), values["target_fpir"]
        decides = status in (CERTIFIED, ESTIMATED)
        if not decides and (status != UNCALIBRATED or threshold is not None):
            raise InvalidParameter("status", f"be {CERTIFIED} or {ESTIMATED} where there is a threshold", status)
        if decides and not (_is_number(threshold) and threshold >= 0):
            raise InvalidParameter("threshold", "be a distance of at least 0", threshold)
        if not (_is_number(target) and 0 < target < 1):
            raise InvalidParameter("target_fpir", "lie between 0 and 1", target)
        evidence = values["evidence"]
        if not isinstance(evidence, Mapping):
            raise InvalidParameter("evidence", "be an object", evidence)
        origin = values.get("origin", GALLERY if evidence.get("anchored") else BUNDLE)
        if origin not in (GALLERY, BUNDLE, PROMISE):
            raise InvalidParameter("origin", f"be {GALLERY}, {BUNDLE} or {PROMISE}", origin)
        perhaps = evidence.get("perhaps")
        return cls(
            float(threshold) if decides else NOTHING,
            status,
            float(target),
            origin,
            _read(Rates, evidence),
            _read(Basis, evidence),
            None if perhaps is None else _read(Perhaps, perhaps),
            _read(Shift, evidence.get("shift", {})),
        )


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value


def _is_number(value: Any) -> bool:
    """Return whether a value is a finite number; JSON may hold whole numbers beyond those of floats."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {  # by the beginning of a field's type
    "float": ("be a finite number", _is_number),
    "int": ("be a finite number", _is_number),
    "str": ("be text", _is_text),
    "Mapping": (
        "name finite numbers",
        lambda value: isinstance(value, Mapping) and all(each is None or _is_number(each) for each in value.values()),
    ),
    "tuple[float": ("be a list of numbers", lambda value: isinstance(value, list) and all(map(_is_number, value))),
    "tuple[str": ("be a list of texts", lambda value: isinstance(value, list) and all(map(_is_text, value))),
    "tuple[tuple": (
        "be a list of pairs of texts",
        lambda value: (
            isinstance(value, list)
            and all(isinstance(pair, list) and len(pair) == 2 and all(map(_is_text, pair)) for pair in value)
        ),
    ),
}


def _read(kind: type[T], values: Any) -> T:
    """Return a dataclass of JSON values; raise InvalidParameter for values of other types."""
    if not isinstance(values, Mapping):
        raise InvalidParameter(f"evidence {kind.__name__.lower()}", "be an object", values)
    given: dict[str, Any] = {}
    for each in fields(kind):  # type: ignore[arg-type]
        value = values.get(each.name)
        if value is None:
            continue
        rule, holds = next(RULES[start] for start in RULES if str(each.type).startswith(start))
        if not holds(value):
            raise InvalidParameter(f"evidence {each.name}", rule, value)
        given[each.name] = _tuples(value)
    return kind(**given)
