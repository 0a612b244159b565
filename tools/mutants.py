"""Put small faults into the code, one at a time, and see that a test fails: `python -m tools.mutants`.

Without arguments, the faults of tests/mutants/faults.toml are tried: each replaces a text that the packages hold once.
With modules of tests/mutants/modules.toml, faults are made by rules instead: comparisons, conditions, arithmetic and
numbers are changed, and statements are left out. What came of them is recorded in tests/mutants/record.json, with a
hash of the module's code, and the next run goes on where the last one ended. Give the reason of a survivor that is
equivalent, or of no consequence, there. `--check` names modules whose record is of other code or is too little.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from research.results.code import module_hash
from tools.mutant_runs import KILLED, MARKS, ROOT, Ran, copy_tree, first_run, import_packages, run_tests, write_module

FAULTS = ROOT / "tests" / "mutants" / "faults.toml"
MODULES = FAULTS.with_name("modules.toml")
RECORD = FAULTS.with_name("record.json")
PACKAGES = ("index", "retrieval", "serving", "training")
SHARE, LEAST_KILLED = 0.1, 0.9  # of the faults of a module that are tried, and of those that are killed

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
    lines: range  # that run it

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
        source, module = sources[holding[0]], str(holding[0].relative_to(root))
        tests = tuple(find_test(test, f"{name!r}", root) for test in entry["tests"])
        start = source.index(old.encode())
        first = source[:start].count(b"\n") + 1
        faults.append(Fault(name, module, start, old, entry["new"], tests, range(first, first + old.count("\n") + 1)))
    return faults


def find_test(test: str, whose: str, root: Path = ROOT) -> str:
    """Return the path of a test file, given by its end; raise ValueError unless there is one."""
    found = sorted((root / "tests").rglob(test))
    if len(found) != 1:
        raise ValueError(f"{whose} names the test {test}, and there are {len(found)}")
    return str(found[0].relative_to(root))


def make_faults(module: str, source: bytes, tests: Sequence[str]) -> list[Fault]:
    """Return the faults that the rules make in a module, without those in annotations, messages and `strict=True`."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    faults, names = [], Counter[str]()
    for node, where, first in _walk(ast.parse(source), "", 0):
        if not isinstance(node, ast.expr | ast.stmt) or node.end_lineno is None:
            continue
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + (node.end_col_offset or 0)
        old = source[start:end].decode()
        last = node.test.end_lineno if isinstance(node, ast.If | ast.While) else node.end_lineno
        for new in changes(node):
            statement = source[starts[first - 1] : starts[first]].decode().strip()
            told = " ".join(f"{where}: {old} -> {new} in: {statement}".split())
            name = told if len(told) <= 240 else f"{told[:200]} ... {hashlib.sha256(told.encode()).hexdigest()[:8]}"
            names[name] += 1
            name += f" ({names[name]})" if names[name] > 1 else ""
            faults.append(Fault(name, module, start, old, new, tuple(tests), range(first, (last or first) + 1)))
    return sorted(faults, key=lambda fault: hashlib.sha256(fault.name.encode()).digest())


def _walk(node: ast.AST, where: str, first: int) -> Iterator[tuple[ast.AST, str, int]]:
    """Yield what may be changed below a node, with the function around it and the first line of its statement."""
    for child in ast.iter_child_nodes(node):
        if child in (getattr(node, "returns", None), *getattr(node, "decorator_list", ())):
            continue
        if isinstance(child, ast.keyword) and child.arg == "strict":  # of zip: a check, as an annotation is
            continue
        if isinstance(node, ast.AnnAssign) and child is node.annotation:
            continue
        line = child.lineno if isinstance(child, ast.stmt) else first
        yield child, where, line
        if isinstance(child, ast.Raise | ast.arg | ast.JoinedStr):
            continue
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from _walk(child, f"{where}.{child.name}".lstrip(".") if named else where, line)  # type: ignore[attr-defined]


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


def read_modules(root: Path = ROOT) -> dict[str, dict[str, Any]]:
    """Return the modules that decide, by path: the share of faults to try, the paths of their tests, and marks."""
    modules = {}
    for entry in tomllib.loads(MODULES.read_text())["module"]:
        tests = [find_test(test, entry["path"], root) for test in entry["tests"]]
        marks = "" if entry.get("slow") else MARKS
        modules[entry["path"]] = {"share": entry.get("share", SHARE), "tests": tests, "marks": marks}
    return modules


