"""Command-line options made of a settings dataclass, and help in groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
TYPES: Mapping[str, Any] = {  # of the fields that can be options
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "Path | None": click.Path(path_type=Path),
}


class GroupedCommand(click.Command):
    """A command whose help shows the options under headings."""

    option_groups: ClassVar[Mapping[str, Sequence[str]]] = {}  # parameter names of each heading, in order

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each group, then the others under "Other"."""
        records = {
            str(parameter.name): record
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)) is not None
        }
        for title, names in self.option_groups.items():
            with formatter.section(title):
                formatter.write_dl([records.pop(name) for name in names])
        with formatter.section("Other"):
            formatter.write_dl(list(records.values()))


def settings_options(settings: type) -> Callable[[Command], Command]:
    """Return a decorator that adds an option for every setting. An option that is not given is passed as None."""

    def decorate(command: Command) -> Command:
        for entry in reversed(_settings(settings)):
            name = (entry.metadata["option"] or entry.name).replace("_", "-")
            flags = f"--{name}/--no-{name}" if entry.type == "bool" else f"--{name}"
            text = f"{entry.metadata['help']}  [default: {entry.metadata['shown'] or repr(entry.default)}]"
            command = click.option(flags, entry.name, type=TYPES[str(entry.type)], default=None, help=text)(command)
        return command

    return decorate


def settings_groups(settings: type, titles: Iterable[str], others: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the names of all options by their heading: `others`, then those of the settings."""
    groups = {title: list(others.get(title, ())) for title in titles}
    for entry in _settings(settings):
        groups[entry.metadata["group"]].append(entry.name)
    return groups


def _settings(settings: type) -> list[dataclasses.Field[Any]]:
    return [entry for entry in dataclasses.fields(settings) if entry.metadata and str(entry.type) in TYPES]
