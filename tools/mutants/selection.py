"""Test selection: map lines to tests with one coverage run that has a context per test.

Run as `python -m tools.mutants.selection OUTPUT MARKS MODULES -- TESTS` in a copy of the tree.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from time import process_time

import coverage
import pytest


class Contexts:
    """A pytest plugin that sets the coverage context to the test's name and records its duration."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured = measured
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Run a test with its fixtures in its own context."""
        self.measured.switch_context(item.nodeid)
        started = process_time()
        result = yield
        self.seconds[item.nodeid] = process_time() - started
        self.measured.switch_context("")
        return result


def main(output: Path, marks: str, modules: list[str], tests: list[str]) -> int:
    """Write tests per line, test durations and imported modules as JSON; return the exit code of pytest."""
    before = set(sys.modules)
    measured = coverage.Coverage(
        data_file=None, include=[str(Path(module).resolve()) for module in modules], messages=False
    )
    plugin = Contexts(measured)
    measured.start()
    code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", marks, *tests], plugins=[plugin])
    measured.stop()
    data = measured.get_data()
    lines = {
        module: {
            str(line): sorted(name for name in names if name)
            for line, names in data.contexts_by_lineno(str(Path(module).resolve())).items()
        }
        for module in modules
    }
    imported = sorted(set(sys.modules) - before)
    output.write_text(json.dumps({"lines": lines, "seconds": plugin.seconds, "imported": imported}))
    return int(code)


if __name__ == "__main__":
    split = sys.argv.index("--")
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:split], sys.argv[split + 1 :]))
