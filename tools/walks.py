"""How large the product is, and how many of its modules a search, a new row and a threshold pass.

    python -m tools.walks [--sizes]

A walk counts the modules whose functions run, in all threads, when the same thing was done once before.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("index", "retrieval", "training", "serving")
SETTINGS = ("Settings", "ServeSettings")  # classes whose fields users set: of training and of serving


@dataclass(frozen=True)
class Sizes:
    """What the wheel holds: statements without docstrings and imports, lines with those of CSS, JS and templates."""

    statements: int
    lines: int
    modules: int
    options: int
    settings: int
    largest_room: int  # modules in one folder, without its __init__
    most_methods: int  # public ones of one class


def modules(root: Path = ROOT) -> dict[Path, ast.Module]:
    """Return the syntax tree of each module of the product, by its path from the root."""
    found = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
    return {path.relative_to(root): ast.parse(path.read_text()) for path in found}


def statements(tree: ast.Module) -> int:
    """Return the number of statements of a module."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = sum(
        ast.get_docstring(node, clean=False) is not None for node in ast.walk(tree) if isinstance(node, documented)
    )
    kept = (n for n in ast.walk(tree) if isinstance(n, ast.stmt) and not isinstance(n, ast.Import | ast.ImportFrom))
    return sum(1 for _ in kept) - docs


def public_methods(node: ast.ClassDef) -> int:
    """Return the number of public methods and properties of a class, without those that Pydantic or others generate."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return len({child.name for child in node.body if isinstance(child, kinds) and not child.name.startswith("_")})


def rooms(root: Path = ROOT) -> dict[str, int]:
    """Return the number of modules of each folder, without its __init__."""
    counts: dict[str, int] = {}
    for path in modules(root):
        if path.name != "__init__.py":
            counts[str(path.parent)] = counts.get(str(path.parent), 0) + 1
    return counts


def options() -> list[str]:
    """Return every option of every command, as "retrieval index --report"."""
    import click

    from retrieval.cli.main import group

    def of(command: click.Command, name: str) -> Iterator[str]:
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                yield f"{name} {parameter.opts[-1]}"
        if isinstance(command, click.Group):
            context = click.Context(command)
            for child in command.list_commands(context):
                found = command.get_command(context, child)
                if found is not None:
                    yield from of(found, f"{name} {child}")

    return list(of(group, "retrieval"))


def sizes(root: Path = ROOT) -> Sizes:
    """Measure the product."""
    trees = modules(root)
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    kinds = (".py", ".css", ".js", ".html", ".svg", ".j2")
    files = (path for package in PACKAGES for path in (root / package).rglob("*") if path.suffix in kinds)
    return Sizes(
        statements=sum(map(statements, trees.values())),
        lines=sum(path.read_text().count("\n") for path in files),
        modules=len(trees),
        options=len(options()),
        settings=sum(
            isinstance(child, ast.AnnAssign) for node in classes if node.name in SETTINGS for child in node.body
        ),
        largest_room=max(rooms(root).values()),
        most_methods=max(map(public_methods, classes)),
    )


class Walk:
    """Within the context, the modules of the product whose functions run, in this thread and in those it starts."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.active = False
        self._names: dict[str, str] = {}

    def watch(self) -> None:
        """Watch this thread and all that are started from now on."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not self.active or event != "call" or code.co_name == "<module>":
            return
        name = self._names.get(code.co_filename)
        if name is None:
            path = Path(code.co_filename)
            inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PACKAGES
            name = self._names[code.co_filename] = str(path.relative_to(ROOT)) if inside else ""
        if name:
            self.modules.add(name)

    def of(self, work: Callable[[], object]) -> set[str]:
        """Return the modules that some work passes."""
        self.modules, self.active = set(), True
        try:
            work()
        finally:
            self.active = False
        return self.modules


def walks() -> dict[str, set[str]]:
    """Return the modules that each walk passes, with a tiny model and 90 photos."""
    from fastapi.testclient import TestClient

    from retrieval import Retriever
    from retrieval.bundle.bundle import FITTED
    from retrieval.bundle.fitted import Fitted
    from retrieval.bundle.operating_point import OperatingPoint
    from retrieval.catalogue.read import read_catalogue
    from retrieval.indexing.pipeline import index_catalogue
    from serving.app import create_app
    from tests.world import draw, encode, make_bundle, write_folder

    walk, found = Walk(), {}
    walk.watch()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        point = OperatingPoint.uncalibrated(0.05)
        bundle = make_bundle(folder, point=point, files={FITTED: Fitted.of((), ()).pack()})
        place, gallery = write_folder(folder / "photos", items=range(30)), folder / "gallery"
        index_catalogue(bundle, read_catalogue(place), gallery, progress=False)
        for number in (3, 4):
            draw(5, number).save(place / "item-05" / f"{number}.png")
            found["a new row"] = walk.of(
                lambda: index_catalogue(bundle, read_catalogue(place), gallery, progress=False)
            )
        photo = encode(draw(5, 9))
        with Retriever.open(bundle.path, gallery) as retriever, TestClient(create_app(retriever, page=False)) as client:
            for _ in range(2):
                found["a search in process"] = walk.of(lambda: retriever.search(photo))
                found["a search over HTTP"] = walk.of(
                    lambda: client.post("/v1/search", content=photo).raise_for_status()
                )
        for _ in range(2):
            found["draws to threshold"] = walk.of(lambda: set_threshold(bundle, gallery))
    return found


def set_threshold(bundle: Any, place: Path) -> None:
    """Make the draws of a gallery anew and set its threshold."""
    from index.gallery import Gallery
    from retrieval.threshold.proposal import propose

    with Gallery.open(place) as gallery:
        propose(bundle, gallery).write(gallery)


def main() -> None:
    """Print the sizes and the walks."""
    parser = argparse.ArgumentParser(prog="python -m tools.walks", description=__doc__)
    parser.add_argument("--sizes", action="store_true", help="Only the sizes.")
    parser.add_argument("--names", action="store_true", help="Name the modules of each walk and the rooms.")
    arguments = parser.parse_args()
    for name, value in vars(sizes()).items():
        print(f"{name:20s} {value}")
    if arguments.names:
        print(*(f"  {room} {count}" for room, count in sorted(rooms().items())), sep="\n")
    for what, passed in {} if arguments.sizes else walks().items():
        print(f"{what:20s} {len(passed)}")
        if arguments.names:
            print(*(f"  {module}" for module in sorted(passed)), sep="\n")


if __name__ == "__main__":
    main()
