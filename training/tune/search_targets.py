"""Names that can be searched: settings, and arguments of the loss and of the regularizer.

learning_rate               a setting of the run
loss.alpha                  an argument of every tried loss that has it
loss.proxy_anchor.alpha     an argument of this loss only
regularizer.positive_margin, regularizer.tcm.positive_margin    the same for the regularizer
An argument is drawn only in trials whose loss takes it.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from retrieval.errors import InvalidParameter
from training.config import Settings
from training.losses.registry import check_name, loss_arguments, make_loss

from .search_space import Axis, Choice, Range

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

PARTS = {"loss": "loss_arguments", "regularizer": "regularizer_arguments"}
TYPES: Mapping[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
KINDS = {int: "integers", float: "numbers", bool: "true and false", tuple: "lists", str: "strings"}
FIXED = {  # settings that decide how a trial is measured or where it runs
    *("catalogue", "target_fpir", "seed", "select", "loggers")
}
TCM_MARGINS: Mapping[str, Axis] = {  # around the values 0.9 and 0.5 of arXiv 2307.04047
    "regularizer.positive_margin": Range(0.6, 0.98),
    "regularizer.negative_margin": Range(0.2, 0.7),
}


@dataclasses.dataclass(frozen=True)
class SearchSpace:
    """Axes by name, checked against the settings that they vary."""

    axes: Mapping[str, Axis]

    def suggest(self, trial: BaseTrial, settings: Settings) -> Settings:
        """Return the settings of a trial; raise InvalidParameter for an invalid combination of values."""
        drawn = {name: axis.suggest(trial, name) for name, axis in self.axes.items() if "." not in name}
        for part in PARTS:
            loss = drawn.get(part, getattr(settings, part))
            arguments = {} if not loss else _axes_of(self.axes, part, loss)
            drawn |= {name: self.axes[name].suggest(trial, name) for name in arguments.values()}
        return apply(settings, drawn)

    def stored_values(self, settings: Settings) -> dict[str, Any]:
        """Return the values of settings on their axes, as the study stores them; None if outside.

        Missing arguments have the default of the loss.
        """
        stored = {name: axis.stored(getattr(settings, name)) for name, axis in self.axes.items() if "." not in name}
        for part, field in PARTS.items():
            loss = getattr(settings, part)
            values = {**loss_arguments(loss), **getattr(settings, field)} if loss else {}
            named = _axes_of(self.axes, part, loss) if loss else {}
            stored |= {name: self.axes[name].stored(values[argument]) for argument, name in named.items()}
        return stored

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as a TOML file holds them."""
        return {name: axis.to_dict() for name, axis in self.axes.items()}


def make_space(axes: Mapping[str, Axis], settings: Settings) -> SearchSpace:
    """Return the checked search space of some axes around settings.

    Without axes, the space has the two margins of the regularizer `tcm`.

    Raises
    ------
    InvalidParameter
        For an unknown name, values of a wrong type or out of range, or nothing to search.
    """
    if not axes:
        if settings.regularizer != "tcm":
            raise InvalidParameter(
                "--search",
                "name at least one setting",
                None,
                remedy="Use for example --search learning_rate=1e-5..1e-3:log, or --regularizer tcm, whose margins are "
                "searched by default",
            )
        axes = TCM_MARGINS
    names = sorted(axes, key=lambda name: name not in PARTS)  # the losses first: their arguments depend on them
    fields = {name: _checked(name, axes[name], _field_kind(name)) for name in names if "." not in name}
    for name, axis in fields.items():
        _try_setting(name, axis, settings)
    arguments: dict[str, Axis] = {}
    for name in names:
        if "." in name:
            losses, argument = _losses(name, fields, settings)
            arguments[name] = _checked(name, axes[name], _argument_kind(name, losses, argument))
            for loss in losses:
                _try_argument(name, arguments[name], loss, argument)
    _check_fixed(fields, settings)
    return SearchSpace({**fields, **arguments})


