"""Tables at an address: on a store or on the web, with photos at other addresses or relative to the table."""

from __future__ import annotations

import posixpath
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urljoin

from retrieval.errors import DataError, ImageUnreadable

from .photos import Photo
from .remote import RemotePhoto, is_web, problem, remote
from .web import fetch, shown

WEB_BYTES = 256 * 2**20  # of a table on the web
CHECK = "Check the address and the credentials"


def read_remote_table(url: str, read: Callable[[Path], list[Photo]]) -> list[Photo]:
    """Return the photos of a table at an address; `read` reads a copy of it.

    Raises DataError if there is no such table, or if it contains the photos themselves, which are read from local
    files only.
    """
    with tempfile.TemporaryDirectory(prefix="retrieval-table-") as folder:
        copy = Path(folder) / name_of(url)
        _download(url, copy)
        try:
            photos = read(copy)
        except DataError as error:
            raise DataError(error.message.replace(str(copy), shown(url)), remedy=error.remedy) from error
        return [_placed(photo, url, Path(folder)) for photo in photos]


def name_of(url: str) -> str:
    """Return the name of the file at an address."""
    return (url.partition("?")[0] if is_web(url) else url).rpartition("/")[2]


def _download(url: str, target: Path) -> None:
    from .stores import UNREADABLE, open_object

    try:
        if is_web(url):
            data = fetch(url, limit=WEB_BYTES + 1)
            if len(data) > WEB_BYTES:
                raise DataError(f"{shown(url)} has more than {WEB_BYTES:,} bytes", remedy="Copy it to this machine")
            target.write_bytes(data)
            return
        with open_object(url) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
    except ImageUnreadable as error:
        raise DataError(error.message, remedy=CHECK) from error
    except UNREADABLE as error:
        raise DataError(problem(url, error), remedy=CHECK) from error


def _placed(photo: Photo, url: str, folder: Path) -> Photo:
    """Return a photo of a table with the address that its relative path stands for."""
    if isinstance(photo, RemotePhoto):
        return photo
    if photo.span is not None:
        raise DataError(f"{shown(url)} contains the photos themselves", remedy="Copy it to this machine")
    if not photo.path.is_relative_to(folder):
        if is_web(url):  # it may come from somebody else
            raise DataError(
                f"{shown(url)} names the file {photo.path} of this machine",
                remedy="Copy the table to this machine if you trust it",
            )
        return photo
    name = photo.path.relative_to(folder).as_posix()
    if is_web(url):
        return remote(photo, urljoin(url.partition("?")[0], quote(name)))
    scheme, _, place = url.partition("://")
    return remote(photo, f"{scheme}://{posixpath.normpath(posixpath.join(posixpath.dirname(place), name))}")
