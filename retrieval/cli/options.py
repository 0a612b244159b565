"""Types of command-line arguments, options that a command gets as one object, and options made of settings."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click

from index.database import DATABASE
from index.location import is_address
from retrieval.errors import DataError, command
from retrieval.files import check_place

Command = TypeVar("Command", bound=Callable[..., Any])
TYPES: Mapping[str, Any] = {  # of the fields that can be options
    "int": int,
    "float": float,
    "float | None": float,
    "str": str,
    "bool": bool,
    "Path | None": click.Path(path_type=Path),
}
UNITS = {"": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9}


A_BUNDLE, A_GALLERY, A_RUN, A_CATALOGUE, A_FILE = "a bundle", "a gallery", "a training run", "a catalogue", "a file"
BOTH = "a folder with a bundle and a gallery"  # as `quickstart` and `demo` write it
HOLDS = {A_BUNDLE: ("manifest.json", "model.onnx"), A_GALLERY: (DATABASE,), A_RUN: ("settings.json", "splits.json")}


class Place(click.ParamType["Path | str"]):
    """A path to something that commands write or read, or an address of it.

    Raises DataError for a path to something else, and for another address.

    Parameters
    ----------
    expected:
        What the path leads to. A path that leads to nothing known is left to the command.
    is_address:
        Returns whether a text is an address that the command takes.
    or_both:
        Whether a folder with a bundle and a gallery will do.
    new:
        Whether the command writes there. Then OSError is raised for a place that cannot be written.
    """

    name = "path"

    def __init__(
        self,
        expected: str,
        *,
        is_address: Callable[[str], bool] = lambda _: False,
        or_both: bool = False,
        new: bool = False,
    ) -> None:
        self.expected, self.is_written = expected, new
        self._is_address, self._or_both = is_address, or_both

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:  # noqa: ARG002
        """Return a path, or an address unchanged."""
        if self._is_address(value):
            return str(value)
        path, found = local(value), what_is(Path(value))
        if found and not self._accepts(found):
            raise DataError(f"{value} is {found}, not {self.expected}", remedy=self._remedy(str(value), found))
        if self.is_written:
            check_place(path)
        return path

    def _accepts(self, found: str) -> bool:
        if self.expected == A_CATALOGUE:
            return found == A_FILE
        return found == self.expected or (self._or_both and found == BOTH)

    def _remedy(self, value: str, found: str) -> str:
        if self.expected == A_BUNDLE and value.endswith(".onnx"):
            return f"`{command('export', '--onnx', value, '-o', 'BUNDLE')}` makes a bundle of it"
        if found == BOTH and self.expected in (A_BUNDLE, A_GALLERY):
            return f"They are {value}/bundle and {value}/gallery"
        return f"Name {self.expected}"


class Output(click.ParamType[Path]):
    """A file or folder that a command writes. Raises OSError if that is impossible, before any work.

    `folder` chooses between the two. If it is None, the command writes either, and refuses a path that exists.
    """

    name = "path"

    def __init__(self, *, folder: bool | None) -> None:
        self._folder = folder

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # noqa: ARG002
        """Return the path."""
        path = local(value)
        if path.is_dir() and self._folder is False:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        check_place(path / "file" if self._folder else path)
        if self._folder is False:
            path.parent.mkdir(parents=True, exist_ok=True)
        return path


def local(value: object) -> Path:
    """Return a path; raise DataError for an address."""
    if "://" in str(value):
        raise DataError(f"{value} is an address that this command cannot use", remedy="Name a place on this machine")
    return Path(str(value))


def what_is(path: Path) -> str:
    """Return what of HOLDS lies at a path, BOTH or A_FILE; "" for another folder and for nothing."""
    for what, names in HOLDS.items():
        if all((path / name).exists() for name in names):
            return what
    if path.is_dir() and (what_is(path / "bundle"), what_is(path / "gallery")) == (A_BUNDLE, A_GALLERY):
        return BOTH
    return A_FILE if path.is_file() else ""


def _is_url(value: object) -> bool:
    from retrieval.catalogue.remote import is_url

    return is_url(value)


SEARCH = Place(A_BUNDLE, or_both=True)
BUNDLE, GALLERY, RUN = Place(A_BUNDLE), Place(A_GALLERY, is_address=is_address), Place(A_RUN)
NEW_GALLERY = Place(A_GALLERY, is_address=is_address, new=True)
CATALOGUE = Place(A_CATALOGUE, is_address=_is_url)
FOLDER_OR_TABLE = Place(A_CATALOGUE)  # on this machine
NEW_FILE, NEW_FOLDER, NEW_PATH = Output(folder=False), Output(folder=True), Output(folder=None)


FOLDER_OPTIONS = (  # fields of `FolderRules`
    click.option(
        "--ignore",
        metavar="PATTERN",
        multiple=True,
        help="Files and folders of a folder to leave out, such as '*_thumb.jpg' or drafts/. Can be repeated.",
    ),
    click.option(
        "--splits",
        type=click.Choice(["merge", "partitions"]),
        help="Take items of one name in folders such as train and val as one; partitions keeps these folders as the "
        "column `partition`.",
    ),
)


class Memory(click.ParamType[int]):
    """A number of bytes, with or without a unit."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert to bytes."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d+)?)\s*([kmgt]i?b)?\s*", str(value), re.IGNORECASE)
        unit = (match[2] or "").lower() if match else None
        if match is None or unit not in UNITS:
            self.fail(f"{value!r} is not an amount of memory such as 2GiB or 500MB", param, ctx)
        return int(float(match[1]) * UNITS[unit])


MEMORY = Memory()


def options_as(name: str, kind: type, options: Sequence[Callable[[Any], Any]]) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command and passes them as one dataclass, the argument `name`.

    The options have the names of the fields. Fields without an option keep their defaults.
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
