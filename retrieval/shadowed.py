"""The check that no file of a user hides a package of this project; it imports none of them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


class ShadowedPackage(ImportError):
    """A file or folder of the user has the name of a package of this project and is imported in its place."""


def check_package(name: str) -> None:
    """Raise ShadowedPackage if a package that belongs beside this one would be imported from somewhere else."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None) if module is not None else getattr(find_spec(name), "origin", None)
    if file is None:
        return  # there is none, or a folder without code, which hides nothing
    folder = Path(file).parent if Path(file).stem == "__init__" else Path(file)
    if folder.parent.resolve() != Path(__file__).parent.parent.resolve():
        raise ShadowedPackage(
            f"{folder} hides the package `{name}` of Retrieval: rename it, or run from another folder", name=name
        )
