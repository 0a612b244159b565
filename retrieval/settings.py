"""Fields of settings classes, which the command line and TOML files read: a default, a heading and a help text."""

from __future__ import annotations

from dataclasses import field
from typing import Any


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
