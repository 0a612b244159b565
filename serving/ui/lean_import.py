"""Import Gradio without parts that only slow down the start of a server.

On import, Gradio compares a type stub of each component with its source, which takes about half of the time, and
imports pandas for tables, which the page does not have. `lean_imports` skips the stubs, and defers pandas to its first
use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import LazyLoader
from types import ModuleType

STUBS, STUB_WRITER = "gradio.component_meta", "create_or_modify_pyi"
DEFERRED = frozenset(("pandas",))


@contextmanager
def lean_imports() -> Iterator[None]:
    """Defer the modules of DEFERRED and skip Gradio's stubs in imports within the context."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Finds Gradio's module of stubs and the deferred modules."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of such a module; None leaves any other to the usual finders."""
        if name != STUBS and name not in DEFERRED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        spec.loader = _WithoutStubs(name, str(spec.origin)) if name == STUBS else LazyLoader(spec.loader)
        return spec


class _WithoutStubs(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if hasattr(module, STUB_WRITER):
            setattr(module, STUB_WRITER, leave_stub)


def leave_stub(*_: object) -> None:
    """Do nothing; this replaces the function that writes a stub."""
