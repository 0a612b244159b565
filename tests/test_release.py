"""This version could be released, and what a tag needs is noticed where it is missing."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tools.release import NAMED, missing_libraries, pins, tree_problems

from .conftest import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
NEXT = VERSION.partition(".dev")[0]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the files that name the version, as they are when it is released."""
    for name in (*NAMED, "pyproject.toml", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text().replace(VERSION, NEXT)
        (tmp_path / name).write_text(text.replace("## Unreleased\n", f"## {NEXT} - 2027-01-31\n"))
    (tmp_path / f"tests/releases/{NEXT}.tar.xz").parent.mkdir(parents=True)
    (tmp_path / f"tests/releases/{NEXT}.tar.xz").touch()
    return tmp_path


def test_this_tree_names_its_version_everywhere(tree: Path) -> None:
    in_development = [f"{VERSION} is in development: set the version to release."] if VERSION != NEXT else []
    assert tree_problems(ROOT) == in_development
    assert tree_problems(tree, f"v{NEXT}") == []


@pytest.mark.parametrize("name", [*NAMED, "CHANGELOG.md"])
def test_a_file_that_names_another_version_is_named(name: str, tree: Path) -> None:
    (tree / name).write_text((tree / name).read_text().replace(NEXT, "9.9.9"))
    (problem,) = tree_problems(tree)
    assert problem.startswith(f"{name} ")


def test_changes_of_a_version_in_development_are_unreleased(tree: Path) -> None:
    for name in (*NAMED, "pyproject.toml"):
        (tree / name).write_text((tree / name).read_text().replace(NEXT, "9.9.9.dev0"))
    dated, unfinished = tree_problems(tree)
    assert dated == "CHANGELOG.md does not begin with Unreleased and a section Upgrade."
    assert unfinished == "9.9.9.dev0 is in development: set the version to release."


def test_another_tag_and_a_missing_archive_are_named(tree: Path) -> None:
    (tree / f"tests/releases/{NEXT}.tar.xz").unlink()
    first, second = tree_problems(tree, "v0.1.9")
    assert first == f"The tag v0.1.9 is not v{NEXT}."
    assert f"{NEXT}.tar.xz" in second


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
