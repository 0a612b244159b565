"""Photos at an address: https://, and objects on s3://, gs:// and az://, abfs:// or abfss:// (Azure).

Only catalogues that a user names on the command line have addresses; a request to the server never has one. An https
photo is fetched from public addresses only, also after a redirect, because a table may come from a third party. The
variable RETRIEVAL_ALLOW_HOSTS names hosts (separated by commas) that may be private, and be reached without TLS.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from retrieval.errors import DataError, ImageUnreadable
from retrieval.images import MAX_BYTES

from .photos import CATALOGUE, Labels, Photo
from .web import fetch, shown

AZURE = ("abfs", "abfss", "az")
ACCOUNT = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")  # variables with the account of az://container
WEB, STORES = ("https", "http"), ("s3", "gs", *AZURE)
UNREADABLE = (pa.ArrowException, OSError, ValueError)  # ValueError: a name that no store can have
CONNECT_S, REQUEST_S = 5, 20


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
    try:
        system, root = _store(url)
        found = system.get_file_info(fs.FileSelector(root, recursive=True))
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


def open_object(url: str) -> pa.NativeFile:
    """Open an object on a store; raise one of UNREADABLE if there is none."""
    system, path = _store(url)
    return system.open_input_stream(path)


def problem(url: str, error: Exception) -> str:
    """Return a message without the user, the password and the query of an address."""
    place, _, path = url.partition("://")[2].partition("/")
    user, at, _ = place.rpartition("@")
    _, mark, query = path.partition("?")
    text = str(error)
    for secret in (user + at, mark + query):
        text = text.replace(secret, "") if secret else text
    return f"{shown(url)} cannot be read: {text}"


def _store(url: str) -> tuple[fs.FileSystem, str]:
    """Return the store of an address, and the path in it; the name of an object may hold # and ?."""
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    refusal = _refusal(scheme.lower(), place)
    if refusal:
        raise OSError(refusal)
    system, root = _file_system(scheme.lower(), place)
    return system, root + (slash + path).rstrip("/")


@cache
def _refusal(scheme: str, place: str) -> str:
    """Return why a store on Azure refuses us, or "".

    Without valid credentials, pyarrow ends the process if it opens an object first; if it asks for a file first, it
    raises an exception.
    """
    if scheme not in AZURE:
        return ""
    try:
        system, root = _file_system(scheme, place)
        system.get_file_info(f"{root}/photo")
    except UNREADABLE as error:
        return f"check the credentials for Azure: {error}"
    return ""


@cache
def _file_system(scheme: str, place: str) -> tuple[fs.FileSystem, str]:
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    if scheme in AZURE:
        scheme, place = "abfss" if scheme == "abfss" else "abfs", _with_account(place)
    if scheme != "s3":
        system, path = fs.FileSystem.from_uri(f"{scheme}://{place}/")
        return system, path.rstrip("/")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    server = urlsplit(endpoint)
    system = fs.S3FileSystem(
        region=region or (None if endpoint else fs.resolve_s3_region(place)),
        scheme=server.scheme or None,
        endpoint_override=server.netloc or None,
        connect_timeout=CONNECT_S,
        request_timeout=REQUEST_S,
    )
    return system, place


def _with_account(place: str) -> str:
    """Return a container on Azure with its account; raise OSError if none is known."""
    if "@" in place or "." in place:
        return place
    account = next((os.environ[name] for name in ACCOUNT if os.environ.get(name)), None)
    if account is None:
        raise OSError(f"name the account: {place}@ACCOUNT.dfs.core.windows.net, or set {ACCOUNT[0]}")
    return f"{place}@{account}.dfs.core.windows.net"
