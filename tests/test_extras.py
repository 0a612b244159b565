"""Each extra does its job alone in a fresh environment, and one that is missing is one line that installs it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retrieval.errors import MODULES

from .conftest import ROOT
from .test_file_errors import CONFIG
from .world import make_bundle, write_folder

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
LOCAL = {"index", "retrieval", "serving", "training"}
ALWAYS = {"PIL", "click", "jinja2", "numpy", "pyarrow", "pydantic", "pydantic_core", "threadpoolctl", "tqdm"}
OF_OTHERS = {"aiohttp", "mlflow", "wandb"}  # their own check says what to install
NEEDED_IN_TURN = {"anyio", "grpc", "huggingface_hub", "sqlalchemy", "starlette"}

# what each command needs, and the words that make it go as far as that
VERBS = {
    "demo": ("train", "-o NEW"),
    "losses": ("train", ""),
    "train": ("train", "PHOTOS --config CONFIG -o NEW"),
    "tune": ("train", "PHOTOS --config CONFIG -o NEW"),
    "evaluate": ("train", "RUN"),
    "explain": ("train", "RUN"),
    "export": ("train", "RUN -o NEW"),
    "export --onnx": ("export", "FILE -o NEW"),
    "research run vmf-figure-2": ("train", "--data PHOTOS -o NEW --smoke-test"),
    "index": ("serve", "BUNDLE PHOTOS -o NEW"),
    "search": ("serve", "BUNDLE GALLERY PHOTO"),
    "serve": ("serve", "BUNDLE GALLERY --port 0"),
    "serve --gradio": ("demo", "BUNDLE GALLERY --port 0"),
}
CHECKOUT = {"research", "pytorch_metric_learning"}  # what the wheel does not hold, and what only that needs
BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from retrieval.cli.main import main
main()
"""


def imported() -> set[str]:
    """Return the packages of others that the product imports."""
    found = set()
    for file in (file for package in LOCAL for file in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module).partition(".")[0])
    return found - LOCAL - set(sys.stdlib_module_names)


def test_every_package_that_is_imported_is_in_an_extra() -> None:
    known = {module for modules in MODULES.values() for module in modules}
    assert imported() <= known | ALWAYS | OF_OTHERS | NEEDED_IN_TURN
    assert set(MODULES) <= set(EXTRAS)


