"""This version could be released, and what a tag needs is noticed where it is missing."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from tools.release import NAMED, missing_libraries, pins, tree_problems

from .conftest import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the files that name the version."""
    for name in (*NAMED, "pyproject.toml", "CHANGELOG.md", f"tests/releases/{VERSION}.tar.xz"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_this_tree_names_its_version_everywhere(tree: Path) -> None:
    assert tree_problems(ROOT) == tree_problems(tree, f"v{VERSION}") == []


@pytest.mark.parametrize("name", [*NAMED, "CHANGELOG.md"])
def test_a_file_that_names_another_version_is_named(name: str, tree: Path) -> None:
    (tree / name).write_text((tree / name).read_text().replace(VERSION, "9.9.9"))
    (problem,) = tree_problems(tree)
    assert problem.startswith(f"{name} ")


def test_another_tag_and_a_missing_archive_are_named(tree: Path) -> None:
    (tree / f"tests/releases/{VERSION}.tar.xz").unlink()
    first, second = tree_problems(tree, "v0.1.9")
    assert first == f"The tag v0.1.9 is not v{VERSION}."
    assert f"{VERSION}.tar.xz" in second


def test_a_library_is_supplied_by_a_wheel_the_driver_or_the_system() -> None:
    provider = {"libprovider_cuda.so": {"libcudart.so.13", "libcuda.so.1", "libc.so.6", "libstdc++.so.6"}}
    assert missing_libraries([provider]) == {"libprovider_cuda.so": {"libcudart.so.13"}}
    assert missing_libraries([provider, {"libcudart.so.12": set()}]) == {"libprovider_cuda.so": {"libcudart.so.13"}}
    assert missing_libraries([provider, {"libcudart.so.13": set()}]) == {}
    assert missing_libraries([{"libprovider_tensorrt.so": {"libnvinfer.so.10"}}]) == {}  # no extra promises it


def test_gpu_packages_are_pinned_beside_the_others_not_instead() -> None:
    known, text = pins(), (ROOT / "constraints-gpu.txt").read_text()
    assert known["faiss-gpu"] == known["faiss-cpu"]
    assert known["onnxruntime-gpu"] == known["onnxruntime"]
    assert "-c constraints.txt" in text.splitlines()
    names = [line.split("==")[0] for line in text.splitlines() if "==" in line]
    assert names == sorted(set(names))
    others = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert not others & set(names)
