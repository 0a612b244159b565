"""Every command that the product prints for the user to run next is run here, with names that a shell must quote."""

from __future__ import annotations

import ast
import dataclasses
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import uvicorn

from index.shell import command
from retrieval.bundle.bundle import CALIBRATION, FITTED, Bundle
from retrieval.bundle.calibration_set import CalibrationSet
from retrieval.bundle.fitted import Fitted
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import COMMANDS, main
from retrieval.indexing.pipeline import index_catalogue
from retrieval.listening import bind
from retrieval.threshold.calibrate import calibrate
from retrieval.threshold.forecast import fpir_forecast
from serving.http.keys import add_key, read_keys

from .conftest import ROOT
from .retrieval.regions.scenes import write_detector
from .retrieval.threshold.test_gallery_size import searches, simulated
from .world import make_bundle, write_folder

pytestmark = pytest.mark.usefixtures("empty_pictures")

PACKAGES = ("index", "research", "retrieval", "serving", "training")
PLACE = 'it\'s a  "shop" & more; $HOME'
SLOW = ("train", "tune", "evaluate", "export", "research")
QUICK = {"size": 32, "dim": 16, "epochs": 1, "items_per_batch": 4, "freeze_batch_norm": False, "flip": False}

# what stands for words in capitals and for what the code fills in; NEW is a name that is not taken
WORDS = {
    "BUNDLE": "bundle",
    "GALLERY": "gallery",
    "PHOTOS": "photos",
    "CATALOGUE": "photos",
    "DATA": "photos",
    "RUN": "run",
    "KEY": "shop.key",
    "FILE": "keys.json",
    "NEW": "NEW",
    "NEW_GALLERY": "NEW",
    "NEW.parquet": "NEW.parquet",
    "bundle": "bundle",
    "bundle.path": "bundle",
    "old": "bundle",
    "gallery": "gallery",
    "gallery.path": "gallery",
    "opened.path": "gallery",
    "LABELLED.csv": "labelled",
    "photos": "photos",
    "output / 'run'": "NEW",
    "gallery_path": "gallery",
    "run": "run",
    "run.path": "run",
    "catalogue": "photos",
    "keys": "new-keys.json",
    "detector": "detector.onnx",
    "self.path": "keys.json",
    "file": "shop.key",
    "f'{key}.pub'": "shop.key.pub",
    "config": "settings.toml",
    "new": "NEW",
    "address": "NEW",
    "path.parent": "NEW",
    "output / 'bundle'": "bundle",
    "output / 'gallery'": "gallery",
}
PLAIN = {
    "NAME": "somebody",
    "str(result.photos)": "2",
    "NAME:KIND": "colour:text",
    "N": "2",
    "entry.name": "vmf-figure-2",
    "SEARCH": "learning_rate=1e-5..1e-3:log",
    "f'runs/{Path(catalogue).stem}'": f"runs/{PLACE}",
    "f'runs/{output.stem}'": f"runs/{PLACE}",
    "f'runs/{output.resolve().name}'": f"runs/{PLACE}",
    "f'bundles/{run.name}'": f"bundles/{PLACE}",
    "f'galleries/{output.name}'": f"galleries/{PLACE}",
}
OWN: dict[tuple[str, ...], str] = {  # where a name means something else in one place than in others
    ("retrieval/cli/data.py", "output"): "photos",
    ("training/data/cli.py", "output"): "photos",
    ("retrieval/cli/commands.py", "output"): "gallery",
    ("retrieval/cli/commands.py", "'serve'", "output", "'GALLERY'", "output"): "bundle",
    ("training/export/cli.py", "output"): "bundle",
    ("training/cli.py", "output"): "run",
    ("retrieval/cli/feedback.py", "output"): "labelled",
    ("training/cli.py", "'train'", "RUN"): "NEW",
    ("serving/http/keys.py", "SEARCH"): "=search",
    ("serving/http/guard.py", "scope"): "=admin",
    ("index/filters.py", "name"): "=colour",
    ("index/location.py", "place"): "gallery",
    ("training/cli.py", "name"): "=contrastive",
    ("research/papers/cli.py", "NAME"): "=vmf-figure-2",
    ("retrieval/cli/gallery.py", "path"): "gallery",
    ("retrieval/cli/quickstart.py", "backbone"): "=efficientnet-lite0",
    ("retrieval/cli/quickstart.py", "place"): "photos",
    ("retrieval/bundle/bundle.py", "path"): "NEW",
    ("training/loop/run.py", "path"): "NEW",
    ("training/tune/study.py", "path"): "NEW",
}


