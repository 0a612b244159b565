"""Try the mutants of the deciding modules: `python -m tools.mutants [MODULES]`; see CONTRIBUTING."""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.queues import Queue as Results
from multiprocessing.queues import SimpleQueue as Queue
from pathlib import Path

from . import report
from .operators import Mutant, mutants_of
from .settings import ROOT, Settings, faults_of
from .trees import LOG, SURVIVED, UNTESTED, Tree, copy_tree, environment, preload

AWAKE = 5  # seconds between looks at whether the workers live
AHEAD = 8  # tasks that wait for a worker
QUICK = 20  # tests that are run without a fault in a fork, to see that they pass there


@dataclass(frozen=True)
class Task:
    """A mutant, and the tests that run its line, the quickest first."""

    module: str
    mutant: Mutant
    tests: dict[str, float]  # seconds that each takes without the mutant


@dataclass(frozen=True)
class Coverage:
    """Coverage and times of a run of the tests without a fault."""

    lines: dict[str, dict[str, list[str]]]
    seconds: dict[str, float]
    imported: list[str]

    def tests_of(self, module: str, source: bytes, mutant: Mutant) -> list[str]:
        """Return the tests that run the lines that a mutant replaces, the quickest first.

        All tests of the module for what runs when it is imported.
        """
        lines = self.lines[module]
        last = mutant.line + source.count(b"\n", mutant.start, mutant.end)
        names = {name for line in range(mutant.line, last + 1) for name in lines.get(str(line), ())}
        if not names and (not mutant.function or str(mutant.line) in lines):
            names = {name for tests in lines.values() for name in tests}
        return sorted(names, key=lambda name: (self.seconds[name], name))