def wanted(faults: Sequence[Fault], share: float) -> int:
    """Return how many of a module's faults are to be tried."""
    return -int(-len(faults) * share // 1)


def complaints(record: dict[str, dict[str, Any]], root: Path = ROOT) -> list[str]:
    """Return what a record lacks: modules of other code, too few faults tried or killed, survivors without a reason."""
    found = []
    for module, entry in read_modules(root).items():
        source, known = (root / module).read_bytes(), record.get(module)
        if known is None or known["code"] != module_hash(source):
            found.append(f"{module}: its faults were {'never tried' if known is None else 'tried in other code'}")
            continue
        least, survivors = wanted(make_faults(module, source, ()), entry["share"]), known["survivors"]
        if known["tried"] < least:
            found.append(f"{module}: {known['tried']} of at least {least} faults were tried")
        found += [f"{module}: survived without a reason: {name}" for name, why in survivors.items() if not why]
    tried = sum(entry["tried"] for entry in record.values())
    killed = tried - sum(len(entry["survivors"]) for entry in record.values())
    if killed < LEAST_KILLED * tried:
        found.append(f"only {killed} of {tried} faults were killed")
    return found


class Runs:
    """Tries faults in a copy of the tree, until the time is over."""

    def __init__(self, folder: str, faults: Sequence[Fault], until: float, marks: str = MARKS) -> None:
        self.tree, self.until = copy_tree(Path(folder)), until
        import_packages()
        self.sources = {fault.module: (self.tree / fault.module).read_bytes() for fault in faults}
        tests = sorted({test for fault in faults for test in fault.tests})
        self.ran = first_run(self.tree, sorted(self.sources), tests, marks) if faults else Ran()

    def outcomes(self, faults: Sequence[Fault]) -> Iterator[tuple[Fault, str]]:
        """Yield faults and what came of each: KILLED, SURVIVED or BROKEN."""
        for number, fault in enumerate(faults, 1):
            if time.monotonic() > self.until:
                return
            outcome = self._outcome(fault)
            print(f"{number}/{len(faults)} {outcome}: {fault.module}:{fault.lines.start} {fault.name}", flush=True)
            yield fault, outcome

    def _outcome(self, fault: Fault) -> str:
        file, source = self.tree / fault.module, self.sources[fault.module]
        files = tuple(fault.tests)
        tests = [test for test in self.ran.chosen(fault.module, fault.lines) if test.startswith(files)]
        changed = fault.apply(source)
        compile(changed, fault.module, "exec")
        try:
            write_module(file, changed)
            return run_tests(self.tree, self.ran, tests)
        finally:
            write_module(file, source)


def try_modules(modules: Sequence[str], *, share: float | None, again: bool, seconds: float) -> int:
    """Try faults made by rules and record what came of them; return the number of unexplained survivors.

    These are faults that were not tried yet, or `again` the survivors without a reason.
    """
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    known, until = read_modules(), time.monotonic() + seconds
    for module in modules:
        source = (ROOT / module).read_bytes()
        faults = make_faults(module, source, known[module]["tests"])
        entry = record.setdefault(module, {"code": "", "faults": 0, "tried": 0, "survivors": {}})
        if entry["code"] != module_hash(source):
            reasons = {name: why for name, why in entry["survivors"].items() if why}
            entry |= {
                "code": module_hash(source),
                "faults": len(faults),
                "tried": 0,
                "survivors": {},
                "reasons": reasons,
            }
        most = wanted(faults, known[module]["share"] if share is None else share)
        unexplained = [fault for fault in faults if entry["survivors"].get(fault.name) == ""]
        waiting = unexplained if again else faults[entry["tried"] : most]
        if not waiting or time.monotonic() > until:
            continue
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            for fault, outcome in Runs(folder, waiting, until, known[module]["marks"]).outcomes(waiting):
                entry["tried"] += 0 if again else 1
                entry["survivors"].pop(fault.name, None)
                if outcome != KILLED:
                    entry["survivors"][fault.name] = entry.get("reasons", {}).get(fault.name, "")
                RECORD.write_text(json.dumps(dict(sorted(record.items())), indent=1) + "\n")
        print(f"{module}: {entry['tried']} of {entry['faults']} tried, {len(entry['survivors'])} survived", flush=True)
    return sum(not why for module in modules for why in record[module]["survivors"].values())


def main() -> int:
    """Try faults; return 1 if one survives."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*", help="Modules to change by the rules.")
    parser.add_argument("--share", type=float, help="Share of their faults to try. [default: as in modules.toml]")
    parser.add_argument("--again", action="store_true", help="Try their survivors without a reason again.")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="Start no fault after this time.")
    parser.add_argument("--only", default="", help="Only faults made by hand whose name holds this text.")
    parser.add_argument("--check", action="store_true", help="Check the record and try nothing.")
    arguments = parser.parse_args()
    if arguments.check:
        found = complaints(json.loads(RECORD.read_text()))
        print("\n".join(found or ["The record is that of the code."]))
        return int(bool(found))
    if arguments.modules:
        how = {"share": arguments.share, "again": arguments.again, "seconds": arguments.seconds}
        return int(bool(try_modules(arguments.modules, **how)))
    faults = [fault for fault in read_faults() if arguments.only in fault.name]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        runs = Runs(folder, faults, time.monotonic() + arguments.seconds)
        outcomes = dict(runs.outcomes(faults))
    killed = sum(outcome == KILLED for outcome in outcomes.values())
    print(f"{killed} of {len(outcomes)} faults were killed; {len(faults) - len(outcomes)} were not tried")
    return int(killed < len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