class Printed(NamedTuple):
    """A call of `command`: where it stands, and its arguments as the code has them."""

    file: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}: {' '.join(self.arguments)}".replace("'", "")

    def words(self, folder: Path) -> list[str]:
        """Return the words that are printed, with names of things in a folder."""
        return [text for argument in self.arguments for text in self._of(argument, folder)]

    def _of(self, argument: str, folder: Path) -> list[str]:
        literal = argument[0] in "'\""
        word = str(ast.literal_eval(argument)) if literal else argument
        if literal and word == word.lower():
            return [word]
        if word == "*examples":
            return ["--examples", str(folder / "photos")]
        keys = ((self.file, *self.arguments, word), (self.file, self.arguments[0], word), (self.file, word))
        value = next((OWN[key] for key in keys if key in OWN), WORDS.get(word))
        if value is not None:
            return [value[1:] if value[0] == "=" else str(folder / value)]
        assert word in PLAIN, f"tell this test what {argument} stands for in {self.file}"
        return [PLAIN[word]]


@cache
def texts() -> list[tuple[str, str]]:
    """Return the name and the text of each module."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return [(file.relative_to(ROOT).as_posix(), file.read_text()) for file in files]


def sources(holding: str) -> list[tuple[str, ast.Module]]:
    """Return the name and the syntax tree of each module that matches a pattern, with adjacent strings joined."""
    pattern = re.compile(holding)
    pieces = re.compile(r'"\s+f?"')
    return [(name, ast.parse(text)) for name, text in texts() if pattern.search(pieces.sub("", text))]


@cache
def printed() -> list[Printed]:
    """Return every call of `command` in the product."""
    found = [
        Printed(file, tuple(ast.unparse(argument) for argument in node.args))
        for file, tree in sources(holding=r"command\(")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "command" and node.args
        if not any(isinstance(argument, ast.Starred) and node.keywords for argument in node.args)
    ]
    return sorted(set(found))


def test_no_command_is_printed_that_is_not_quoted_for_the_shell() -> None:
    """Commands with arguments, in any text that is no docstring and no help, are made by `index.shell.command`."""
    verbs = "|".join(re.escape(name) for name in COMMANDS)
    written = re.compile(rf"\bretrieval ({verbs}) [^`,.;:)]")
    wrong = []
    for file, tree in sources(holding=f"Next: ret|{written.pattern}"):
        if file == "research/papers/page.py":  # writes docs/papers.md
            continue
        docs = {
            node.body[0].value
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "help":
                docs |= set(ast.walk(node.value))
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if node not in docs and (text.startswith("Next: ret") or written.search(text)):
                wrong.append(f"{file}:{node.lineno}: {text}")  # type: ignore[attr-defined]
    assert [text for text in wrong if "that `retrieval" not in text] == []


def options() -> set[str]:
    import click

    from retrieval.cli.main import group

    def of(parent: click.Command) -> set[str]:
        found = {name for parameter in parent.params for name in (*parameter.opts, *parameter.secondary_opts)}
        if isinstance(parent, click.Group):
            context = click.Context(parent)
            for name in parent.list_commands(context):
                child = parent.get_command(context, name)
                assert child is not None
                found |= of(child)
        return found

    return of(group)


def test_every_option_that_a_remedy_names_exists() -> None:
    known = options() | {"--version", "--help"}
    wrong = []
    for file, tree in sources(holding="remedy="):
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "remedy":
                named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", ast.unparse(node.value)))
                wrong += [f"{file}: {name}" for name in named - known if f"{name}." not in ast.unparse(node.value)]
    assert wrong == []


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder, with a name that a shell must quote, of one of everything."""
    folder = tmp_path_factory.mktemp("printed") / PLACE
    folder.mkdir()
    vectors, labels = simulated(300, 4, seed=0)
    scores = searches(vectors, labels, np.arange(300), 4)
    names = np.arange(len(scores.own)).astype(str)
    packed = CalibrationSet(scores, None, names, np.ones(len(names), np.float32)).pack()
    files = {CALIBRATION: packed, FITTED: Fitted.of([], []).pack()}
    bundle = make_bundle(folder, point=calibrate(scores), files=files)
    photos = write_folder(folder / "photos", items=range(20), photos=range(4))
    index_catalogue(bundle, read_catalogue(photos), folder / "gallery", progress=False)
    write_folder(folder / "labelled", items=range(20), photos=range(4, 5))
    write_detector(folder / "detector.onnx", np.float32([[0, 0, 30, 30]]), np.float32([0.9]))
    add_key(folder / "keys.json", "shop", "search")
    lines = [f'catalogue = "{photos}"'.replace('"shop"', '\\"shop\\"')]
    (folder / "settings.toml").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def trained(shop: Path) -> Path:
    """Return the shop with a trained run."""
    from training.config import Settings
    from training.loop.train import train

    train(Settings(catalogue=str(shop / "photos"), **QUICK), shop / "run")  # type: ignore[arg-type]
    return shop


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands do what they do, but less of it: short trainings, and a server that ends at once."""
    from research.papers import runs
    from training import cli
    from training.tune import cli as tuning
    from training.tune import plan

    gather, make_plan, wanted = cli.gather_settings, plan.make_plan, runs.Options

    def short(*arguments: Any, **named: Any) -> Any:
        return dataclasses.replace(gather(*arguments, **named), **QUICK)

    def few(settings: Any, axes: Any, chosen: Any) -> Any:
        return make_plan(settings, axes, dataclasses.replace(chosen, trials=1, folds=2))

    def run(server: uvicorn.Server, sockets: list[Any]) -> None:
        for listener in sockets:
            listener.close()
        server.started = True

    for module in (cli, tuning):
        monkeypatch.setattr(module, "gather_settings", short)
    monkeypatch.setattr(plan, "make_plan", few)
    monkeypatch.setattr(runs, "Options", lambda **named: wanted(**(named | {"smoke_test": True})))
    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr("serving.launch.bind", lambda host, _: bind(host, 0))  # the port may be taken here
    monkeypatch.setattr("serving.launch.logging.basicConfig", lambda **_: None)
    monkeypatch.setattr("serving.launch.signal.signal", lambda *_: None)


def run_line(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a printed command in this process, and return its status."""
    words = shlex.split(line)
    split = subprocess.run(["sh", "-c", f"printf '%s\\0' {line}"], check=True, capture_output=True).stdout
    assert split.decode().split("\0")[:-1] == words  # as a shell would
    assert words[0] == "retrieval"
    monkeypatch.setattr(sys, "argv", words)
    try:
        main()
    except SystemExit as done:
        return int(done.code or 0)
    return 0