def blocked(modules: set[str], words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command where some packages cannot be imported."""
    script = BLOCKED.replace("BLOCKED", repr(modules))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, "-c", script, *words], check=False, capture_output=True, text=True, cwd=folder, env=environment
    )


@pytest.fixture(scope="module")
def places(world: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("extras")
    (folder / "config.toml").write_text(CONFIG)
    photos = write_folder(folder / "photos", items=range(20), photos=range(4))
    make_bundle(folder)
    return {
        "BUNDLE": str(world / "bundle"),
        "GALLERY": str(world / "gallery"),
        "PHOTOS": str(photos),
        "PHOTO": str(photos / "item-00" / "0.png"),
        "CONFIG": str(folder / "config.toml"),
        "RUN": str(folder / "run"),
        "FILE": str(folder / "config.toml"),
    }


@pytest.mark.slow
def test_a_missing_extra_is_one_line_from_every_command(places: dict[str, str], tmp_path: Path) -> None:
    for verb, (extra, options) in VERBS.items():
        words = [{**places, "NEW": str(tmp_path / "new")}.get(word, word) for word in options.split()]
        done = blocked(set(MODULES[extra]) | NEEDED_IN_TURN, [*verb.split(), *words], tmp_path)
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        (last,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert last.endswith(f"pip install -c constraints.txt '.[{extra}]'"), last
        assert list(tmp_path.iterdir()) == [], verb


@pytest.mark.end_to_end
def test_a_run_trained_with_a_loss_of_the_checkout_is_judged_exported_and_searched_without_it(
    places: dict[str, str], tmp_path: Path
) -> None:
    train = ["train", places["PHOTOS"], "--config", places["CONFIG"], "--loss", "multi_similarity", "-o", "run"]
    refused = blocked(CHECKOUT, train, tmp_path)
    assert refused.returncode == 1
    assert "loss must be one of" in refused.stderr
    trained = blocked(set(), train, tmp_path)
    assert trained.returncode == 0, trained.stderr
    later = ["evaluate run", "export run -o bundle --target-fpir 0.3", "index bundle PHOTOS -o gallery"]
    for line in (*later, "search bundle gallery PHOTO"):
        done = blocked(CHECKOUT, [places.get(word, word) for word in line.split()], tmp_path)
        assert done.returncode == 0, done.stderr
    assert "item-00" in done.stdout


# each extra alone


def alone() -> dict[str, str]:
    """Return the process's variables without those that let another environment in."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


@pytest.fixture(scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that makes a fresh environment with an extra; skip where no package index answers."""
    folder = tmp_path_factory.mktemp("environments")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    probe = [*pip, "download", "--quiet", "--no-deps", "--dest", str(folder), f"click=={PINS['click']}"]
    if subprocess.run(probe, check=False, capture_output=True).returncode:
        pytest.skip("package index: none is reachable by pip")

    def make(extra: str, *first: str, into: str = "") -> Path:
        home = folder / (into or extra)
        if not into:
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
        command = [*pip, "--python", str(home / "bin" / "python"), "install", "--quiet", "--no-compile", "-c"]
        command.append(str(ROOT / "constraints.txt"))
        for wanted in (*first, f"{ROOT}[{extra}]"):
            subprocess.run([*command, wanted], check=True, capture_output=True, text=True, env=alone())
        return home / "bin"

    return make


def does(command: list[str | Path], folder: Path) -> str:
    """Run a command in an environment of its own and return what it prints; it must succeed."""
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, cwd=folder, env=alone())
    assert done.returncode == 0, done.stderr
    return done.stdout


def has(home: Path, module: str, folder: Path) -> bool:
    """Return whether an environment has a module."""
    script = f"import importlib.util as u; print(u.find_spec({module!r}) is not None)"
    return does([home / "python", "-c", script], folder) == "True\n"


@contextmanager
def answering(home: Path, bundle: Path, gallery: Path, folder: Path) -> Iterator[str]:
    """Run `retrieval serve` of an environment until the block ends; yield its address."""
    command = [home / "retrieval", "serve", bundle, gallery, "--port", "0"]
    with (folder / "serve.log").open("w") as log:
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=log, text=True, env=alone())
    try:
        matches = (re.match(r"Search at (http://[\d.:]+)/", line) for line in process.stdout)
        address = next((match[1] for match in matches if match), "")
        assert address, (folder / "serve.log").read_text()
        yield address
    finally:
        process.terminate()
        process.stdout.close()
        process.wait()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_serve_and_client_alone_and_ray_beside_serve(install: Callable[..., Path], tmp_path: Path) -> None:
    serve, client = install("serve"), install("client")
    assert not has(serve, "gradio", tmp_path)  # the page needs none
    assert not any(has(serve, module, tmp_path) for module in ("torch", "transformers", "onnx"))
    assert not any(has(client, module, tmp_path) for module in ("torch", "onnxruntime", "faiss", "fastapi"))
    bundle = make_bundle(tmp_path).path
    photos = write_folder(tmp_path / "photos", items=range(5))
    retrieval = serve / "retrieval"
    assert "15 photos added" in does([retrieval, "index", bundle, photos, "-o", "gallery"], tmp_path)
    photo = photos / "item-03" / "0.png"
    assert "item-03" in does([retrieval, "search", bundle, "gallery", photo], tmp_path)
    assert "No problems found." in does([retrieval, "doctor", bundle, "gallery"], tmp_path)
    ask = """
import sys, httpx
from retrieval.client import RetrievalClient
address, photo = sys.argv[1:]
while True:  # until the server listens
    try:
        if httpx.get(address).status_code == 200:
            break
    except httpx.TransportError:
        pass
with RetrievalClient(address) as client:
    print(client.search(photo).matches[0].item_id)
"""
    with answering(serve, bundle, tmp_path / "gallery", tmp_path) as address:
        assert does([client / "python", "-c", ask, address, photo], tmp_path) == "item-03\n"

    install("ray", into="serve")  # the engine runs the embedder of `serve`, so it needs that extra
    assert not any(has(serve, module, tmp_path) for module in ("torch", "transformers", "pymilvus"))
    command = list(map(str, [retrieval, "index", bundle, photos, "-o", "by-ray", "--engine", "ray"]))
    for _ in range(5):  # Ray itself gives up after 30 s of starting, which a busy machine may take
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=alone())
        if "timed out during startup" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    assert "15 photos added" in done.stdout
    assert "item-03" in does([retrieval, "search", bundle, "by-ray", photo], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_train_alone(install: Callable[..., Path], tmp_path: Path) -> None:
    train = install("train", "torch")  # first, so that the pinned one is found where it lies
    version = does([train / "python", "-c", "import torch; print(torch.__version__)"], tmp_path)
    assert version.partition("+")[0].strip() == PINS["torch"]
    assert not any(has(train, module, tmp_path) for module in ("fastapi", "gradio"))
    photos = write_folder(tmp_path / "photos", items=range(20), photos=range(6))
    (tmp_path / "config.toml").write_text(CONFIG)
    retrieval = train / "retrieval"
    assert "smooth_ap" in does([retrieval, "losses"], tmp_path)
    assert not has(train, "pytorch_metric_learning", tmp_path)
    does([retrieval, "train", photos, "--config", "config.toml", "-o", "run"], tmp_path)
    does([retrieval, "evaluate", "run"], tmp_path)
    export = [retrieval, "export", "run", "-o", "bundle", "--target-fpir", "0.3"]
    does(export, tmp_path)
    assert "intact" in does([retrieval, "doctor", "bundle"], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_verify_alone(install: Callable[..., Path], tmp_path: Path) -> None:
    home = install("verify")
    assert not any(has(home, module, tmp_path) for module in ("torch", "onnxruntime", "faiss", "sklearn"))
    script = """
import numpy as np
from PIL import Image
from retrieval.verification.verifier import GeometricVerifier
from retrieval.verification.vocabulary import Vocabulary
generator = np.random.default_rng(0)
centres = generator.integers(0, 100, (8, 128), dtype=np.uint8)
verifier = GeometricVerifier(Vocabulary(centres, np.ones(8, np.float32)))
verifier = GeometricVerifier.unpack(verifier.pack())
pixels = generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)
photo = Image.fromarray(pixels).resize((320, 240))
query = verifier.describe(photo.rotate(10))
print(verifier.inliers(query, [verifier.describe(photo)])[0] > 30)
"""
    assert does([home / "python", "-c", script], tmp_path) == "True\n"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_milvus_alone(install: Callable[..., Path], tmp_path: Path) -> None:
    home = install("milvus")
    assert not any(has(home, module, tmp_path) for module in ("torch", "onnxruntime", "fastapi"))
    script = """
import sys
import numpy as np
from index.milvus.gallery import MilvusGallery
vectors = np.eye(4, dtype=np.float32)
gallery = MilvusGallery.create(sys.argv[1], dim=4, embedding_id="e")
gallery.add(list("abcd"), ["cup", "cup", "jar", "lid"], vectors)
gallery.close()
gallery = MilvusGallery.open(sys.argv[1])
print([(found.item_id, round(found.distance, 3)) for found in gallery.search(vectors[2:3], 2)[0]])
gallery.close()
"""
    told = does([home / "python", "-W", "ignore", "-c", script, f"milvus+{tmp_path}/lite.db/shop"], tmp_path)
    assert told.splitlines()[-1].startswith("[('jar', 0.0), (")


@pytest.mark.slow
def test_sources_alone(install: Callable[..., Path], tmp_path: Path) -> None:
    home = install("sources")
    script = (
        "import io, pillow_heif; from PIL import Image; from retrieval.images import open_image\n"
        "file = io.BytesIO(); pillow_heif.from_pillow(Image.new('RGB', (40, 30))).save(file)\n"
        "print(open_image(file.getvalue()).size)\n"
        "import fsspec; from pathlib import Path; from retrieval.catalogue import remote\n"
        "fsspec.filesystem('memory').pipe('/a/1.jpg', b'photo'); remote.SCHEMES += ('memory',)\n"
        "print(remote.RemotePhoto('a', Path(), 'item', url='memory://a/1.jpg').read())"
    )
    told = does([home / "python", "-c", script], tmp_path)
    assert told.splitlines() == ["(40, 30)", "b'photo'"]
