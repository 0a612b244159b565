"""Mutation operators: generate all small faults of a module.

A mutant replaces one range of the source. Messages, docstrings, annotations, decorators and imports are left alone
because they do not affect decisions.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
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
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
TWINS = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any",
    "argmin": "argmax", "argmax": "argmin", "ceil": "floor", "floor": "ceil",
}  # fmt: skip
UNWRAPPED = {
    "abs", "casefold", "int", "isfinite", "lower", "nextafter", "resolve", "round", "sorted", "sqrt", "strip", "unique",
}  # fmt: skip
SIDES = {"left": "right", "right": "left"}
SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|BEGIN|PRAGMA|CREATE|REPLACE)\b", re.IGNORECASE)
SQL_FAULTS = [
    (r" AND ", " OR "), (r" OR ", " AND "), (r"<=", "<"), (r"(?<![<>])<(?![=>])", "<="), (r">=", ">"),
    (r"(?<![<>=])>(?!=)", ">="), (r" DESC\b", ""), (r" IMMEDIATE", ""), (r" DISTINCT ", " "), (r"\+ 1\b", "+ 0"),
    (r"FULL", "OFF"), (r"WHERE .*", ""), (r"ORDER BY .*", ""), (r"OR IGNORE ", ""), (r"OR REPLACE ", ""),
]  # fmt: skip
SPOKEN = {"log", "logger", "logging"}  # calls on these names do not affect decisions

COMMENT = re.compile(r"  # .*")  # at the end of a line: a mutant keeps its name when it is reworded

BY_HAND = "fault: "  # begins the name of a hand-written fault

Span = tuple[int, int]
Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True)
class Mutant:
    """One fault: `new` replaces the source between `start` and `end`, in bytes."""

    function: str  # qualified name, "" at module level
    line: int
    start: int
    end: int
    new: str
    change: str  # "old -> new" as whole lines; unique within the module

    @property
    def by_hand(self) -> bool:
        """Return whether the fault was written by hand."""
        return self.change.startswith(BY_HAND)

    def apply(self, source: bytes) -> bytes:
        """Return the source with the fault applied."""
        return source[: self.start] + self.new.encode() + source[self.end :]


def mutants_of(source: bytes) -> list[Mutant]:
    """Return every mutant of a module, in line order."""
    walk = _Walk(source)
    walk.visit(ast.parse(source))
    seen: dict[tuple[str, str], int] = {}
    found = []
    for function, span, new in sorted(walk.found, key=lambda fault: fault[1]):
        change = _change(source, span, new)
        count = seen[function, change] = seen.get((function, change), 0) + 1
        name = change if count == 1 else f"{change} (#{count})"
        mutant = Mutant(function, source.count(b"\n", 0, span[0]) + 1, *span, new, name)
        if _parses(mutant.apply(source)):
            found.append(mutant)
    return found


def _parses(source: bytes) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _change(source: bytes, span: Span, new: str) -> str:
    """Return the changed lines before and after, each joined into one line."""
    start = source.rfind(b"\n", 0, span[0]) + 1
    end = (source + b"\n").index(b"\n", span[1])
    old = source[start:end].decode()
    changed = source[start : span[0]].decode() + new + source[span[1] : end].decode()
    return " -> ".join(" ".join(COMMENT.sub("", part).split()) for part in (old, changed))


@dataclass
class _Walk(ast.NodeVisitor):
    source: bytes
    found: list[tuple[str, Span, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.starts = [0]
        for line in self.source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.names: list[str] = []

    def span(self, node: ast.expr | ast.stmt) -> Span:
        assert node.end_lineno is not None and node.end_col_offset is not None  # noqa: S101, PT018 (for mypy)
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def add(self, node: ast.expr | ast.stmt, new: str) -> None:
        self.found.append((".".join(self.names), self.span(node), new))

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.expr):
            for other in faults_of(node):
                self.add(node, f"({ast.unparse(other)})")
        elif isinstance(node, ast.stmt):
            self.statement(node)
        super().visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, (ast.Raise, ast.Import, ast.ImportFrom, ast.JoinedStr, ast.pattern)) or _is_text(node):
            return
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "ctx", "bases"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self.visit(child)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._named(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._named(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._named(node)

    def _named(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.names.append(node.name)
        last = node.body[-1]
        for child in ast.walk(node) if not isinstance(node, ast.ClassDef) else ():
            if isinstance(child, ast.Return) and child is not last and self._innermost(node, child):
                self.add(child, "pass")
        self.generic_visit(node)
        self.names.pop()

    @staticmethod
    def _innermost(node: ast.AST, wanted: ast.Return) -> bool:
        inner = [n for n in ast.walk(node) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n is not node]
        return not any(wanted is child for function in inner for child in ast.walk(function))

    def statement(self, node: ast.stmt) -> None:
        """Add the mutants that remove a statement or negate its condition."""
        if isinstance(node, (ast.If, ast.While)):
            if not _equality(node.test) and not _type_checking(node.test):
                self.add(node.test, f"(not ({ast.unparse(node.test)}))")
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self._unlocked(node)
        elif _leaves_a_trace(node) and not _spoken(node):
            self.add(node, "pass")

    def _unlocked(self, node: ast.With | ast.AsyncWith) -> None:
        if any(item.optional_vars for item in node.items):
            return
        start, (_, end) = self.span(node)[0], self.span(node.items[-1].context_expr)
        if b")" not in self.source[end : self.source.index(b":", end)]:
            self.found.append((".".join(self.names), (start, end), "if True"))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _equality(test: ast.expr) -> bool:
    """Return whether swapping the comparison already negates the condition."""
    return (
        isinstance(test, ast.Compare)
        and len(test.ops) == 1
        and not isinstance(test.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
    ) or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))


def _type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _leaves_a_trace(node: ast.stmt) -> bool:
    """Return whether removing the statement leaves a program that still runs."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, (ast.Call, ast.Await))
    return isinstance(node, (ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete))


