"""The product stays as small as it is: a feature that needs more takes it away elsewhere, or changes these numbers.

Lower them whenever something has become smaller.
"""

from __future__ import annotations

import subprocess
import sys

from tools.walks import rooms, sizes, walks

from .conftest import ROOT

MOST = {
    "statements": 16_598,
    "lines": 36_806,
    "modules": 235,
    "options": 152,
    "settings": 44,
    "largest_room": 12,
    "most_methods": 28,
}
WALKS = {"a search in process": 20, "a search over HTTP": 30, "a new row": 46, "draws to threshold": 20}
LINES_OF_TESTS, LINES_OF_RESEARCH = 35_887, 11_228
IMPORTED = 80  # modules of ours that `import retrieval.retriever` brings


def test_the_wheel_has_at_most_so_many_statements_modules_options_and_settings() -> None:
    measured = vars(sizes())
    assert {name: measured[name] for name, most in MOST.items() if measured[name] > most} == {}, rooms()


def test_a_search_a_row_and_a_threshold_pass_few_modules() -> None:
    passed = walks()
    assert {what: sorted(passed[what]) for what, most in WALKS.items() if len(passed[what]) > most} == {}


def test_tests_and_research_have_at_most_so_many_lines() -> None:
    for folder, most in (("tests", LINES_OF_TESTS), ("research", LINES_OF_RESEARCH)):
        assert sum(path.read_text().count("\n") for path in (ROOT / folder).rglob("*.py")) <= most, folder


def test_importing_the_retriever_brings_few_modules() -> None:
    packages = "('index', 'retrieval', 'training', 'serving')"
    script = (
        f"import sys, retrieval.retriever; print(sum(name.partition('.')[0] in {packages} for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(done.stdout) <= IMPORTED