def apply(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return settings with other values. Arguments that a new loss does not take are dropped."""
    changed = {name: value for name, value in values.items() if "." not in name}
    for part, field in PARTS.items():
        loss = changed.get(part, getattr(settings, part))
        known = loss_arguments(loss) if loss else {}
        given = getattr(settings, field)
        arguments = {k: v for k, v in given.items() if part not in changed or k in known}
        for name, value in values.items():
            owner, _, argument = name.partition(".")
            if argument and owner == part:
                arguments[argument.split(".")[-1]] = value
        changed[field] = arguments
    return Settings.from_dict({**settings.to_dict(), **changed})


def _axes_of(axes: Mapping[str, Axis], part: str, loss: str) -> dict[str, str]:
    """Return the name of the axis of each argument of a loss; an axis for this loss only takes precedence."""
    names = {}
    for argument in loss_arguments(loss):
        for name in (f"{part}.{loss}.{argument}", f"{part}.{argument}"):
            if name in axes:
                names[argument] = name
                break
    return names


def _losses(name: str, fields: Mapping[str, Axis], settings: Settings) -> tuple[list[str], str]:
    """Return the losses that the axis of an argument applies to, and the argument."""
    part, *rest = name.split(".")
    if part not in PARTS or len(rest) > 2:
        raise _unknown(name, [*_searchable(), "loss.ARGUMENT", "regularizer.ARGUMENT"])
    axis = fields.get(part)
    tried = list(axis.values) if isinstance(axis, Choice) else [getattr(settings, part)]
    tried = [loss for loss in tried if loss]
    if not tried:
        raise InvalidParameter(
            f"search of {name}",
            f"belong to a {part} that is tried",
            f"{part} ''",
            remedy=f"Pass --{part}, or search it",
        )
    argument = rest[-1]
    if len(rest) == 2:
        check_name(rest[0])
        if rest[0] not in tried:
            remedy = f"Pass --{part} {rest[0]}, or add it to --search {part}=…"
            raise InvalidParameter(
                f"search of {name}", f"belong to a {part} that is tried", ", ".join(tried), remedy=remedy
            )
        tried = rest[:1]
    losses = [loss for loss in tried if argument in loss_arguments(loss)]
    if not losses:
        prefix = name[: -len(argument)]
        raise _unknown(name, sorted({prefix + known for loss in tried for known in loss_arguments(loss)}))
    return losses, argument


def _searchable() -> list[str]:
    fields = dataclasses.fields(Settings)
    return [field.name for field in fields if field.name not in FIXED and str(field.type) in TYPES]


def _field_kind(name: str) -> type:
    if name in FIXED:
        raise InvalidParameter(
            "search",
            "be a setting that can be searched",
            name,
            remedy="It decides how trials are measured or where they run; pass it as an option",
        )
    if name not in _searchable():
        raise _unknown(name, _searchable())
    return TYPES[next(str(field.type) for field in dataclasses.fields(Settings) if field.name == name)]


def _argument_kind(name: str, losses: list[str], argument: str) -> type:
    kinds = {type(loss_arguments(loss)[argument]) for loss in losses}
    if len(kinds) > 1:
        part = name.partition(".")[0]
        raise InvalidParameter(
            f"search of {name}",
            "have one type in all losses that are tried",
            ", ".join(losses),
            remedy=f"Name one of them, such as {part}.{losses[0]}.{argument}",
        )
    return kinds.pop()


def _unknown(name: str, known: list[str]) -> InvalidParameter:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}?" if near else "Known: " + ", ".join(known)
    return InvalidParameter("search", "name a setting, or an argument of a loss that is tried", name, remedy=hint)


def _checked(name: str, axis: Axis, kind: type) -> Axis:
    """Return the axis for values of a type; raise InvalidParameter if it has other values."""
    if isinstance(axis, Range):
        ends = [axis.low, axis.high, *([] if axis.step is None else [axis.step])]
        if kind not in (int, float) or (kind is int and any(end != int(end) for end in ends)):
            raise InvalidParameter(f"search of {name}", f"have {KINDS[kind]}", str(axis))
        return dataclasses.replace(axis, whole=kind is int)
    accepted: tuple[type, ...] = {float: (int, float), tuple: (list, tuple)}.get(kind, (kind,))
    for value in axis.values:
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise InvalidParameter(f"search of {name}", f"have {KINDS[kind]}", value)
    return axis


def _try_setting(name: str, axis: Axis, settings: Settings) -> None:
    for value in _ends(axis):
        if name in PARTS and value:
            check_name(value)
        try:
            Settings.from_dict({**settings.to_dict(), name: value})
        except InvalidParameter as error:
            if error.parameter == name:  # another setting may be searched too and match
                raise


def _try_argument(name: str, axis: Axis, loss: str, argument: str) -> None:
    for value in _ends(axis):
        try:
            make_loss(loss, classes=2, dim=2, arguments={argument: value})
        except InvalidParameter as error:
            if error.parameter in (argument, f"{loss}.{argument}"):
                rule = f"have values that {loss} accepts: {error.message}"
                raise InvalidParameter(f"search of {name}", rule, str(axis)) from error


def _ends(axis: Axis) -> tuple[Any, ...]:
    if isinstance(axis, Choice):
        return axis.values
    return (int(axis.low), int(axis.high)) if axis.whole else (axis.low, axis.high)


def _check_fixed(fields: Mapping[str, Axis], settings: Settings) -> None:
    """Raise InvalidParameter for given arguments that no tried loss takes, which would be dropped silently."""
    for part, field in PARTS.items():
        axis = fields.get(part)
        if isinstance(axis, Choice):
            known = sorted({argument for loss in axis.values if loss for argument in loss_arguments(loss)})
            for argument in getattr(settings, field):
                if argument not in known:
                    raise _unknown(f"{part}.{argument}", [f"{part}.{name}" for name in known])
