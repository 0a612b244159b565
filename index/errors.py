"""Exceptions of the index; each message says what is wrong and what to do.

RetrievalError
├── InvalidParameter          an argument or a setting is invalid
├── MissingDependency         an optional package is not installed, or cannot be imported
├── DataError                 a file, folder or column cannot be used
└── GalleryError              a gallery is missing or refuses a change
    ├── GalleryCorrupt        a file or a row fails its check
    ├── DiskFull              there is no room on the disk
    ├── GalleryLocked         another process is writing
    └── GalleryUnavailable    the server of a gallery does not answer

`retrieval.errors` adds those of photos, bundles and training, and is the public name of all of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

LONGEST_VALUE = 300  # characters of a value in a message
MOST_LISTED = 20  # values in a message


class RetrievalError(Exception):
    """Base class of all errors of this project: `message` says what is wrong, `remedy` what to do."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(f"{message}. {remedy}" if remedy else message)
        self.message = message
        self.remedy = remedy


class InvalidParameter(RetrievalError, ValueError):
    """An argument or a setting is invalid; the message names the parameter, its rule and the value."""

    def __init__(self, parameter: str, rule: str, value: object, *, remedy: str = "") -> None:
        super().__init__(f"{parameter} must {rule}, got {_shown(value)}", remedy=remedy)
        self.parameter = parameter


class MissingDependency(RetrievalError, ImportError):
    """An optional package is not installed, or cannot be imported."""

    @classmethod
    def of_extra(cls, error: Exception, package: str, extra: str, *, called: str = "") -> MissingDependency:
        """Return the error for a package whose import failed, with the command that installs an extra as remedy.

        Only a package that does not exist is said to be missing; of any other, the words of the failure are shown.
        """
        words = " ".join(str(error).split())[:LONGEST_VALUE] or type(error).__name__
        said = "not installed" if lacks(error, package) else f"installed but cannot be imported: {words}"
        return cls(f"{called or package} is {said}", remedy=f"In the project's checkout: {install_command(extra)}")


def lacks(error: Exception, package: str) -> bool:
    """Return whether an import failed because a package is not installed, rather than for a reason inside of it."""
    return isinstance(error, ModuleNotFoundError) and error.name == package


@contextmanager
def importing(package: str, extra: str, *, called: str = "") -> Iterator[None]:
    """Raise MissingDependency if a package, which is imported inside, is missing or fails in any way."""
    try:
        yield
    except Exception as error:  # what its code raises
        raise MissingDependency.of_extra(error, package, extra, called=called) from error


def check_format(stored: object, known: int, place: object, error: type[RetrievalError], *, remedy: str) -> None:
    """Raise an error unless files have the format that this program knows; those of a later version are named so."""
    number = int(str(stored)) if str(stored).isdecimal() else 0
    if number > known:
        raise error(
            f"{place} was written by a later version of this program: it has format {stored}, this one reads {known}",
            remedy="Upgrade this program, or go back to a copy from before the upgrade",
        )
    if number < known:
        raise error(f"{place} has format {stored}, this program reads format {known}", remedy=remedy)


def install_command(extra: str) -> str:
    """Return the command that installs an extra from a checkout; the project is not on a package index."""
    return f"pip install -c constraints{'-gpu' if extra.endswith('-gpu') else ''}.txt '.[{extra}]'"


def command(*words: object) -> str:
    """Return a `retrieval` command line with shell quoting.

    Words in capitals, such as PHOTOS, are placeholders for the user.
    """
    return shlex.join(["retrieval", *map(str, words)])


def listed(values: Sequence[object], *, between: str = ", ") -> str:
    """Return up to MOST_LISTED values, and how many more there are: "a, b, c and 2 more"."""
    more = f" and {len(values) - MOST_LISTED} more" if len(values) > MOST_LISTED else ""
    return between.join(map(str, values[:MOST_LISTED])) + more


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with a noun, whose plural is `many` or has an s after the first word: "2,000 photos to add"."""
    noun, space, rest = one.partition(" ")
    return f"{count:,} {one if count == 1 else many or f'{noun}s{space}{rest}'}"


def photos_of_items(photos: int, items: int) -> str:
    """Return both numbers: "1 photo of 1 item"."""
    return f"{counted(photos, 'photo')} of {counted(items, 'item')}"


def _shown(value: object) -> str:
    """Return the repr of a value, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


class DataError(RetrievalError):
    """A file, folder or column cannot be used."""


class GalleryError(RetrievalError):
    """A gallery is missing or refuses a change."""


class GalleryBusy(GalleryError):
    """The process has too many open files or too little memory to open a part of a gallery now."""


class GalleryCorrupt(GalleryError):
    """A file or a row fails its check."""


class DiskFull(GalleryError):
    """There is no room on the disk."""


class GalleryLocked(GalleryError):
    """Another process is writing."""


class GalleryUnavailable(GalleryError):
    """The server of a gallery does not answer, or not in time."""
