"""Commands that the product prints for the user to run next: they exist, are quoted for a shell, and run."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import uvicorn

from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import COMMANDS, group, main
from retrieval.cli.promise import PromiseGroup
from retrieval.errors import command
from retrieval.indexing.pipeline import index_catalogue
from serving.access.keys import add_key, read_keys

from .conftest import ROOT
from .world import make_bundle, write_folder

PACKAGES = ("index", "research", "retrieval", "serving", "training")
PLACE = 'it\'s a  "shop" & more; $HOME'


@cache
def texts() -> list[tuple[str, str]]:
    """Return the name and the text of each module."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return [(file.relative_to(ROOT).as_posix(), file.read_text()) for file in files]


def sources(holding: str) -> list[tuple[str, ast.Module]]:
    """Return the name and the syntax tree of each module that matches a pattern, with adjacent strings joined."""
    pattern, pieces = re.compile(holding), re.compile(r'"\s+f?"')
    return [(name, ast.parse(text)) for name, text in texts() if pattern.search(pieces.sub("", text))]


def printed() -> Iterator[tuple[str, list[str]]]:
    """Yield the file and the words of every call of `command`; what is no literal word becomes a letter."""
    for file, tree in sources(holding=r"command\("):
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "command"):
                continue
            words = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
            if words:
                yield file, [str(w.value) if isinstance(w, ast.Constant) else "x" for w in words]


def find(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that the first words name, and the other words."""
    found: click.Command = group
    for number, word in enumerate(words):
        if not isinstance(found, click.Group):
            return found, words[number:]
        if isinstance(found, PromiseGroup) and word not in found.commands:
            return found.commands["measure"], words[number:]  # `retrieval promise SOURCE`
        child = found.get_command(click.Context(found), word)
        assert child is not None, f"there is no command {word}"
        found = child
    return found, []


def test_every_printed_command_exists_with_its_options_and_arguments() -> None:
    count = 0
    for file, words in printed():
        found, rest = find(words)
        if isinstance(found, click.Group):
            continue
        try:
            found.make_parser(click.Context(found)).parse_args(rest)
        except click.UsageError as error:
            pytest.fail(f"{file} prints {' '.join(words)}: {error.message}")
        count += 1
    assert count > 30


def test_no_command_is_printed_that_is_not_quoted_for_the_shell() -> None:
    """Commands with arguments, in any text that is no docstring and no help, are made by `retrieval.errors.command`."""
    verbs = "|".join(re.escape(name) for name in COMMANDS)
    written = re.compile(rf"\bretrieval ({verbs}) [^`,.;:)]")
    wrong = []
    for file, tree in sources(holding=f"Next: ret|{written.pattern}"):
        if file == "research/papers/page.py":  # writes docs/papers.md
            continue
        docs: set[ast.AST] = {
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
                wrong.append(f"{file}: {text}")
    assert [text for text in wrong if "that `retrieval" not in text] == []


def options(parent: click.Command) -> set[str]:
    """Return the options of a command and of those below it."""
    found = {name for parameter in parent.params for name in (*parameter.opts, *parameter.secondary_opts)}
    if isinstance(parent, click.Group):
        context = click.Context(parent)
        for name in parent.list_commands(context):
            child = parent.get_command(context, name)
            assert child is not None
            found |= options(child)
    return found


def test_every_option_that_a_remedy_names_exists() -> None:
    known = options(group) | {"--version", "--help"}
    wrong = []
    for file, tree in sources(holding="remedy="):
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "remedy":
                named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", ast.unparse(node.value)))
                wrong += [f"{file}: {name}" for name in named - known if f"{name}." not in ast.unparse(node.value)]
    assert wrong == []


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder, with a name that a shell must quote, of a bundle, photos and a gallery; servers end at once."""

    def run(server: uvicorn.Server, sockets: list[object]) -> None:
        for listener in sockets:
            listener.close()  # type: ignore[attr-defined]
        server.started = True

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr("serving.ops.logs.logging.basicConfig", lambda **_: None)
    monkeypatch.setattr("serving.launch.signal.signal", lambda *_: None)
    folder = tmp_path / PLACE
    photos = write_folder(folder / "photos", items=range(20), photos=range(4))
    index_catalogue(make_bundle(folder), read_catalogue(photos), folder / "gallery", progress=False)
    monkeypatch.chdir(folder)
    return folder


def run_line(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a printed command in this process, and return its status."""
    words = shlex.split(line)
    split = subprocess.run(["sh", "-c", f"printf '%s\\0' {line}"], check=True, capture_output=True).stdout
    assert split.decode().split("\0")[:-1] == words  # as a shell would
    monkeypatch.setattr(sys, "argv", words)
    try:
        main()
    except SystemExit as done:
        return int(done.code or 0)
    return 0


def test_what_indexing_prints_is_run_as_it_stands(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_line(command("index", shop / "bundle", shop / "photos", "-o", shop / "other"), monkeypatch) == 0
    line = capsys.readouterr().out.splitlines()[-1].removeprefix("Next: ")
    assert line.startswith("retrieval serve ")
    assert run_line(f"{line} --port 0 --no-page", monkeypatch) == 0, capsys.readouterr().err


def test_the_first_key_of_a_file_is_made_as_the_server_says(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = shop / "it's keys.json"
    add_key(file, "shop", "search")
    assert run_line(command("keys", "remove", file, "shop"), monkeypatch) == 0
    served = command("serve", shop / "bundle", shop / "gallery", "--keys", file)
    assert run_line(served, monkeypatch) == 1
    told = capsys.readouterr().err.strip()
    assert run_line(told[told.index("retrieval keys add") :], monkeypatch) == 0
    assert [key.name for key in read_keys(file)] == ["NAME"]
