"""Types of command-line arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from index.location import is_address
from retrieval.catalogue.remote import is_url


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
