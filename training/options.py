"""Command-line options of training: one per setting, and the arguments of the losses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from retrieval.cli.options import GroupedCommand, settings_groups, settings_options
from retrieval.errors import InvalidParameter

from .config import GROUPS, Settings

Command = TypeVar("Command", bound=Callable[..., Any])
LOSS_PREFIXES = {"loss_arguments": "--loss.", "regularizer_arguments": "--regularizer."}


class SettingsCommand(GroupedCommand):
    """A command that also takes --loss.NAME VALUE and --regularizer.NAME VALUE."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move the arguments of the losses to `ctx.meta["nested"]`, and parse the other options as usual."""
        rest, nested = [], []
        words = iter(args)
        for word in words:
            if not word.startswith(tuple(LOSS_PREFIXES.values())):
                rest.append(word)
                continue
            value = next(words, None) if "=" not in word else None
            nested.append(word if value is None else f"{word}={value}")
        ctx.meta["nested"] = _nested(nested)
        return super().parse_args(ctx, rest)


def training_options(command: Command) -> Command:
    """Add an option for every setting, so that help, TOML files and the API use the same names."""
    return settings_options(Settings)(command)


def training_groups(others: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the names of all settings that are options by their heading, preceded by the options `others`."""
    return settings_groups(Settings, GROUPS, others)


def settings_set(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the settings of NAME=VALUE words, and the arguments of the losses among them (loss.NAME=VALUE)."""
    nested = [f"--{word}" for word in words if f"--{word}".startswith(tuple(LOSS_PREFIXES.values()))]
    values: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise InvalidParameter("--set", "be NAME=VALUE", word)
        if f"--{word}" not in nested:
            values[name.replace("-", "_")] = _plain(value)
    return values, _nested(nested)


def _nested(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return {"loss_arguments": {...}, ...} of `--loss.NAME=VALUE` words."""
    arguments: dict[str, dict[str, Any]] = {}
    for word in words:
        target = next(name for name, prefix in LOSS_PREFIXES.items() if word.startswith(prefix))
        name, equals, value = word.removeprefix(LOSS_PREFIXES[target]).partition("=")
        if not equals or not name:
            raise InvalidParameter("options", "be --loss.NAME VALUE or --regularizer.NAME VALUE", word)
        arguments.setdefault(target, {})[name.replace("-", "_")] = _plain(value)
    return arguments


def _plain(text: str) -> Any:
    """Return the value of a JSON text, or the text itself where it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
