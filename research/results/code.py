"""The code that a benchmark measures, as a hash: if it differs from that in a record, the figures are old."""

from __future__ import annotations

import ast
import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
THRESHOLD = ("anchor", "bounds", "error_rates", "fold_draws", "labelled_queries", "rule")
DECISION = ("index/search", "retrieval/metrics", *(f"retrieval/threshold/{name}.py" for name in THRESHOLD))
POINTS = ("retrieval/threshold/gallery_points.py", "retrieval/threshold/proposal.py")  # what a gallery keeps and serves
LOOP = ("head_start", "learner", "optimizer", "recipe", "selection", "trainer")  # the others read and write files
TRAINING = (
    *("training/losses", "training/data/augmentation.py", "training/model.py"),
    *(f"training/loop/{name}.py" for name in LOOP),
)
WRITERS = ("research.results", "research.markdown", "research.benchmarks.tables")
MEASURED = {  # folders and modules of the product; modules of `research` are found by their imports
    "cross_fitting": (*DECISION, *TRAINING, "training/loop/cross_fitting.py", "training/data/folds.py"),
    "demo": (*DECISION, *POINTS, *TRAINING, "training/demo", "training/data/synthetic"),
    "endpoint": ("index/search", "retrieval/images", "retrieval/search", "serving/api"),
    "gallery": ("index",),
    "grocery": (*DECISION, *TRAINING, "training/evaluation"),
    "head_start": (*DECISION, *TRAINING),
    "indexing": ("index", "retrieval/images", "retrieval/indexing"),
    "item_distance": (*DECISION, *TRAINING, "training/demo", "training/data/synthetic"),
    "library_heads": (*DECISION, *TRAINING),
    "losses": ("training/losses",),
    "many_classes": ("training/losses", "retrieval/metrics"),
    "open_set": (*DECISION, *TRAINING),
    "paper_claims": ("training/losses", "retrieval/metrics"),
    "papers": ("training/losses", "research/papers"),
    "pretrained": (*DECISION, "training/export"),
    "promise": DECISION,
    "rotations": (*DECISION, "training/losses"),
    "start": ("index", "retrieval/search", "serving"),
    "step": ("training/losses", "training/model.py"),
    "verification": (*DECISION, "retrieval/verification"),
}


def module_hash(source: bytes) -> str:
    """Return a hash of a module's code, whatever its comments, docstrings, layout and texts of errors are."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            for text in ast.walk(node):
                if isinstance(text, ast.JoinedStr):
                    text.values = []
                elif isinstance(text, ast.Constant) and isinstance(text.value, str):
                    text.value = ""
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def code_of(benchmark: str, root: Path = ROOT) -> str:
    """Return a hash of the code whose change makes the figures of a benchmark old."""
    files = set(research_modules(f"research.benchmarks.{benchmark}", root))
    for name in MEASURED[benchmark]:
        files |= set((root / name).rglob("*.py")) if (root / name).is_dir() else {root / name}
    hashes = [f"{path.relative_to(root)} {module_hash(path.read_bytes())}" for path in sorted(files)]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()[:12]


def research_modules(name: str, root: Path = ROOT) -> set[Path]:
    """Return the files of a module and of the modules of `research` that it imports, without what writes tables."""
    found: set[Path] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop()
        path = root / f"{name.replace('.', '/')}.py"
        if path.exists() and path not in found and not name.startswith(WRITERS):
            found.add(path)
            waiting += imported(ast.parse(path.read_bytes()), name)
    return found


def imported(tree: ast.Module, name: str) -> Iterator[str]:
    """Yield the full names of what a module imports from `research`; they may be names within a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            package = (
                ".".join([*name.split(".")[: -node.level], *filter(None, [node.module])]) if node.level else node.module
            )
            if package and package.startswith("research"):
                yield package
                yield from (f"{package}.{each.name}" for each in node.names)


def commit_of(root: Path = ROOT) -> str:
    """Return the short name of the commit that is checked out, with a + if files other than the figures differ."""
    changes = _git(root, "status", "--porcelain", "--", ":!research/results/*.json", ":!docs")
    return (_git(root, "rev-parse", "--short", "HEAD").strip() or "unknown") + ("+" if changes else "")


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False).stdout
