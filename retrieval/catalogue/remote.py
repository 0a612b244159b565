"""Photos at an address: https://, and objects on s3://, gs:// and az://, abfs:// or abfss:// (Azure).

Only catalogues that a user names on the command line have addresses; a request to the server never has one. An https
photo is fetched from public addresses only, also after a redirect, because a table may come from a third party. The
variable RETRIEVAL_ALLOW_HOSTS names hosts (separated by commas) that may be private, and be reached without TLS.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from retrieval.errors import DataError, ImageUnreadable
from retrieval.images import MAX_BYTES

from .photos import CATALOGUE, Labels, Photo
from .web import fetch, shown

AZURE = ("abfs", "abfss", "az")
WEB, STORES = ("https", "http"), ("s3", "gs", *AZURE)


def is_url(place: object) -> bool:
    """Return whether a text is an address rather than a path."""
    scheme, separator, _ = str(place).partition("://")
    return isinstance(place, str) and bool(separator) and scheme.lower() in (*WEB, *STORES)


def is_web(place: object) -> bool:
    """Return whether a text is an address on the web, rather than on a store."""
    return is_url(place) and str(place).lower().startswith(WEB)


@dataclass(frozen=True, slots=True)
class RemotePhoto(Photo):
    """A photo at an address."""

    url: str = ""
    version: str = ""  # changes with the photo; "" if unknown

    def read(self) -> bytes:
        """Return the encoded photo, truncated just above the size limit; raise ImageUnreadable if there is none."""
        if is_web(self.url):
            return fetch(self.url, limit=MAX_BYTES + 1)
        from .stores import UNREADABLE, open_object

        try:
            with open_object(self.url) as stream:
                return bytes(stream.read(MAX_BYTES + 1))
        except UNREADABLE as error:
            raise ImageUnreadable(problem(self.url, error)) from error

    def state(self) -> str:
        """Return the version."""
        return self.version


def remote(photo: Photo, url: str) -> RemotePhoto:
    """Return a photo with an address in the place of a path."""
    values: dict[str, Any] = {field.name: getattr(photo, field.name) for field in fields(Photo)}
    return RemotePhoto(**values, url=url)


def read_remote_folder(url: str, suffixes: frozenset[str], labels: Labels = CATALOGUE) -> list[Photo]:
    """Return the photos below a folder of a store, as `folders.read_folder` does for a local one.

    If `labels` may be missing, the photos may lie anywhere in the folder, and have no items.
    """
    from .stores import UNREADABLE, objects_below

    try:
        root, found = objects_below(url)
    except UNREADABLE as error:
        raise DataError(problem(url, error), remedy="Check the address and the credentials") from error
    files = sorted((file for file in found if Path(file.path).suffix.lower() in suffixes), key=lambda file: file.path)
    names = [file.path.removeprefix(root).lstrip("/") for file in files if file.is_file]
    flat = ["/" not in name for name in names]
    if any(flat) and not all(flat) and not labels.may_be_missing:
        raise DataError(
            f"{shown(url)} holds photos beside folders of photos: what is an item is unclear",
            remedy="Move these photos into a folder of their own",
        )
    photos: list[Photo] = []
    for name, file in zip(names, (file for file in files if file.is_file), strict=True):
        item = "" if labels.may_be_missing else name.rpartition("/")[0] or name
        version = f"{file.size} {file.mtime_ns}"
        address = f"{url.rstrip('/')}/{name}"
        photos.append(RemotePhoto(name, Path(name), item, item.rpartition("/")[0], url=address, version=version))
    return photos


def problem(url: str, error: Exception) -> str:
    """Return a message without the user, the password and the query of an address."""
    place, _, path = url.partition("://")[2].partition("/")
    user, at, _ = place.rpartition("@")
    _, mark, query = path.partition("?")
    text = str(error)
    for secret in (user + at, mark + query):
        text = text.replace(secret, "") if secret else text
    return f"{shown(url)} cannot be read: {text}"
