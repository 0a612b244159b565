"""Print how large the product is, and how many modules a search, a new photo, a threshold and a training pass.

    python -m tools.walks [--sizes] [--names]

A walk counts the modules whose functions run, in all threads, when the same thing was done once before, and how often
one call is followed by another in another module of the same thread.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("index", "retrieval", "training", "serving")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def modules(root: Path = ROOT) -> dict[str, ast.Module]:
    """Return the syntax tree of each module of the product, by its path from the root."""
    paths = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
    return {path.relative_to(root).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def statements(tree: ast.Module) -> int:
    """Return the number of statements of a module, without imports and docstrings."""
    documented = (ast.Module, ast.ClassDef, *FUNCTION)
    docs = sum(
        ast.get_docstring(node, clean=False) is not None for node in ast.walk(tree) if isinstance(node, documented)
    )
    kept = (n for n in ast.walk(tree) if isinstance(n, ast.stmt) and not isinstance(n, ast.Import | ast.ImportFrom))
    return sum(1 for _ in kept) - docs


def rooms(trees: Mapping[str, ast.Module]) -> Counter[str]:
    """Return the number of modules of each folder, without its __init__."""
    paths = map(Path, trees)
    return Counter(path.parent.as_posix() for path in paths if path.name != "__init__.py")


def public_methods(trees: Mapping[str, ast.Module]) -> Counter[str]:
    """Return the number of public methods and properties of each class, without inherited and generated ones."""
    counts = Counter[str]()
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names = {child.name for child in node.body if isinstance(child, FUNCTION)}
                counts[f"{path}:{node.name}"] = sum(not name.startswith("_") for name in names)
    return counts


def lengths(trees: Mapping[str, ast.Module]) -> Counter[str]:
    """Return the number of lines of each function, from its `def`."""
    return Counter(
        {
            f"{path}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
            for path, tree in trees.items()
            for node in ast.walk(tree)
            if isinstance(node, FUNCTION)
        }
    )


class Walk:
    """What a piece of work passes: the modules of the product whose functions run, and the changes of module."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.hops = 0  # calls of a function of another module than the call before, in the same thread
        self._last: dict[int, str] = {}  # the module of the last call, by thread

    def step(self, module: str) -> None:
        """Count a call of a function of a module."""
        before = self._last.get(threading.get_ident(), module)
        self._last[threading.get_ident()] = module
        self.modules.add(module)
        self.hops += before != module


class Tracer:
    """Traces the calls of this thread and of all that are started from now on."""

    def __init__(self) -> None:
        self.walks: dict[str, Walk] = {}
        self._walk: Walk | None = None
        self._modules: dict[str, str] = {}  # of the product, by file name; empty for files of others
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        code, walk = frame.f_code, self._walk
        if walk is None or event != "call" or code.co_name == "<module>":
            return
        if code.co_filename not in self._modules:
            path = Path(code.co_filename)
            inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PACKAGES
            self._modules[code.co_filename] = path.relative_to(ROOT).as_posix() if inside else ""
        if self._modules[code.co_filename]:
            walk.step(self._modules[code.co_filename])

    def trace(self, name: str, *works: Callable[[], object]) -> None:
        """Do similar work several times, and keep the walk of the last."""
        for work in works:
            self.walks[name] = self._walk = Walk()
            work()
            self._walk = None


def walks() -> dict[str, Walk]:
    """Return the walks by name, with a tiny model and 90 photos."""
    tracer = Tracer()
    with tempfile.TemporaryDirectory() as name:
        trace_searches_and_changes(tracer, Path(name))
        trace_training(tracer, Path(name))
    return tracer.walks


def trace_searches_and_changes(tracer: Tracer, folder: Path) -> None:
    """Trace a search in process and over HTTP, a photo that is stored, and a gallery's threshold."""
    from fastapi.testclient import TestClient

    from retrieval import Retriever
    from retrieval.bundle.bundle import FITTED
    from retrieval.bundle.fitted import Fitted
    from retrieval.catalogue.read import read_catalogue
    from retrieval.indexing.pipeline import index_catalogue
    from retrieval.measuring.point import Point
    from serving.app import create_app
    from tests.world import draw, encode, make_bundle, write_folder

    fitted = {FITTED: Fitted.of((), ()).pack()}
    bundle = make_bundle(folder, point=Point.uncalibrated(0.05), files=fitted)
    place, photos = folder / "gallery", read_catalogue(write_folder(folder / "photos", items=range(30)))
    index_catalogue(bundle, photos, place, progress=False)
    photo, kind = encode(draw(5, 9)), {"content-type": "image/jpeg"}
    with (
        patch("serving.measuring.CHECK_S", 1e6),  # nothing runs beside the requests
        Retriever.open(bundle.path, place) as retriever,
        TestClient(create_app(retriever, page=False)) as client,
    ):
        tracer.trace("one photo in process", *2 * [lambda: retriever.search(photo)])
        tracer.trace("one photo over HTTP", *2 * [lambda: client.post("/v1/search", content=photo).raise_for_status()])

        def put(number: int) -> Callable[[], object]:
            address, content = f"/v1/photos/new-{number}?item_id=item-05", encode(draw(5, number))
            return lambda: client.put(address, content=content, headers=kind).raise_for_status()

        tracer.trace("a row by PUT", put(10), put(11))
    tracer.trace("draws to threshold", *2 * [lambda: set_threshold(bundle, place)])


def set_threshold(bundle: Any, place: Path) -> None:
    """Make the draws of a gallery anew and set its threshold."""
    from index.gallery import Gallery
    from retrieval.galleries.measured import measure_gallery

    with Gallery.open(place) as gallery:
        measure_gallery(bundle, gallery, rule="set").write(gallery)


def trace_training(tracer: Tracer, folder: Path) -> None:
    """Trace a training of one epoch on 40 items."""
    from tests.world import write_folder
    from training.config import Settings
    from training.loop.train import train

    catalogue = write_folder(folder / "catalogue", items=range(40))
    tiny = {"backbone": "small", "size": 32, "dim": 16, "epochs": 1, "items_per_batch": 4, "photos_per_item": 3}
    settings = Settings.from_dict({"catalogue": str(catalogue), **tiny})
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # progress
        tracer.trace("a training", *(partial(train, settings, folder / name) for name in ("first", "second")))


def main() -> None:
    """Print the sizes and the walks."""
    parser = argparse.ArgumentParser(prog="python -m tools.walks", description=__doc__)
    parser.add_argument("--sizes", action="store_true", help="Only the sizes.")
    parser.add_argument("--names", action="store_true", help="Name the modules of each walk.")
    arguments = parser.parse_args()
    trees = modules()
    print(f"{sum(map(statements, trees.values())):6,} statements")
    print(f"{len(trees):6,} modules")
    for counts, what in (
        (rooms(trees), "modules in"),
        (public_methods(trees), "public methods in"),
        (lengths(trees), "lines in"),
    ):
        ((name, count),) = counts.most_common(1)
        print(f"{count:6,} {what} {name}")
    for name, walk in {} if arguments.sizes else walks().items():
        print(f"{len(walk.modules):6,} modules and {walk.hops:,} changes of module: {name}")
        if arguments.names:
            print(*(f"         {module}" for module in sorted(walk.modules)), sep="\n")


if __name__ == "__main__":
    main()