def _spoken(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    call = value.value if isinstance(value, ast.Await) else value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    owner = call.func.value
    return getattr(owner, "id", getattr(owner, "attr", "")).lstrip("_").lower() in SPOKEN


def faults_of(node: ast.expr) -> Iterator[ast.expr]:
    """Yield plausible wrong expressions in place of this one."""
    if isinstance(node, ast.Compare):
        for number, op in enumerate(node.ops):
            yield _with(node, "ops", number, COMPARISONS[type(op)]())
        yield from (_with(node, "comparators", n, other) for n, c in enumerate(node.comparators) for other in _names(c))
    elif isinstance(node, ast.BoolOp):
        yield _changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        yield from (_without(node, "values", number) for number in range(len(node.values)))
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _is_type(node):
        yield _changed(node, op=ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.Constant):
        yield from _constants(node.value)
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        yield from _unfiltered(node)
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        yield from _subscripts(node)
    elif isinstance(node, ast.Call):
        yield from _calls(node)


def _constants(value: object) -> Iterator[ast.expr]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield from (ast.Constant(other) for other in ((value + 1, value - 1) if value == 1 else (value + 1,)))
    elif isinstance(value, float):
        yield ast.Constant(value / 2 if value else 1.0)
    elif isinstance(value, str) and value in SIDES:
        yield ast.Constant(SIDES[value])
    elif isinstance(value, str) and SQL.match(value):
        for pattern, new in SQL_FAULTS:
            for hit in re.finditer(pattern, value):
                yield ast.Constant(value[: hit.start()] + new + value[hit.end() :])


def _names(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
        yield ast.Constant(node.value + "XX")


def _is_type(node: ast.BinOp) -> bool:
    """Return whether the operation is a union of types and not arithmetic."""
    return isinstance(node.op, ast.BitOr) and isinstance(node.right, ast.Constant) and node.right.value is None


def _unfiltered(node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> Iterator[ast.expr]:
    for place, generator in enumerate(node.generators):
        for number in range(len(generator.ifs)):
            other = copy.deepcopy(node)
            del other.generators[place].ifs[number]
            yield other


def _subscripts(node: ast.Subscript) -> Iterator[ast.expr]:
    if isinstance(node.slice, ast.Slice):
        for end in ("lower", "upper", "step"):
            if getattr(node.slice, end) is not None:
                yield _changed(node, slice=_changed(node.slice, **{end: None}))
    yield from (_changed(node, slice=other) for other in _names(node.slice))


def _calls(node: ast.Call) -> Iterator[ast.expr]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name == "compare_digest":
        yield ast.Compare(node.args[0], [ast.Eq()], [node.args[1]])
    if name in TWINS:
        twin = TWINS[name]
        yield _changed(node, func=ast.Name(twin) if isinstance(node.func, ast.Name) else _changed(node.func, attr=twin))
    if name in UNWRAPPED and node.args:
        yield node.args[0]
    elif name in UNWRAPPED and isinstance(node.func, ast.Attribute):
        yield node.func.value
    if not name[:1].isupper():
        named = [number for number, keyword in enumerate(node.keywords) if keyword.arg and not _default(keyword)]
        yield from (_without(node, "keywords", number) for number in named)


def _default(keyword: ast.keyword) -> bool:
    """Return whether the argument restates a default."""
    return keyword.arg == "side" and isinstance(keyword.value, ast.Constant) and keyword.value.value == "left"


def _changed(node: Node, **fields: object) -> Node:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _with(node: Node, name: str, number: int, value: ast.AST) -> Node:
    values = list(getattr(node, name))
    values[number] = value
    return _changed(node, **{name: values})


def _without(node: ast.expr, name: str, number: int) -> ast.expr:
    values = list(getattr(node, name))
    del values[number]
    if isinstance(node, ast.BoolOp) and len(values) == 1:
        last: ast.expr = values[0]
        return last
    return _changed(node, **{name: values})
