"""Photos at addresses, read with fsspec: objects on stores (s3://, gs://, az://, abfs://) and files at https://.

Only commands read addresses; a request to the server never has one. Because a table may come from a third party, its
addresses must lie below a prefix that the operator names: `retrieval --allow PREFIX`, or the variable RETRIEVAL_ALLOW
with prefixes separated by spaces. Redirects are not followed.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import unquote

from retrieval.errors import DataError, ImageTooLarge, ImageUnreadable, MissingDependency, importing
from retrieval.images import MAX_BYTES, check_bytes

from .folders import FolderRules, Listing, folder_items
from .photos import Photo

SCHEMES = ("https", "s3", "gs", "az", "abfs", "abfss")
ALLOWED = "RETRIEVAL_ALLOW"
VERSION = ("size", "ETag", "etag", "mtime", "last_modified")  # facts of an object that change with it


@dataclass(frozen=True, slots=True)
class RemotePhoto(Photo):
    """A photo at an address."""

    url: str = ""
    version: str = ""  # changes with the photo; "" if unknown

    def read(self) -> bytes:
        """Return the encoded photo, truncated just above the size limit where its size is unknown.

        Raises ImageUnreadable if there is none, and ImageTooLarge.
        """
        try:
            system, path = _system(self.url)
            with system.open(path, "rb") as file:
                check_bytes(shown(self.url), getattr(file, "size", None) or 0)
                return bytes(file.read(MAX_BYTES + 1))
        except (MissingDependency, ImageTooLarge):
            raise
        except Exception as error:  # each store raises its own types
            raise ImageUnreadable(_problem(self.url, error), remedy="Check the address and the credentials") from error

    def state(self) -> str:
        """Return the version."""
        return self.version


def is_url(place: object) -> bool:
    """Return whether a text is an address rather than a path."""
    scheme, separator, _ = str(place).partition("://")
    return isinstance(place, str) and bool(separator) and scheme.lower() in SCHEMES


def remote(photo: Photo, url: str) -> RemotePhoto:
    """Return a photo with an address in the place of a path."""
    values: dict[str, Any] = {field.name: getattr(photo, field.name) for field in fields(Photo)}
    return RemotePhoto(**values, url=url)


def check_allowed(url: str, line: int) -> None:
    """Raise DataError unless an address in a line of a table lies below a prefix that the operator named."""
    parts = unquote(url).replace("\\", "/").split("/")
    prefixes = [prefix.rstrip("/") + "/" for prefix in os.environ.get(ALLOWED, "").split()]
    if ".." in parts or "::" in url or _has_options(url) or not url.startswith(tuple(prefixes)):
        raise DataError(
            f"line {line}: {shown(url)} is not below an allowed prefix",
            remedy=f"If you trust it, allow its folder: retrieval --allow {posixpath.dirname(shown(url))}/ ...",
        )


def read_remote_folder(url: str, rules: FolderRules, *, has_items: bool = True) -> list[Photo]:
    """Return the photos below a folder of a store, as `read_folder` does for a local one, or `all_photos`."""
    try:
        system, root = _system(url)
        found: dict[str, dict[str, Any]] = system.find(root, detail=True)
    except MissingDependency:
        raise
    except Exception as error:  # each store raises its own types
        raise DataError(_problem(url, error), remedy="Check the address and the credentials") from error
    listing = Listing(rules)
    versions = {
        name: " ".join(str(about.get(key, "")) for key in VERSION)
        for path, about in found.items()
        if listing.takes(name := path.removeprefix(root.rstrip("/")).lstrip("/"))
    }
    listing.tell(shown(url))
    photos = folder_items(list(versions), shown(url), rules, has_items=has_items)
    names = [photo.path.as_posix() for photo in photos]
    return [
        replace(remote(photo, f"{url.rstrip('/')}/{name}"), version=versions[name])
        for photo, name in zip(photos, names, strict=True)
    ]


def shown(url: str) -> str:
    """Return scheme, host and path of an address, for messages: the rest may hold a password or a token."""
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}".partition("?")[0].partition("#")[0]


def _has_options(url: str) -> bool:
    """Return whether the place of an address, up to its first /, holds options, such as another endpoint."""
    place = unquote(url.partition("://")[2].partition("/")[0])
    return "?" in place or "#" in place


def _problem(url: str, error: Exception) -> str:
    """Return a message without the user, the password and the query of an address."""
    text = (str(error) or type(error).__name__).replace(url, shown(url))
    for secret in (url.partition("://")[2].partition("/")[0].rpartition("@")[0], url.partition("?")[2]):
        text = text.replace(secret, "...") if secret else text
    return f"{shown(url)} cannot be read: {text}"


def _system(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of an address, and the path in it."""
    with importing("fsspec", "sources"):
        import fsspec
    if _has_options(url):
        raise DataError(f"{shown(url)} has options before its first /", remedy="Leave them out")
    options: dict[str, Any] = {"allow_redirects": False} if url.startswith("https:") else {}
    try:
        system, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        why = f"{error} ({error.__cause__ or 'no more is known'})"
        raise MissingDependency(
            f"{url.partition(':')[0]} addresses need a package that cannot be imported: {why}",
            remedy="Install it with pip",
        ) from error
    return system, path
