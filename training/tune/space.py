"""Search space: values of settings and of arguments of losses, and the settings that a trial draws from them.

A space has a name (of a setting, `loss.ARGUMENT` or `regularizer.ARGUMENT`) for each list of values, or range with
`low`, `high` and perhaps `log` and `step`. An argument is drawn only in trials whose loss takes it.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from optuna.trial import BaseTrial, FixedTrial

from retrieval.errors import InvalidParameter
from training.config import Settings
from training.losses.registry import check_name, loss_arguments

PARTS = ("loss", "regularizer")  # settings that name a loss
FIXED = ("catalogue", "all_items", "target_fpir", "seed", "select", "loggers")  # they decide how a trial is measured
RULE = "have a list of values, or a range with `low`, `high` and perhaps `log` and `step`, for each name"

Space = Mapping[str, Any]


def default_space() -> Space:
    """Return the search space of `space.toml`."""
    return tomllib.loads((files(__package__) / "space.toml").read_text(encoding="utf-8"))


def draw_settings(trial: BaseTrial, settings: Settings, space: Space) -> Settings:
    """Return settings with the values that a trial draws; arguments that a new loss does not take are dropped.

    Raises InvalidParameter for values that do not go together.
    """
    drawn = {name: _draw(trial, name, space, getattr(settings, name)) for name in space if "." not in name}
    for part in PARTS:
        own = _arguments(part, drawn.get(part, getattr(settings, part)))
        given = {name: value for name, value in getattr(settings, f"{part}_arguments").items() if name in own}
        new = {name: _draw(trial, f"{part}.{name}", space, own[name]) for name in own if f"{part}.{name}" in space}
        drawn[f"{part}_arguments"] = given | new
    return dataclasses.replace(settings, **drawn)


def given_values(settings: Settings, space: Space) -> dict[str, Any]:
    """Return the settings' own values for the names of a space, without those that are not in its list."""
    values = dict(vars(settings))
    for part in PARTS:
        own = _arguments(part, getattr(settings, part)) | getattr(settings, f"{part}_arguments")
        values |= {f"{part}.{name}": value for name, value in own.items()}
    return {
        name: values[name]
        for name, allowed in space.items()
        if name in values and (not isinstance(allowed, list) or values[name] in allowed)
    }


def check_space(settings: Settings, space: Space) -> None:
    """Raise InvalidParameter for a space without names, or with an unknown name or values that no trial can have."""
    if not space:
        raise InvalidParameter("search space", "name at least one setting", None)
    arguments: dict[str, Any] = {}
    for part in PARTS:
        for loss in filter(None, space.get(part, [getattr(settings, part)])):
            check_name(loss)
            arguments |= {f"{part}.{name}": default for name, default in _arguments(part, loss).items()}
    for name, values in space.items():
        if name in FIXED or ("." in name and name not in arguments):
            known = "settings that do not decide how trials are measured, and arguments of losses that are tried"
            raise InvalidParameter("search space", f"have {known}", name, remedy=f"Arguments: {', '.join(arguments)}")
        try:
            plain = "." not in name
            ends = values if isinstance(values, list) else [values["low"], values["high"]]
            for value in ends if plain else ():
                Settings.from_dict({**settings.to_dict(), name: value})
            trial = FixedTrial({name: ends[0]})
            _draw(trial, name, space, getattr(settings, name) if plain else arguments[name])
        except InvalidParameter:
            raise
        except (LookupError, TypeError, ValueError) as error:
            raise InvalidParameter("search space", RULE, f"{name} = {values} ({error})") from error


def _draw(trial: BaseTrial, name: str, space: Space, default: object) -> Any:
    """Return the value of a trial for a name, from a list or a range; it is an integer if the default is one."""
    values = space[name]
    if isinstance(values, list):
        return trial.suggest_categorical(name, values)
    if isinstance(default, bool | str):
        raise TypeError("only numbers have ranges")
    return (trial.suggest_int if isinstance(default, int) else trial.suggest_float)(name, **values)


def _arguments(part: str, loss: str) -> dict[str, Any]:
    """Return the arguments of a loss with their defaults, none for ""; a regularizer also has a weight."""
    own = loss_arguments(loss) if loss else {}
    return own | {"weight": 1.0} if loss and part == "regularizer" else own
