"""Search space: settings, and arguments of the loss and of the regularizer, with their values.

learning_rate=1e-5..1e-3:log         a setting of the run, uniform in the logarithm
items_per_batch=8..32:step=8         every eighth integer
loss=smooth_ap,proxy_anchor          one of several words; "none" is the empty one
loss.alpha=16..64                    an argument of every tried loss that has it
loss.proxy_anchor.alpha=16..64       an argument of this loss only; the same for the regularizer
An argument is drawn only in trials whose loss takes it.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import BaseTrial

from retrieval.errors import InvalidParameter
from training.config import Settings
from training.losses.registry import check_name, loss_arguments, make_loss

EXAMPLES = "Examples: learning_rate=1e-5..1e-3:log, items_per_batch=8..32:step=8, loss=smooth_ap,proxy_anchor"
PARTS = {"loss": "loss_arguments", "regularizer": "regularizer_arguments"}
TYPES: Mapping[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
WORDS = {"true": True, "false": False}
FIXED = {"catalogue", "target_fpir", "seed", "select", "loggers"}  # they decide how a trial is measured
TCM_MARGINS = {"regularizer.positive_margin": "0.6..0.98", "regularizer.negative_margin": "0.2..0.7"}


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
            remedy = "Use for example --search learning_rate=1e-5..1e-3:log"
            raise InvalidParameter("--search", "name at least one setting", None, remedy=remedy)
        axes: dict[str, BaseDistribution] = {}
        for name in sorted(texts, key=lambda name: name not in PARTS):  # arguments depend on the losses
            losses = _losses(name, axes, settings) if "." in name else ()
            axes[name] = _distribution(name, texts[name], _kind(name, losses))
            for value in _ends(axes[name]):
                _try_value(name, value, losses, settings)
        return cls(settings, axes)

    def suggest(self, trial: BaseTrial) -> Settings:
        """Return the settings of a trial; raise InvalidParameter for values that do not go together."""
        drawn = {name: _suggest(trial, name, axis) for name, axis in self.axes.items() if "." not in name}
        for part in PARTS:
            names = self._arguments(part, drawn.get(part, getattr(self.settings, part)))
            drawn |= {name: _suggest(trial, name, self.axes[name]) for name in names.values()}
        return apply(self.settings, drawn)

    def given(self) -> dict[str, Any]:
        """Return the values of the settings themselves, or nothing if one lies outside of the space."""
        values = {name: getattr(self.settings, name) for name in self.axes if "." not in name}
        for part, field in PARTS.items():
            loss = getattr(self.settings, part)
            arguments = {**loss_arguments(loss), **getattr(self.settings, field)} if loss else {}
            values |= {name: arguments[argument] for argument, name in self._arguments(part, loss).items()}
        return values if all(_contains(self.axes[name], value) for name, value in values.items()) else {}

    def _arguments(self, part: str, loss: str) -> dict[str, str]:
        """Return the axis of each searched argument of a loss; an axis for this loss only takes precedence."""
        names = {}
        for argument in loss_arguments(loss) if loss else ():
            for name in (f"{part}.{argument}", f"{part}.{loss}.{argument}"):
                if name in self.axes:
                    names[argument] = name
        return names


def apply(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return settings with other values. Arguments that a new loss does not take are dropped."""
    changed = {name: value for name, value in values.items() if "." not in name}
    for part, field in PARTS.items():
        loss = changed.get(part, getattr(settings, part))
        known = loss_arguments(loss) if loss else {}
        given = getattr(settings, field)
        arguments = {name: value for name, value in given.items() if part not in changed or name in known}
        for name, value in values.items():
            if name.startswith(f"{part}."):
                arguments[name.split(".")[-1]] = value
        changed[field] = arguments
    return Settings.from_dict({**settings.to_dict(), **changed})


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
    """Return the tried losses that the axis of an argument applies to."""
    part, *rest = name.split(".")
    if part not in PARTS or len(rest) > 2:
        raise _unknown(name, [*_searchable(), "loss.ARGUMENT", "regularizer.ARGUMENT"])
    axis = axes.get(part)
    tried = axis.choices if isinstance(axis, CategoricalDistribution) else (getattr(settings, part),)
    losses = [str(loss) for loss in tried if loss]
    if len(rest) == 2:
        check_name(rest[0])
        losses = [loss for loss in losses if loss == rest[0]]
    if not losses:
        remedy = f"Set the {part}, or search it"
        raise InvalidParameter(
            f"search of {name}", f"belong to a {part} that is tried", f"{part} {tried}", remedy=remedy
        )
    takes = [loss for loss in losses if rest[-1] in loss_arguments(loss)]
    if not takes:
        prefix = name[: -len(rest[-1])]
        raise _unknown(name, sorted({prefix + known for loss in losses for known in loss_arguments(loss)}))
    return takes


