"""The doctor imports the packages that it lists, and says why one cannot be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from retrieval.inspect.doctor import Finding, examine

TRAIN = "In the project's checkout: pip install -c constraints.txt '.[train]'"


def about(package: str) -> Finding:
    (finding,) = [finding for finding in examine(None, None) if finding.text.startswith(f"{package} ")]
    return finding


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that is imported in place of transformers."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    return tmp_path / "transformers.py"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("raise ImportError('Using SOCKS proxy, but\\n the package is missing')", "SOCKS proxy, but the package is"),
        ("raise OSError('libcudart.so.12: cannot open shared object file')", "libcudart.so.12: cannot open"),
        ("raise RuntimeError('numpy.dtype size changed')", "numpy.dtype size changed"),
    ],
)
def test_a_package_that_fails_as_it_is_imported_is_a_problem_in_its_own_words(
    broken: Path, code: str, words: str
) -> None:
    broken.write_text(code)
    finding = about("transformers")
    assert (finding.good, finding.remedy) == (False, TRAIN)
    assert "is installed but cannot be imported: " in finding.text
    assert words in finding.text
    assert "not installed" not in finding.text


def test_an_optional_package_that_is_not_there_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert about("transformers") == Finding(True, "transformers is not installed; only the extra `train` needs it")


def test_a_proxy_of_the_environment_is_no_problem_of_a_package() -> None:
    code = "from retrieval.inspect.doctor import examine; print([f.text for f in examine(None, None) if not f.good])"
    environment = {**os.environ, "ALL_PROXY": "socks5://127.0.0.1:9", "NO_PROXY": "localhost,fe80::/10"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
