"""Axes of a search: a range or a list of choices for each name.

As text     learning_rate=1e-5..1e-3:log   items_per_batch=8..32:step=8   loss=smooth_ap,proxy_anchor
In TOML     learning_rate = {low = 1e-5, high = 1e-3, log = true}         loss = ["smooth_ap", "proxy_anchor"]
            "loss.alpha" = "16..64"
`search_targets` defines the names and their values.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval.errors import DataError, InvalidParameter

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

RANGE_KEYS = {"low", "high", "log", "step"}
EXAMPLES = "Examples: learning_rate=1e-5..1e-3:log, items_per_batch=8..32:step=8, loss=smooth_ap,proxy_anchor"
NONE = "none"  # how the choice of an empty string is written


@dataclass(frozen=True)
class Range:
    """All numbers, or all integers, from `low` to `high`."""

    low: float
    high: float
    log: bool = False  # uniform in the logarithm
    step: float | None = None
    whole: bool = False

    def suggest(self, trial: BaseTrial, name: str) -> float | int:
        """Draw a value."""
        if self.whole:
            return trial.suggest_int(
                name, int(self.low), int(self.high), log=self.log, step=1 if self.step is None else int(self.step)
            )
        return trial.suggest_float(name, self.low, self.high, log=self.log, step=self.step)

    def stored(self, value: Any) -> float | int | None:
        """Return a value as the study stores it, or None if it lies outside."""
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not self.low <= value <= self.high:
            return None
        steps = 0.0 if self.step is None else (value - self.low) / self.step
        return None if abs(steps - round(steps)) > 1e-9 else value

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as a TOML file holds them."""
        values: dict[str, Any] = {"low": self.low, "high": self.high, "log": self.log}
        return values if self.step is None else {**values, "step": self.step}

    def __str__(self) -> str:
        step = "" if self.step is None else f":step={self.step:g}"
        return f"{self.low:g}..{self.high:g}{':log' if self.log else ''}{step}"


@dataclass(frozen=True)
class Choice:
    """Unordered values: strings, booleans, lists or numbers."""

    values: tuple[Any, ...]

    @property
    def words(self) -> list[str]:
        """The values as the study stores them."""
        return [word(value) for value in self.values]

    def suggest(self, trial: BaseTrial, name: str) -> Any:
        """Draw a value."""
        words = self.words
        return self.values[words.index(trial.suggest_categorical(name, words))]

    def stored(self, value: Any) -> str | None:
        """Return a value as the study stores it, or None if it is not a choice."""
        return word(value) if word(value) in self.words else None

    def to_dict(self) -> list[Any]:
        """Return plain values, as a TOML file holds them."""
        return list(self.values)

    def __str__(self) -> str:
        return ",".join(self.words)


Axis = Range | Choice


def word(value: Any) -> str:
    """Return a value as text: a string as it is, an empty one as `none`, anything else as JSON."""
    if isinstance(value, str):
        return value or NONE
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def parse_searches(texts: Iterable[str]) -> dict[str, Axis]:
    """Return the axes of `NAME=SPEC` texts; raise InvalidParameter for a malformed or repeated one."""
    axes: dict[str, Axis] = {}
    for text in texts:
        name, equals, spec = text.partition("=")
        if not equals or not name.strip():
            raise InvalidParameter("--search", "be NAME=LOW..HIGH or NAME=A,B,…", text, remedy=EXAMPLES)
        _add(axes, name, parse_axis(name, spec))
    return axes


def read_searches(path: Path) -> dict[str, Axis]:
    """Return the axes of a TOML file; raise DataError if it is not TOML, InvalidParameter for a malformed axis."""
    try:
        values = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid TOML: {error}") from error
    axes: dict[str, Axis] = {}
    for name, spec in _flat(values):
        _add(axes, name, parse_axis(name, spec))
    return axes


def parse_axis(name: str, spec: object) -> Axis:
    """Return the axis of a text, a table {low, high, log, step} or a list of choices."""
    if isinstance(spec, str):
        spec = _table(spec.strip())
    if isinstance(spec, Mapping):
        return _range(name, spec)
    if isinstance(spec, Sequence):
        return _choice(name, spec)
    raise InvalidParameter(f"search of {name}", "be a range or a list of choices", spec, remedy=EXAMPLES)


def canonical(name: str) -> str:
    """Return a name as the study stores it: `learning-rate` becomes `learning_rate`."""
    return name.strip().replace("-", "_")


def _add(axes: dict[str, Axis], name: str, axis: Axis) -> None:
    if canonical(name) in axes:
        raise InvalidParameter("--search", "name each setting once", name)
    axes[canonical(name)] = axis


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and not RANGE_KEYS & set(value):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _table(text: str) -> Mapping[str, Any] | list[Any]:
    """Return the TOML value of a text: the table of a range or a list of choices."""
    span, *options = text.split(":") if ".." in text else [""]
    low, dots, high = span.partition("..")
    if not dots:
        return [_plain(part) for part in _parts(text)]
    values: dict[str, Any] = {"low": _plain(low), "high": _plain(high)}
    for option in options:
        key, equals, value = option.partition("=")
        values[key.strip()] = _plain(value) if equals else True
    return values


def _range(name: str, table: Mapping[str, Any]) -> Range:
    where = f"search of {name}"
    unknown = sorted(set(table) - RANGE_KEYS)
    if unknown or not {"low", "high"} <= set(table):
        raise InvalidParameter(where, "have low, high and optionally log or step", dict(table), remedy=EXAMPLES)
    low, high, step = table["low"], table["high"], table.get("step")
    for value in (low, high) if step is None else (low, high, step):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise InvalidParameter(where, "be a range of numbers", value, remedy=EXAMPLES)
    log = table.get("log", False)
    if not isinstance(log, bool):
        raise InvalidParameter(f"log of {where}", "be true or false", log)
    if not low < high:
        raise InvalidParameter(where, "have a low end below its high end", f"{low:g}..{high:g}", remedy=EXAMPLES)
    if log and low <= 0:
        raise InvalidParameter(where, "start above zero on a log scale", low)
    if step is not None and (log or not 0 < step <= high - low):
        raise InvalidParameter(where, "have a step within the range, and no log scale with a step", step)
    return Range(low, high, log=log, step=step)


def _choice(name: str, values: Sequence[Any]) -> Choice:
    choice = Choice(tuple("" if value == NONE else value for value in values))
    if len(choice.words) < 2 or len(set(choice.words)) < len(choice.words):
        raise InvalidParameter(
            f"search of {name}", "be a range or at least two different choices", choice.words, remedy=EXAMPLES
        )
    return choice


def _parts(text: str) -> list[str]:
    """Split a text at commas outside of brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text)]


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return _number(text.strip())


def _number(text: str) -> Any:
    try:
        return float(text)  # .5 and 1. are not JSON
    except ValueError:
        return text
