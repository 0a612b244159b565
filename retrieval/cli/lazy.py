"""Command groups that import their commands on first use."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click


class Entry(NamedTuple):
    """The module and attribute of a command, and its summary in the group's help."""

    module: str
    attribute: str
    summary: str


class LazyGroup(click.Group):
    """A group that imports only the command in use: help is fast, and serving does not import torch."""

    def __init__(self, *arguments: Any, sections: Mapping[str, Mapping[str, Entry]], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._sections = sections
        self._entries = {name: entry for entries in sections.values() for name, entry in entries.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands, in the order of the sections."""
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a command, or None if it does not exist."""
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(entry.module), entry.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands by section, without importing them."""
        for title, entries in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.summary) for name, entry in entries.items()])