def check_runs(case: Printed, shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    own = shop.parent / f"{abs(hash(case))}" / PLACE  # changes stay here
    own.mkdir(parents=True)
    for name in ("bundle", "gallery", "run"):
        if (shop / name).exists():
            shutil.copytree(shop / name, own / name)
    for name in ("keys.json", "shop.key", "shop.key.pub", "settings.toml", "detector.onnx"):
        shutil.copy(shop / name, own / name)
    for name in ("photos", "labelled"):
        (own / name).symlink_to(shop / name, target_is_directory=True)
    monkeypatch.chdir(own)
    line = command(*case.words(own))
    assert run_line(line, monkeypatch) == 0, f"{line}\n{capsys.readouterr().err}"


@pytest.mark.parametrize("case", [case for case in printed() if case.arguments[0].strip("'") not in SLOW], ids=str)
def test_a_printed_command_runs(
    case: Printed, shop: Path, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_runs(case, shop, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*joblib will operate in serial mode")
@pytest.mark.parametrize("case", [case for case in printed() if case.arguments[0].strip("'") in SLOW], ids=str)
def test_a_printed_command_of_training_runs(
    case: Printed, trained: Path, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_runs(case, trained, monkeypatch, capsys)


def next_of(words: list[object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command and return the one that it says comes next."""
    assert run_line(command(*words), monkeypatch) == 0, capsys.readouterr().err
    return capsys.readouterr().out.splitlines()[-1].removeprefix("Next: ")


def test_what_is_printed_is_run_as_it_stands(
    shop: Path, tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = next_of(["index", shop / "bundle", shop / "photos", "-o", tmp_path / PLACE], monkeypatch, capsys)
    assert line.startswith("retrieval serve ")
    assert run_line(line, monkeypatch) == 0
    line = next_of(["audit", shop / "bundle", shop / "gallery"], monkeypatch, capsys)
    assert run_line(line, monkeypatch) == 0
    assert (tmp_path / "audit.html").exists()


def test_the_remedy_of_an_outgrown_gallery_runs(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = Bundle.open(shop / "bundle")
    view = fpir_forecast(bundle, 3000)
    assert view is not None
    (line,) = re.findall("`(.*)`", view.warning(bundle.path, shop / "gallery"))
    assert run_line(line, monkeypatch) == 0, capsys.readouterr().err
    assert "calibrate BUNDLE GALLERY" in view.warning()  # where clients see it, no path of the server


def test_the_first_key_of_a_file_is_made_as_the_server_says(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "it's keys.json"
    add_key(file, "shop", "search")
    assert run_line(command("keys", "remove", file, "shop"), monkeypatch) == 0
    served = command("serve", shop / "bundle", shop / "gallery", "--keys", file)
    assert run_line(served, monkeypatch) == 1
    told = capsys.readouterr().err.strip()
    assert run_line(told[told.index("retrieval keys add") :], monkeypatch) == 0
    assert [key.name for key in read_keys(file)] == ["NAME"]
