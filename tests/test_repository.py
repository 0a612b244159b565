"""The repository keeps its promises: packages, pins, imports, help, documentation."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from retrieval.cli.main import COMMANDS, LazyGroup, group
from tools.release import pins
from tools.tree import tree_files

from .conftest import ROOT

PACKAGES = {"index", "retrieval", "training", "serving"}


@pytest.mark.end_to_end
def test_the_wheel_holds_exactly_the_four_packages(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == PACKAGES
    for package in PACKAGES:
        built = {name for name in names if name.startswith(f"{package}/")}
        there = {str(f.relative_to(ROOT)) for f in tree_files() if f.relative_to(ROOT).parts[0] == package}
        assert there <= built


def test_importing_does_nothing_heavy() -> None:
    for package in ("index", "retrieval", "serving", "retrieval.cli.main"):
        heavy = "('torch', 'faiss', 'onnxruntime', 'gradio')"
        script = f"import sys, {package}; print(*[m for m in {heavy} if m in sys.modules])"
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
        assert result.stdout.split() == [], package


def test_pins_satisfy_what_is_declared() -> None:
    pinned = pins()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for text in [*project["dependencies"], *(text for e in extras.values() for text in e)]:
        requirement = Requirement(text)
        if requirement.name == project["name"]:
            assert requirement.extras <= set(extras)
            continue
        assert requirement.specifier.contains(pinned[requirement.name.lower()]), text
    assert pinned["torch"] == "2.13.0"
    assert "torchvision" not in pinned


def test_the_table_of_pins_has_the_version_and_date_of_each_direct_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = (text for extra in project["optional-dependencies"].values() for text in extra)
    direct = {canonicalize_name(Requirement(text).name) for text in [*project["dependencies"], *wanted]}
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Pinned versions")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| .+ \|$", table, re.MULTILINE)[2:]
    told = {canonicalize_name(name): pin for row in rows for name, pin in re.findall(r"([\w-]+) (\d[\w.]*)", row[0])}
    assert told == {name: pin for name, pin in pins().items() if name in told}
    assert direct - {project["name"]} <= set(told)
    assert all(re.match(r"2026-\d\d-\d\d", date) for _, date in rows)


def commands(parent: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(parent, click.Group):
        return [path]
    context = click.Context(parent)
    found = [path] if path else []
    for name in parent.list_commands(context):
        child = parent.get_command(context, name)
        assert child is not None
        found += commands(child, (*path, name))
    return found


def test_every_command_helps_with_an_example() -> None:
    for path in commands(group):
        command: click.Command = group
        for name in path:
            assert isinstance(command, click.Group)
            found = command.get_command(click.Context(command), name)
            assert found is not None
            command = found
        text = command.get_help(click.Context(command, info_name=" ".join(path)))
        assert "Example" in text, path
        assert f"retrieval {path[0]}" in text, path


def test_the_table_of_commands_is_the_help() -> None:
    assert isinstance(group, LazyGroup)
    text = group.get_help(click.Context(group))
    assert all(name in text and entry.summary in text for name, entry in COMMANDS.items())


def test_functions_have_at_most_60_lines() -> None:
    long = []
    for path in tree_files():
        if path.suffix != ".py" or path.relative_to(ROOT).parts[0] not in PACKAGES:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                long += [f"{path.name}, {node.name}: {lines} lines"] if lines > 60 else []
    assert not long


PATH = re.compile(r"`((?:\w[\w.-]*/)+[\w.-]*)`|\]\(([\w./-]+)\)")


def test_every_path_named_in_contributing_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    names = {code or link for code, link in PATH.findall(text)}
    assert len(names) > 20
    patterns = {name for name in names if re.search("NAME|VERSION", name)}
    assert not sorted(name for name in names - patterns if not (ROOT / name).exists())


def test_every_module_of_the_reference_exists() -> None:
    names = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)
    assert len(names) > 10
    for name in names:
        path = ROOT / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").exists() or path.parent.with_suffix(".py").exists(), name


# folders of people and of workplaces, wherever the tree itself lies
PERSONAL = re.compile(r"(?<![\w.-])(?:[A-Z]:\\Users\\|/(?:home|Users|root|work|workspace|mnt|media)/)\w")


def test_no_path_of_one_machine_is_in_the_tree() -> None:
    assert all(
        PERSONAL.search(place) for place in ("in /home/ada/photos", "'/root/x'", "C:\\Users\\ada", "(/work/tree)")
    )
    for path in tree_files():
        if path.suffix not in (".jpg", ".xz") and path.name != Path(__file__).name:
            assert not PERSONAL.findall(path.read_text(errors="replace")), path.name


def test_the_image_serves_without_torch_and_without_root() -> None:
    text = (ROOT / "Dockerfile").read_text()
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    (run,) = (stage for stage in stages if re.match(r"\S+ AS run\n", stage))
    assert re.search(r"^USER (?!root)\w+", run, re.MULTILINE)
    assert "HEALTHCHECK" in run
    assert "/readyz" in run
    assert "COPY LICENSE NOTICE " in run
    finals = [stage for stage in stages if re.match(r"run AS (cpu|cuda|demo)\n", stage)]
    assert len(finals) == 3
    assert not any("USER" in stage or "RUN" in stage for stage in finals)
    bases = {stage.split()[0] for stage in stages} - {stage.split()[2] for stage in stages}
    assert len(bases) == 1  # one Python, with nothing of CUDA
    assert all(re.fullmatch(r"\w+:\d\S+", base) for base in bases)
    assert set(re.findall(r"^COPY (\w+) \w+$", text, re.MULTILINE)) == PACKAGES
    installs = re.findall(r"pip install .*", text)
    assert installs
    assert not any(re.search(r"\btrain\b|torch", line) for line in installs)
