"""Objects on stores: s3://, gs:// and az://, abfs:// or abfss:// (Azure), read with pyarrow."""

from __future__ import annotations

import os
from functools import cache
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from .remote import AZURE

ACCOUNT = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")  # variables with the account of az://container
UNREADABLE = (pa.ArrowException, OSError, ValueError)  # ValueError: a name that no store can have
CONNECT_S, REQUEST_S = 5, 20


def open_object(url: str) -> pa.NativeFile:
    """Open an object on a store; raise one of UNREADABLE if there is none."""
    system, path = _store(url)
    return system.open_input_stream(path)


def objects_below(url: str) -> tuple[str, list[fs.FileInfo]]:
    """Return the path of a folder of a store, and all files and folders below it; raise one of UNREADABLE."""
    system, root = _store(url)
    return root, system.get_file_info(fs.FileSelector(root, recursive=True))


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
    """Return why a store on Azure refuses access, "" if it does not.

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
