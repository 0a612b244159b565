"""Search space: settings, and arguments of the loss and of the regularizer, with their values.

learning_rate=1e-5..1e-3:log         a setting of the run, uniform in the logarithm
items_per_batch=8..32:step=8         every eighth integer
loss=smooth_ap,proxy_anchor          one of several words; "none" is the empty one
loss.alpha=16..64                    an argument of every tried loss that has it
regularizer.positive_margin=0.6..0.9  an argument of the regularizer
An argument is drawn only in trials whose loss takes it.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import BaseTrial

from retrieval.errors import InvalidParameter
from training.config import Settings
from training.losses.registry import check_name, loss_arguments, make_loss

EXAMPLES = "Examples: learning_rate=1e-5..1e-3:log, items_per_batch=8..32:step=8, loss=smooth_ap,proxy_anchor"
WEIGHT = "regularizer.weight"
PARTS = {"loss": "loss_arguments", "regularizer": "regularizer_arguments"}
TYPES: Mapping[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
FIXED = {"catalogue", "target_fpir", "seed", "select", "loggers"}  # they decide how a trial is measured
SEARCHABLE = {
    field.name: TYPES[str(field.type)]
    for field in dataclasses.fields(Settings)
    if field.name not in FIXED and str(field.type) in TYPES
}


@dataclasses.dataclass(frozen=True)
class SearchSpace:
    """Checked distributions by name, around the settings that they vary."""

    settings: Settings
    axes: Mapping[str, BaseDistribution]

    @classmethod
    def of(cls, texts: Mapping[str, str], settings: Settings) -> SearchSpace:
        """Return the space of axes given as text.

        Raises
        ------
        InvalidParameter
            For an unknown name, values of a wrong type or out of range, or nothing to search.
        """
        if not texts:
            raise InvalidParameter("--search", "name at least one setting", None, remedy=EXAMPLES)
        axes: dict[str, BaseDistribution] = {}
        for name in sorted(texts, key=lambda name: name not in PARTS):  # arguments depend on the losses
            losses = _losses(name, axes, settings) if "." in name else []
            axes[name] = _distribution(name, texts[name], _kind(name, losses))
            for value in _ends(axes[name]):
                _try_value(name, value, losses, settings)
        return cls(settings, axes)

    def suggest(self, trial: BaseTrial) -> Settings:
        """Return the settings of a trial; raise InvalidParameter for values that do not go together."""
        drawn = {name: _suggest(trial, name, axis) for name, axis in self.axes.items() if "." not in name}
        losses = {part: drawn.get(part, getattr(self.settings, part)) for part in PARTS}
        arguments = {name: axis for name, axis in self.axes.items() if _is_taken(name, losses)}
        return apply(self.settings, drawn | {name: _suggest(trial, name, axis) for name, axis in arguments.items()})

    def given(self) -> dict[str, Any]:
        """Return the values of the settings themselves, or nothing if one is not among the words of its axis."""
        losses = {part: getattr(self.settings, part) for part in PARTS}
        arguments = {
            f"{part}.{name}": value
            for part, loss in losses.items()
            if loss
            for name, value in {**_arguments(part, loss), **getattr(self.settings, PARTS[part])}.items()
        }
        known = vars(self.settings) | arguments
        values = {name: known[name] for name in self.axes if name in known}
        words = {name: axis.choices for name, axis in self.axes.items() if isinstance(axis, CategoricalDistribution)}
        return values if all(values[name] in words[name] for name in values.keys() & words.keys()) else {}


def apply(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return settings with other values. Arguments that a new loss does not take are dropped."""
    changed = {name: value for name, value in values.items() if "." not in name}
    for part, field in PARTS.items():
        given = {f"{part}.{name}": value for name, value in getattr(settings, field).items()}
        losses = {part: changed.get(part, getattr(settings, part))}
        arguments = {name: value for name, value in (given | dict(values)).items() if _is_taken(name, losses)}
        changed[field] = {name.partition(".")[2]: value for name, value in arguments.items()}
    return Settings.from_dict({**settings.to_dict(), **changed})


def _arguments(part: str, loss: str) -> dict[str, Any]:
    """Return the arguments of a loss with their defaults; a regularizer has its weight besides."""
    own, _, weight = WEIGHT.partition(".")
    return {**loss_arguments(loss), **({weight: 1.0} if part == own else {})}


def _is_taken(name: str, losses: Mapping[str, str]) -> bool:
    """Return whether a name is that of an argument of these losses, by part."""
    part, dot, argument = name.partition(".")
    return bool(dot and losses.get(part)) and argument in _arguments(part, losses[part])


