"""Types of command-line arguments, options that a command gets as one object, and options made of settings."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click

from index.location import is_address

Command = TypeVar("Command", bound=Callable[..., Any])
TYPES: Mapping[str, Any] = {  # of the fields that can be options
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "Path | None": click.Path(path_type=Path),
}
UNITS = {"": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9}


class Place(click.ParamType["Path | str"]):
    """A gallery: a directory, or an address on a Milvus cluster."""

    name = "gallery"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:  # noqa: ARG002
        """Return a path, or an address unchanged."""
        return value if is_address(value) else Path(value)


class CataloguePlace(click.ParamType["Path | str"]):
    """A catalogue: a folder or file, or a folder on a store."""

    name = "catalogue"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:  # noqa: ARG002
        """Return a path, or an address unchanged."""
        from retrieval.catalogue.remote import is_url

        return value if is_url(value) else Path(value)


class Memory(click.ParamType[int]):
    """A number of bytes, with or without a unit."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert to bytes."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?b)?\s*", str(value), re.IGNORECASE)
        unit = (match[2] or "").lower() if match else None
        if match is None or unit not in UNITS:
            self.fail(f"{value!r} is not an amount of memory such as 2GiB or 500MB", param, ctx)
        return int(float(match[1]) * UNITS[unit])


MEMORY = Memory()


def options_as(name: str, kind: type, options: Sequence[Callable[[Any], Any]]) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command and passes them as one dataclass, the argument `name`.

    The options have the names of the fields; those that the command does not have keep their defaults.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def with_options(*arguments: Any, **given: Any) -> Any:
            values = {field.name: given.pop(field.name) for field in fields(kind) if field.name in given}
            return command(*arguments, **{name: kind(**values)}, **given)

        for option in reversed(options):
            with_options = option(with_options)
        return with_options  # type: ignore[return-value]

    return decorate


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


def setting(default: Any, group: str, text: str, *, option: str = "", shown: str = "") -> Any:
    """Declare a field of a settings dataclass: its default, and the heading and sentence under which `--help` shows it.

    Parameters
    ----------
    default:
        A plain value, or a function that returns one.
    option:
        Name of the option, if it is not the name of the field.
    shown:
        The default in words, for a default that would not explain itself.
    """
    metadata = {"group": group, "help": text, "option": option, "shown": shown}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


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
