"""deploy/space: what it installs, and that it serves the demo from a folder of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import httpx
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ..conftest import ROOT
from ..world import draw
from .conftest import until
from .test_gradio_demo import free_port

SPACE = ROOT / "deploy" / "space"


def test_a_space_installs_what_serving_and_the_demo_need_at_the_versions_that_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = [
        *project["dependencies"],
        *(text for extra in ("server", "serve", "text", "demo") for text in extras[extra]),
    ]
    needed = {canonicalize_name(Requirement(text).name) for text in names} - {project["name"]}
    header = yaml.safe_load((SPACE / "README.md").read_text().split("---")[1])
    told = [line for line in (SPACE / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    told.append(f"gradio=={header['sdk_version']}")
    assert {line.partition("==")[0] for line in told} == needed
    lines = (line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#"))
    pins = {canonicalize_name(pin.name): pin.specifier for pin in map(Requirement, lines)}
    always = (one for one in map(Requirement, requires("gradio") or ()) if one.marker is None)
    taken = {canonicalize_name(one.name): one.specifier for one in always}
    for name, _, version in (line.partition("==") for line in told):
        assert (pins[name] & taken.get(name, SpecifierSet())).contains(version), name
    assert (header["sdk"], header["app_file"], header["python_version"]) == ("gradio", "app.py", "3.11")


@pytest.mark.end_to_end
def test_a_space_serves_the_demo_from_its_own_folder(world: Path, tmp_path: Path) -> None:
    """The packages are those that its README copies there, and no other one is on the path."""
    space, port = tmp_path / "space", free_port()
    shutil.copytree(SPACE, space)
    (copied,) = re.findall(r"^cp -r ([\w ]+) deploy/space/$", (SPACE / "README.md").read_text(), re.MULTILINE)
    for package in copied.split():
        shutil.copytree(ROOT / package, space / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("bundle", "gallery"):
        shutil.copytree(world / name, space / name)
    (space / "examples").mkdir()
    draw(3, 5).save(space / "examples" / "1-known.jpg")
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"GRADIO_SERVER_PORT": str(port), "GRADIO_SERVER_NAME": "127.0.0.1", "SPACE_ID": "somebody/space"}
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "app.py"], cwd=space, env=variables, stdout=out, stderr=out)
    address = f"http://127.0.0.1:{port}"
    try:
        headers = {"x-forwarded-host": "somebody-space.hf.space", "x-forwarded-proto": "https"}
        until(lambda: f"Demo at {address}" in log.read_text() or process.poll() is not None, 120)
        config = httpx.get(f"{address}/config", headers=headers, timeout=120).json()
    finally:
        process.terminate()
        process.wait(60)
    assert config["root"] == "https://somebody-space.hf.space"
    assert "1-known.jpg" in str(config)