def parse_searches(texts: Sequence[str]) -> dict[str, str]:
    """Return the values of each name of NAME=VALUES words, the names as the study stores them."""
    axes: dict[str, str] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise InvalidParameter("--search", "be NAME=LOW..HIGH or NAME=A,B,…", text, remedy=EXAMPLES)
        if name in axes:
            raise InvalidParameter("--search", "name each setting once", name)
        axes[name] = values.strip()
    return axes


def _losses(name: str, axes: Mapping[str, BaseDistribution], settings: Settings) -> list[str]:
    """Return the tried losses that take the argument of an axis."""
    part = name.partition(".")[0]
    if part not in PARTS:
        raise _unknown(name, [*SEARCHABLE, "loss.ARGUMENT", "regularizer.ARGUMENT"])
    axis = axes.get(part)
    tried = axis.choices if isinstance(axis, CategoricalDistribution) else (getattr(settings, part),)
    losses = [str(loss) for loss in tried if loss]
    takes = [loss for loss in losses if _is_taken(name, {part: loss})]
    if not takes:
        raise _unknown(name, sorted({f"{part}.{known}" for loss in losses for known in _arguments(part, loss)}))
    return takes


def _kind(name: str, losses: Sequence[str]) -> type:
    """Return the type of a setting's or an argument's values."""
    if losses:
        part, _, argument = name.partition(".")
        return type(_arguments(part, losses[0])[argument])
    if name not in SEARCHABLE:
        raise _unknown(name, list(SEARCHABLE))
    return SEARCHABLE[name]


def _distribution(name: str, text: str, kind: type) -> BaseDistribution:
    """Return the distribution of a text."""
    try:
        if ".." not in text:
            return CategoricalDistribution(_words(text, kind))
        if kind not in (int, float):
            raise ValueError("only numbers have ranges")
        span, *options = text.split(":")
        low, high = map(kind, span.split(".."))
        steps = [kind(option.removeprefix("step=")) for option in options if option.startswith("step=")]
        if len(options) > len(steps) + options.count("log"):
            raise ValueError("only :log and :step=N can follow a range")
        if not low < high:
            raise ValueError("the low end must be below the high end")
        step = steps[0] if steps else None
        if kind is int:
            return IntDistribution(int(low), int(high), log="log" in options, step=int(step or 1))
        return FloatDistribution(low, high, log="log" in options, step=step)
    except ValueError as error:
        rule = f"be a range of numbers or at least two different choices of type {kind.__name__} ({error})"
        raise InvalidParameter(f"search of {name}", rule, text, remedy=EXAMPLES) from error


def _words(text: str, kind: type) -> list[Any]:
    words = ["" if word.strip() == "none" else word.strip() for word in text.split(",")]
    if len(set(words)) < max(2, len(words)) or (kind is bool and not {"true", "false"}.issuperset(words)):
        raise ValueError("the choices must be valid and different")
    return [word == "true" if kind is bool else kind(word) for word in words]


def _suggest(trial: BaseTrial, name: str, axis: BaseDistribution) -> Any:
    if isinstance(axis, CategoricalDistribution):
        return trial.suggest_categorical(name, axis.choices)
    if isinstance(axis, IntDistribution):
        return trial.suggest_int(name, axis.low, axis.high, log=axis.log, step=axis.step)
    if isinstance(axis, FloatDistribution):
        return trial.suggest_float(name, axis.low, axis.high, log=axis.log, step=axis.step)
    raise TypeError(axis)


def _ends(axis: BaseDistribution) -> Sequence[Any]:
    if isinstance(axis, CategoricalDistribution):
        return axis.choices
    return (axis.low, axis.high) if isinstance(axis, IntDistribution | FloatDistribution) else ()


def _try_value(name: str, value: Any, losses: Sequence[str], settings: Settings) -> None:
    """Raise InvalidParameter for a value that is invalid whatever the other settings are."""
    if name in PARTS and value:
        check_name(value)
    argument = name.rpartition(".")[2]
    try:
        if not losses:
            Settings.from_dict({**settings.to_dict(), name: value})
        for loss in losses if name != WEIGHT else ():
            make_loss(loss, classes=2, dim=2, arguments={argument: value})
    except InvalidParameter as error:
        if error.parameter.rpartition(".")[2] == argument:  # another setting may be searched too and match
            rule = f"have valid values: {error.message}"
            raise InvalidParameter(f"search of {name}", rule, value) from error


def _unknown(name: str, known: Sequence[str]) -> InvalidParameter:
    near = difflib.get_close_matches(name, known, n=1)
    remedy = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known) or 'none, as no loss is set'}"
    return InvalidParameter("search", "name a setting, or an argument of a loss that is tried", name, remedy=remedy)
