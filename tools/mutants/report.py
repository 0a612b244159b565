"""Mutation results: outcomes on this machine, totals and survivors in the repository, and the table in the docs."""

from __future__ import annotations

import ast
import hashlib
import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .operators import BY_HAND, Mutant
from .settings import CACHE, RESULTS, SURVIVORS, TABLE, Settings
from .trees import SURVIVED, TIMEOUT, UNTESTED

ALIVE = (SURVIVED, UNTESTED)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
HEAD = """# Mutants

`make mutants` puts small faults into the modules that decide a match, a threshold, a certificate, who may do what and
what is durable, one at a time, and runs the tests of the line that is at fault. A mutant is *killed* when a test
fails. Each survivor is explained in `tests/mutants/survivors.toml`; the share counts explained survivors as survivors.
*Hand-made* faults are those of `tests/mutants/faults.toml`. Where a module has more mutants than were tried, they are a
random sample, the same each time (`make mutants SAMPLE=25`); without `SAMPLE` all are tried. Both write this table.

| module | mutants tried | killed | survivors, explained | share killed | hand-made killed |
| --- | --- | --- | --- | --- | --- |
"""


def name_of(mutant: Mutant) -> str:
    """Return a name for a mutant that is unique in its module and independent of line numbers."""
    return f"{mutant.function}: {mutant.change}" if mutant.function else mutant.change


def digests(source: bytes) -> dict[str, str]:
    """Return a hash of each function and class, and of the whole module under "", all without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = [ast.Pass(), *node.body[1:]]
    found = {"": _digest(tree)}

    def walk(node: ast.AST, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = (*names, child.name)
                found[".".join(name)] = _digest(child)
                walk(child, name)

    walk(tree, ())
    return found


def _digest(node: ast.AST) -> str:
    return hashlib.sha256(ast.dump(node).encode()).hexdigest()[:12]


@dataclass
class Outcomes:
    """Outcomes by module and mutant name, each with the hash of the function that was mutated."""

    modules: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    @classmethod
    def read(cls) -> Outcomes:
        """Read the outcomes of earlier runs on this machine."""
        return cls(json.loads(CACHE.read_text()) if CACHE.exists() else {})

    def write(self) -> None:
        """Write the outcomes."""
        CACHE.parent.mkdir(exist_ok=True)
        CACHE.write_text(json.dumps(self.modules, indent=1, ensure_ascii=False))

    def start(self, module: str, source: bytes, mutants: Iterable[Mutant], *, again: bool) -> set[str]:
        """Remove outdated mutants; return the killed ones whose function has not changed."""
        known, hashes = self.modules.get(module, {}), digests(source)
        names = {name_of(mutant): hashes[mutant.function] for mutant in mutants}
        self.modules[module] = {name: known[name] for name in names if name in known}
        kept = {name for name, values in self.modules[module].items() if values[1] == names[name]}
        return set() if again else {name for name in kept if known[name][0] not in ALIVE}

    def note(self, module: str, mutant: Mutant, outcome: str, hashes: dict[str, str]) -> None:
        """Record an outcome."""
        self.modules[module][name_of(mutant)] = [outcome, hashes[mutant.function]]


def write_results(
    outcomes: Outcomes, settings: Settings, hashes: dict[str, str], totals: dict[str, int]
) -> dict[str, Any]:
    """Update results.json and the table for the tested modules; return all results."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for module, digest in hashes.items():
        known = outcomes.modules[module]
        alive = sorted(name for name, (outcome, _) in known.items() if outcome in ALIVE)
        faults = [name for name in known if name.startswith(BY_HAND)]
        results[module] = {
            "source": digest,
            "mutants": len(known),
            "of": totals[module],
            "killed": len(known) - len(alive),
            "timeouts": sum(outcome == TIMEOUT for outcome, _ in known.values()),
            "faults": len(faults),
            "faults_killed": len(set(faults) - set(alive)),
            "survivors": alive,
        }
    results = {module: results[module] for module in settings.modules if module in results}
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    TABLE.write_text(HEAD + "\n".join(table(results)) + "\n")
    return results


def table(results: dict[str, Any]) -> list[str]:
    """Return the rows of the table."""
    reasons = explained()
    rows = []
    for module, told in results.items():
        known = sum((module, name) in reasons for name in told["survivors"])
        rows.append((module, told["mutants"], told["of"], told["killed"], known, told["faults"], told["faults_killed"]))
    total = ("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))
    return [
        f"| {name} | {mutants} of {every} | {killed} | {mutants - killed}, {known} | {killed / mutants:.1%}"
        f" | {hand} of {faults} |"
        for name, mutants, every, killed, known, faults, hand in [*rows, total]
    ]


def explained() -> dict[tuple[str, str], str]:
    """Return the recorded reason of each explained survivor, by module and mutant."""
    groups = tomllib.loads(SURVIVORS.read_text()).get("survivor", [])
    return {(group["module"], name): group["reason"] for group in groups for name in group["mutants"]}


def complaints(results: dict[str, Any], settings: Settings) -> list[str]:
    """Return the problems: too few killed, a survivor without a reason, or a reason without a survivor."""
    reasons = explained()
    told = []
    for module, values in results.items():
        told += [f"{module}: no reason for: {n}" for n in values["survivors"] if (module, n) not in reasons]
        if values["faults_killed"] < values["faults"]:
            told.append(f"{module}: a hand-made fault survives")
    alive = {(module, name) for module, values in results.items() for name in values["survivors"]}
    whole = {module for module, values in results.items() if values["mutants"] == values["of"]}  # no sample
    told += [f"{m}: survives no more, or is not there: {n}" for m, n in reasons if m in whole and (m, n) not in alive]
    told += [f"{module}: not tried yet" for module in settings.modules if module not in results]
    mutants = sum(values["mutants"] for values in results.values())
    killed = sum(values["killed"] for values in results.values())
    if killed < settings.least * mutants:
        told.append(f"{killed} of {mutants} mutants are killed, less than {settings.least:.0%}")
    return told