def _kind(name: str, losses: Sequence[str]) -> type:
    """Return the type of a setting's or an argument's values."""
    if losses:
        return type(loss_arguments(losses[0])[name.rsplit(".", maxsplit=1)[-1]])
    if name not in _searchable():
        raise _unknown(name, _searchable())
    return TYPES[next(str(field.type) for field in dataclasses.fields(Settings) if field.name == name)]


def _distribution(name: str, text: str, kind: type) -> BaseDistribution:
    """Return the distribution of a text."""
    where = f"search of {name}"
    try:
        if ".." not in text:
            return CategoricalDistribution(_choices(text, kind))
        span, *options = text.split(":")
        low, high = map(kind if kind in (int, float) else _no_range, span.split(".."))
        step = next((kind(option.removeprefix("step=")) for option in options if option.startswith("step=")), None)
        if [option for option in options if option != "log" and not option.startswith("step=")]:
            raise ValueError("only :log and :step=N can follow a range")
        if not low < high:
            raise ValueError("the low end must be below the high end")
        if kind is int:
            return IntDistribution(low, high, log="log" in options, step=step or 1)
        return FloatDistribution(low, high, log="log" in options, step=step)
    except ValueError as error:
        rule = f"be a range of numbers or at least two different choices of type {kind.__name__} ({error})"
        raise InvalidParameter(where, rule, text, remedy=EXAMPLES) from error


def _no_range(text: str) -> Any:
    raise ValueError(f"{text} is an end of a range")


def _choices(text: str, kind: type) -> list[Any]:
    words = [word.strip() for word in text.split(",")]
    if kind is bool:
        values: list[Any] = [WORDS[word] for word in words if word in WORDS]
    else:
        values = [kind("" if word == "none" else word) for word in words]
    if len(values) < len(words) or len(set(values)) < max(2, len(values)):
        raise ValueError("the choices must be valid and different")
    return values


def _suggest(trial: BaseTrial, name: str, axis: BaseDistribution) -> Any:
    if isinstance(axis, CategoricalDistribution):
        return trial.suggest_categorical(name, axis.choices)
    if isinstance(axis, IntDistribution):
        return trial.suggest_int(name, axis.low, axis.high, log=axis.log, step=axis.step)
    if isinstance(axis, FloatDistribution):
        return trial.suggest_float(name, axis.low, axis.high, log=axis.log, step=axis.step)
    raise TypeError(axis)


def _contains(axis: BaseDistribution, value: Any) -> bool:
    if isinstance(axis, CategoricalDistribution):
        return any(value == choice for choice in axis.choices)
    if not isinstance(axis, (IntDistribution, FloatDistribution)) or not axis.low <= value <= axis.high:
        return False
    steps: float = 0.0 if axis.step is None else (value - axis.low) / axis.step
    return abs(steps - round(steps)) < 1e-9


def _ends(axis: BaseDistribution) -> Iterable[Any]:
    if isinstance(axis, (IntDistribution, FloatDistribution)):
        return axis.low, axis.high
    return axis.choices if isinstance(axis, CategoricalDistribution) else ()


def _try_value(name: str, value: Any, losses: Sequence[str], settings: Settings) -> None:
    """Raise InvalidParameter for a value that is invalid whatever the other settings are."""
    if name in PARTS and value:
        check_name(value)
    argument = name.rsplit(".", maxsplit=1)[-1]
    try:
        if not losses:
            Settings.from_dict({**settings.to_dict(), name: value})
        for loss in losses:
            make_loss(loss, classes=2, dim=2, arguments={argument: value})
    except InvalidParameter as error:
        if error.parameter.split(".")[-1] == argument:  # another setting may be searched too and match
            rule = f"have valid values: {error.message}"
            raise InvalidParameter(f"search of {name}", rule, value) from error


def _searchable() -> list[str]:
    fields = dataclasses.fields(Settings)
    return [field.name for field in fields if field.name not in FIXED and str(field.type) in TYPES]


def _unknown(name: str, known: Sequence[str]) -> InvalidParameter:
    near = difflib.get_close_matches(name, known, n=1)
    remedy = f"Did you mean {near[0]}?" if near else "Known: " + ", ".join(known)
    return InvalidParameter("search", "name a setting, or an argument of a loss that is tried", name, remedy=remedy)
