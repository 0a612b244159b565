"""Check that a version can be released: `python -m tools.release`, or `make release-check`. A tag v1.2.3 needs it.

The version's name is the same everywhere, its changes are dated, and its files are kept for later versions to open. A
version in development (1.2.3.dev0) lists its changes as unreleased and is not released.
The GPU extras resolve to pinned packages alone, and every library that their wheels need is in one of these wheels or
comes with the driver. That takes pip, readelf and 3 GB of downloads, which are deleted again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GPU = ("serve-gpu", "train-gpu")  # extras
DRIVER = {"libcuda.so.1"}
SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|z)|ld-linux-x86-64)\.so\.\d+")  # in python:slim, too
OPTIONAL = "tensorrt"  # the provider whose libraries the extras leave out
NAMED = {  # files that name the version
    "deploy/docker-compose.yml": r"image: retrieval:(\S+)",
    "deploy/docker-compose.gpu.yml": r"image: retrieval-gpu:(\S+)",
    "deploy/kubernetes/deployment.yaml": r"image: retrieval:(\S+)",
    "deploy/kubernetes/gpu/kustomization.yaml": r"newTag: (\S+)",
    "deploy/kubernetes/index.yaml": r"image: retrieval:(\S+)",
    "deploy/kubernetes/loader.yaml": r"image: retrieval:(\S+)",
    "deploy/kubernetes/kustomization.yaml": r"newTag: (\S+)",
    "Dockerfile": r"retrieval:(\d+\.\d+[\w.]+)",
}


def tree_problems(root: Path = ROOT, tag: str = "") -> list[str]:
    """Return what keeps the version of a checkout from being released, in sentences."""
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    problems = [] if tag in ("", f"v{version}") else [f"The tag {tag} is not v{version}."]
    changes, in_development = (root / "CHANGELOG.md").read_text(), ".dev" in version
    title = "Unreleased" if in_development else rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d"
    first = re.search(r"^## .*?(?=^## |\Z)", changes, re.MULTILINE | re.DOTALL)
    if first is None or not re.match(rf"## {title}\n\n### Upgrade\n", first[0]):
        wanted = "Unreleased" if in_development else f"{version}, its date"
        problems.append(f"CHANGELOG.md does not begin with {wanted} and a section Upgrade.")
    if in_development:
        problems.append(f"{version} is in development: set the version to release.")
    elif not (root / f"tests/releases/{version}.tar.xz").exists():
        problems.append(f"tests/releases has no {version}.tar.xz: python -m tests.releases.make makes it.")
    for name, pattern in NAMED.items():
        if set(re.findall(pattern, (root / name).read_text())) != {version}:
            problems.append(f"{name} does not name the version {version} everywhere.")
    return problems


def missing_libraries(wheels: Iterable[Mapping[str, set[str]]]) -> dict[str, set[str]]:
    """Return the libraries that no wheel, driver or system supplies, by the library that needs them.

    Each wheel is given as the names of its libraries, with those that each one needs.
    """
    needed: dict[str, set[str]] = {}
    for wheel in wheels:
        needed |= {name: set(others) for name, others in wheel.items()}
    supplied = needed.keys() | DRIVER
    lacking = {
        name: {other for other in others - supplied if not SYSTEM.fullmatch(other)}
        for name, others in needed.items()
        if OPTIONAL not in name
    }
    return {name: others for name, others in lacking.items() if others}


def libraries(wheel: Path) -> dict[str, set[str]]:
    """Return the libraries in a wheel, with the names of those that each one needs."""
    found: dict[str, set[str]] = {}
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        for name in archive.namelist():
            if re.search(r"\.so(\.\d+)*$", name):
                told = _run("readelf", "-d", archive.extract(name, folder))
                found[Path(name).name] = set(re.findall(r"\(NEEDED\).*\[(.*)\]", told))
    return found


def resolved(extra: str) -> dict[str, tuple[str, str]]:
    """Return version and address of each package that pip would install for an extra with the pins, by its name."""
    told = _pip("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", f"{ROOT}[{extra}]")
    each = ((one["metadata"], one["download_info"]["url"]) for one in json.loads(told)["install"])
    packages = {re.sub(r"[-_.]+", "-", about["name"]).lower(): (about["version"], url) for about, url in each}
    return {name: found for name, found in packages.items() if name != "retrieval"}


def pins() -> dict[str, str]:
    """Return the pinned version of each package, the newest where a range is pinned."""
    lines = [line for name in ("constraints.txt", "constraints-gpu.txt") for line in (ROOT / name).read_text().split()]
    pairs = (re.split("[<=]=", line) for line in lines if re.fullmatch(r"[\w.-]+[<=]=\S+", line))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def gpu_problems() -> list[str]:
    """Return what keeps the GPU extras from working on a machine that has a driver only, in sentences."""
    problems, known, chosen = [], pins(), dict[str, str]()
    for extra in GPU:
        packages = resolved(extra)
        loose = [f"{name} {found}" for name, (found, _) in packages.items() if found.split("+")[0] != known.get(name)]
        problems += [f"{extra} installs {name}, which is not pinned." for name in loose]
        if extra == GPU[0]:
            chosen = {name: url for name, (_, url) in packages.items() if _has_cuda(name)}
    with tempfile.TemporaryDirectory() as folder:
        _pip("download", "--quiet", "--no-deps", "--dest", folder, *chosen.values())
        lacking = missing_libraries(map(libraries, Path(folder).glob("*.whl")))
    return problems + [f"{name} needs {', '.join(sorted(others))}." for name, others in sorted(lacking.items())]


def _has_cuda(name: str) -> bool:
    return name.startswith("nvidia-") or name in ("faiss-gpu", "onnxruntime-gpu")


def _pip(*words: str) -> str:
    return _run(sys.executable, "-m", "pip", *words, "--constraint", str(ROOT / "constraints-gpu.txt"))


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Print what is wrong, and exit with 1 if anything is."""
    tag = os.environ.get("GITHUB_REF_NAME", "") if os.environ.get("GITHUB_REF_TYPE") == "tag" else ""
    problems = [*tree_problems(tag=tag), *gpu_problems()]
    print("\n".join(problems) or "This version can be released.")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
