"""Types of command-line arguments, and options that a command gets as one object."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from index.location import is_address
from retrieval.catalogue.remote import is_url

Command = TypeVar("Command", bound=Callable[..., Any])
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