def cover(tree: Path, settings: Settings, modules: list[str]) -> Coverage:
    """Run the tests of the modules once, without a fault."""
    tests = sorted({test for module in modules for test in settings.modules[module]})
    output = tree / ".coverage.json"
    command = [sys.executable, "-m", "tools.mutants.selection", str(output), settings.marks, *modules, "--", *tests]
    path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, cwd=tree, env={**environment(tree), "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"the tests fail without any mutant:\n{done.stdout}\n{done.stderr}")
    return Coverage(**json.loads(output.read_text()))


def tasks_of(module: str, source: bytes, told: Coverage, *, faults_only: bool) -> Iterator[Task]:
    """Return the mutants of a module with their tests."""
    for mutant in [*faults_of(module, source), *([] if faults_only else mutants_of(source))]:
        yield Task(module, mutant, {test: told.seconds[test] for test in told.tests_of(module, source, mutant)})


def sample(tasks: list[Task], size: int | None) -> list[Task]:
    """Return the hand-written faults and `size` of the other mutants, or all, in their order.

    The mutants are drawn by the hashes of their names, so an edit elsewhere in the module does not change the sample.
    """
    drawn = [task for task in tasks if task.mutant.by_hand]
    others = [task for task in tasks if not task.mutant.by_hand]
    names = sorted(
        (report.name_of(task.mutant) for task in others), key=lambda name: hashlib.sha256(name.encode()).digest()
    )
    chosen = set(names[:size])
    return [*drawn, *(task for task in others if report.name_of(task.mutant) in chosen)]


def _work(
    path: Path, tasks: list[Task], marks: str, numbers: Queue[int | None], done: Results[tuple[int, str]]
) -> None:
    """Try tasks in one copy of the tree until there are no more."""
    tree = Tree(path)
    while (number := numbers.get()) is not None:
        task = tasks[number]
        outcome = UNTESTED
        if task.tests:
            source = task.mutant.apply((path / task.module).read_bytes())
            outcome = tree.run(task.module, source, task.tests, marks=marks)
        done.put((number, outcome))


def main() -> int:
    """Try the mutants, write what became of them, and return 1 where the project's own limits are missed."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", help="Modules to mutate; all of pyproject.toml by default.")
    parser.add_argument("--changed-since", metavar="COMMIT", help="Only the modules that changed since this commit.")
    parser.add_argument("--all", action="store_true", help="Try again what was killed before and has not changed.")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="Only N mutants per module, and every hand-written fault."
    )
    parser.add_argument("--only", default="", help="Only mutants whose function or change contains this text.")
    parser.add_argument("--jobs", type=int, default=2, help="Number of processes.")
    arguments = parser.parse_args()
    settings = Settings.read()
    modules = arguments.modules or list(settings.modules)
    if arguments.changed_since:
        modules = [module for module in modules if module in _changed_since(arguments.changed_since)]
    unknown = [module for module in modules if module not in settings.modules]
    if unknown:
        parser.error(f"[tool.mutants] of pyproject.toml has no {unknown[0]}: add it with the tests that are about it")
    return run(settings, modules, arguments)


def run(settings: Settings, modules: list[str], arguments: argparse.Namespace) -> int:
    """Try the mutants of some modules and write down what became of them; return the exit code."""
    started, outcomes, tasks = time.monotonic(), report.Outcomes.read(), []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [copy_tree(Path(folder) / str(number)) for number in range(arguments.jobs)]
        told = cover(trees[0], settings, modules)
        hashes = {module: report.digests((trees[0] / module).read_bytes()) for module in modules}
        totals: dict[str, int] = {}
        for module in modules:
            source = (trees[0] / module).read_bytes()
            every = list(tasks_of(module, source, told, faults_only=module in settings.faults_only))
            totals[module] = len(every)
            kept = outcomes.start(module, source, [task.mutant for task in every], again=arguments.all)
            tasks += [
                task
                for task in sample(every, arguments.sample)
                if report.name_of(task.mutant) not in kept and arguments.only in report.name_of(task.mutant)
            ]
        print(f"{len(tasks)} mutants to try; the tests take {sum(told.seconds.values()):.0f} s", flush=True)
        preload(told.imported)
        first = modules[0]
        unchanged = (trees[0] / first).read_bytes()
        tests = dict(sorted(told.seconds.items(), key=lambda item: item[1])[:QUICK])
        if Tree(trees[0]).run(first, unchanged, tests, marks=settings.marks) != SURVIVED:
            sys.exit(f"the tests fail without any mutant:\n{(trees[0] / LOG).read_text()}")
        for number, (task, outcome) in enumerate(_outcomes(trees, tasks, settings.marks), 1):
            outcomes.note(task.module, task.mutant, outcome, hashes[task.module])
            if outcome in report.ALIVE:
                where = f"{task.module}:{task.mutant.line}"
                print(f"{outcome} {where} {report.name_of(task.mutant)}", flush=True)
            if not number % 25:
                outcomes.write()
                print(f"{number} of {len(tasks)} after {time.monotonic() - started:.0f} s", flush=True)
    outcomes.write()
    results = report.write_results(outcomes, settings, {module: hashes[module][""] for module in modules}, totals)
    print(*report.table({module: results[module] for module in modules}), sep="\n")
    complaints = report.complaints(results, settings)
    print(*complaints, f"{time.monotonic() - started:.0f} s", sep="\n")
    return int(bool(complaints))


def _outcomes(trees: list[Path], tasks: list[Task], marks: str) -> Iterator[tuple[Task, str]]:
    """Yield what becomes of each mutant, tried by one process a tree."""
    context = multiprocessing.get_context("fork")
    numbers: Queue[int | None] = context.SimpleQueue()
    done: Results[tuple[int, str]] = context.Queue()
    workers = [context.Process(target=_work, args=(tree, tasks, marks, numbers, done)) for tree in trees]
    for worker in workers:
        worker.start()
    for number in [*range(min(AHEAD, len(tasks)))]:
        numbers.put(number)
    for count in range(len(tasks)):
        while True:
            try:
                number, outcome = done.get(timeout=AWAKE)
                break
            except queue.Empty:
                if not all(worker.is_alive() for worker in workers):
                    raise RuntimeError("a process that tries mutants has ended: was it out of memory?") from None
        if count + AHEAD < len(tasks):
            numbers.put(count + AHEAD)
        yield tasks[number], outcome
    for _ in workers:
        numbers.put(None)
    for worker in workers:
        worker.join()


def _changed_since(commit: str) -> set[str]:
    command = ["git", "diff", "--name-only", commit]
    return set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())


if __name__ == "__main__":
    sys.exit(main())
