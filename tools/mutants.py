"""Put small faults into the code, one at a time, and see that a test fails: `python -m tools.mutants`.

Without arguments, the faults of tests/mutants/faults.toml are tried: each replaces a text that the packages hold once.
With `MODULE --tests FILES`, faults are made by rules instead: comparisons, conditions, arithmetic and numbers are
changed, and statements are left out; `--sample` tries some of them, the same each time.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "tests" / "mutants" / "faults.toml"
PACKAGES = ("index", "retrieval", "serving", "training")
MARKS = "not slow and not end_to_end and not browser"
KILLED, SURVIVED, BROKEN = "killed", "survived", "the tests could not be run"
LIMIT_S, LOG = 600, "tests.log"

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
TWINS = {"min": "max", "minimum": "maximum", "any": "all", "argmin": "argmax", "ceil": "floor", "left": "right"}
TWINS |= {other: one for one, other in TWINS.items()}


@dataclass(frozen=True)
class Fault:
    """A fault: `new` in place of `old`, which `module` (relative to the root) holds at the byte `start`."""

    name: str
    module: str
    start: int
    old: str
    new: str
    tests: tuple[str, ...]  # files that are about it, relative to the root

    def apply(self, source: bytes) -> bytes:
        """Return the module with the fault."""
        return source[: self.start] + self.new.encode() + source[self.start + len(self.old.encode()) :]


def read_faults(path: Path = FAULTS, root: Path = ROOT) -> list[Fault]:
    """Return the faults made by hand; raise ValueError unless each text stands once, and each test file once."""
    sources = {file: file.read_bytes() for package in PACKAGES for file in (root / package).rglob("*.py")}
    faults = []
    for entry in tomllib.loads(path.read_text())["fault"]:
        name, old = entry["name"], entry["old"]
        holding = [file for file, source in sources.items() if old.encode() in source]
        if len(holding) != 1 or sources[holding[0]].count(old.encode()) != 1:
            raise ValueError(f"{name!r} replaces a text that {len(holding)} modules hold: {old}")
        tests = []
        for test in entry["tests"]:
            found = sorted((root / "tests").rglob(test))
            if len(found) != 1:
                raise ValueError(f"{name!r} names the test {test}, and there are {len(found)}")
            tests.append(str(found[0].relative_to(root)))
        module = str(holding[0].relative_to(root))
        faults.append(Fault(name, module, sources[holding[0]].index(old.encode()), old, entry["new"], tuple(tests)))
    return faults


def make_faults(module: str, source: bytes, tests: Sequence[str]) -> Iterator[Fault]:
    """Yield the faults that the rules make in a module, without those in annotations and messages."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    left_out = set()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.AnnAssign | ast.arg | ast.JoinedStr | ast.Import | ast.ImportFrom):
            kept = node.value if isinstance(node, ast.AnnAssign) else None
            left_out |= {child for child in ast.walk(node) if child is not node} - set(ast.walk(kept) if kept else ())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in (node.returns, *node.decorator_list):
                left_out |= set(ast.walk(part)) if part else set()
    for node in ast.walk(tree):
        if node in left_out or not isinstance(node, ast.expr | ast.stmt) or node.end_lineno is None:
            continue
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + (node.end_col_offset or 0)
        old = source[start:end].decode()
        for new in changes(node):
            yield Fault(f"{module}:{node.lineno}: {old} -> {new}", module, start, old, new, tuple(tests))


def changes(node: ast.expr | ast.stmt) -> Iterator[str]:
    """Yield texts to put in place of a node."""
    if isinstance(node, ast.Compare):
        for number, op in enumerate(node.ops):
            other = copy.deepcopy(node)
            other.ops[number] = SWAPPED[type(op)]()  # type: ignore[call-overload]
            yield f"({ast.unparse(other)})"
    elif isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in SWAPPED:
        swapped = copy.deepcopy(node)
        swapped.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
        yield f"({ast.unparse(swapped)})"
    elif isinstance(node, ast.UnaryOp):
        yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield repr(node.value + 1 if isinstance(node.value, int) else node.value / 2 or 1.0)
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in TWINS:
            yield TWINS[name].join(ast.unparse(node).rsplit(name, 1)) if ast.unparse(node).count(name) == 1 else "None"
    elif isinstance(node, ast.If | ast.While):
        other_test = copy.deepcopy(node)
        other_test.test = ast.UnaryOp(ast.Not(), node.test)
        yield ast.unparse(other_test).replace("\n", "\n" + " " * node.col_offset)
    elif isinstance(node, ast.Raise | ast.AugAssign | ast.Continue | ast.Break) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    ):
        yield "pass"


def sample(faults: Sequence[Fault], size: int | None) -> list[Fault]:
    """Return `size` of the faults, drawn by the hashes of their names, or all."""
    return sorted(faults, key=lambda fault: hashlib.sha256(fault.name.encode()).digest())[:size]


def copy_tree(target: Path) -> Path:
    """Copy the files that git knows or would add to a new folder."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def run_tests(tree: Path, tests: Sequence[str]) -> str:
    """Run tests in a copy of the tree, until one fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", MARKS]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*command, *tests], cwd=tree, env=environment, capture_output=True, check=False, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return KILLED
    (tree / LOG).write_bytes(done.stdout + done.stderr)
    return {0: SURVIVED, 1: KILLED}.get(done.returncode, BROKEN)


def try_fault(fault: Fault, trees: queue.Queue[Path]) -> str:
    """Run a fault's tests with the fault in one of the trees."""
    tree = trees.get()
    source = (tree / fault.module).read_bytes()
    try:
        changed = fault.apply(source)
        compile(changed, fault.module, "exec")
        (tree / fault.module).write_bytes(changed)
        return run_tests(tree, fault.tests)
    finally:
        (tree / fault.module).write_bytes(source)
        trees.put(tree)


def main() -> int:
    """Try faults; return 1 if one survives or could not be tried."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("module", nargs="?", help="Module to change by the rules.")
    parser.add_argument("--tests", nargs="+", default=[], help="Test files of the module.")
    parser.add_argument("--sample", type=int, help="Number of faults to try.")
    parser.add_argument("--only", default="", help="Only faults whose name holds this text.")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.module and not arguments.tests:
        parser.error("a module needs --tests")
    faults = read_faults()
    if arguments.module:
        faults = list(make_faults(arguments.module, (ROOT / arguments.module).read_bytes(), arguments.tests))
    faults = sample([fault for fault in faults if arguments.only in fault.name], arguments.sample)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        trees = queue.Queue[Path]()
        for number in range(arguments.jobs):
            trees.put(copy_tree(Path(folder) / str(number)))
        tests = sorted({test for fault in faults for test in fault.tests})
        if tests and run_tests(Path(folder) / "0", tests) != SURVIVED:
            raise SystemExit(f"the tests fail without any fault:\n{(Path(folder) / '0' / LOG).read_text()[-4000:]}")
        outcomes = dict(zip(faults, pool.map(lambda fault: try_fault(fault, trees), faults), strict=True))
    for fault, outcome in outcomes.items():
        if outcome != KILLED:
            print(f"{outcome}: {fault.name}")
    killed = sum(outcome == KILLED for outcome in outcomes.values())
    print(f"{killed} of {len(faults)} faults were killed")
    return int(killed < len(faults))


if __name__ == "__main__":
    sys.exit(main())
