"""Command-line options: help in groups, one option per setting, arguments of the losses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import click

from retrieval.errors import InvalidParameter

from .config import GROUPS, Settings

Command = TypeVar("Command", bound=Callable[..., Any])
TYPES: Mapping[str, Any] = {"int": int, "float": float, "str": str, "bool": bool}
LOSS_PREFIXES = {"loss_arguments": "--loss.", "regularizer_arguments": "--regularizer."}


class GroupedCommand(click.Command):
    """A command whose help shows the options under headings."""

    option_groups: ClassVar[Mapping[str, Sequence[str]]] = {}  # parameter names of each heading, in order

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each group, then those of no group under "Other"."""
        records = {
            str(parameter.name): record
            for parameter in self.get_params(ctx)
            if (record := parameter.get_help_record(ctx)) is not None
        }
        for title, names in self.option_groups.items():
            with formatter.section(title):
                formatter.write_dl([records.pop(name) for name in names])
        with formatter.section("Other"):
            formatter.write_dl(list(records.values()))


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


def settings_options(command: Command) -> Command:
    """Add an option for every setting, so that help, TOML files and the API use the same names."""
    for entry in reversed(_optional_settings()):
        name = entry.name.replace("_", "-")
        flags = f"--{name}/--no-{name}" if entry.type == "bool" else f"--{name}"
        text = f"{entry.metadata['help']}  [default: {entry.default!r}]"
        command = click.option(flags, entry.name, type=TYPES[str(entry.type)], default=None, help=text)(command)
    return command


def settings_groups(first: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the names of all settings that are options by their heading, preceded by the options `first`."""
    groups = {title: list(first.get(title, ())) for title in GROUPS}
    for entry in _optional_settings():
        groups[entry.metadata["group"]].append(entry.name)
    return groups


def _optional_settings() -> list[dataclasses.Field[Any]]:
    return [entry for entry in dataclasses.fields(Settings) if entry.name != "catalogue" and str(entry.type) in TYPES]


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
