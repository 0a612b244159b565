"""The command line as a user meets it: answers, refusals of one line, and a status."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import pytest

from retrieval.cli.main import main

from ...world import draw, make_bundle, write_folder

pytestmark = pytest.mark.usefixtures("empty_pictures")


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Run the command line in this process and return its status."""
    monkeypatch.setattr(sys, "argv", ["retrieval", *map(str, words)])
    try:
        main()
    except SystemExit as done:
        return int(done.code or 0)
    return 0


def test_search_prints_matches_or_an_honest_no_match(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw(3, 5).save(tmp_path / "known.png")
    draw(77, 0).save(tmp_path / "stranger.png")
    assert call(monkeypatch, "search", world / "bundle", world / "gallery", tmp_path / "known.png") == 0
    assert "item-03" in capsys.readouterr().out.splitlines()[0]
    assert call(monkeypatch, "search", world / "bundle", world / "gallery", tmp_path / "stranger.png") == 0
    out = capsys.readouterr().out
    assert out.startswith("no match: the nearest item, item-")
    assert "the threshold is 0.5000" in out
    assert call(monkeypatch, "search", world / "bundle", world / "gallery", tmp_path / "known.png", "--json") == 0
    assert json.loads(capsys.readouterr().out)["decision"] == "match"


def test_index_says_what_was_written_and_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_bundle(tmp_path)
    folder = write_folder(tmp_path / "photos", items=range(3))
    (folder / "item-00" / "bad.jpg").write_bytes(b"no image")
    assert call(monkeypatch, "index", tmp_path / "bundle", folder, "-o", tmp_path / "g") == 0
    out = capsys.readouterr().out
    assert "item-00/bad.jpg: this is not a JPEG" in out
    assert "9 photos added" in out
    assert out.splitlines()[-1] == f"Next: retrieval serve {tmp_path / 'bundle'} {tmp_path / 'g'}"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["search", "none", "none", "none.jpg"], "none is not a bundle. `retrieval export RUN -o "),
        (["index", "none", "none", "-o", "x"], "is not a bundle"),
        (["data", "check", "none.csv"], "none.csv does not exist"),
        (["train", "none.csv", "-o", "run"], "none.csv does not exist"),
        (["train", "none.csv", "-o", "run", "--loss.tau"], "--loss.NAME VALUE"),
        (["train", "none.csv", "-o", "run", "--epochs", "-1"], "epochs must be zero or more, got -1"),
        (["evaluate", "none"], "none is not a training run"),
        (["export", "none", "-o", "x"], "none is not a training run"),
        (["serve", "none", "none"], "is not a bundle"),
    ],
)
def test_a_refusal_is_one_line_that_says_what_to_do(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *words) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert told in err
    assert list(tmp_path.iterdir()) == []


def test_usage_errors_keep_clicks_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "search") == 2
    assert "Missing argument" in capsys.readouterr().err
    assert call(monkeypatch, "nonsense") == 2
    assert call(monkeypatch, "--version") == 0


def test_debug_shows_where(monkeypatch: pytest.MonkeyPatch) -> None:
    from retrieval.errors import BundleError

    with pytest.raises(BundleError):
        call(monkeypatch, "--debug", "search", "none", "none", "none.jpg")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "torch is not installed. In"),
        (
            ModuleNotFoundError("No module named 'torch.new'", name="torch.new"),
            "torch is installed but cannot be imported: No module named 'torch.new'. In",
        ),
        (
            ImportError("cannot import name 'x' from 'torch'", name="torch"),
            "torch is installed but cannot be imported: cannot import name 'x' from 'torch'. In",
        ),
    ],
)
def test_a_package_that_is_installed_is_not_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: ImportError, line: str
) -> None:
    monkeypatch.setattr("retrieval.inspect.doctor.examine", Mock(side_effect=error))
    assert call(monkeypatch, "doctor") == 1
    assert capsys.readouterr().err.startswith(f"error: {line} the project's checkout: pip install")


def test_a_package_whose_own_code_fails_without_its_name_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("retrieval.inspect.doctor.examine", lambda *_: import_module("broken"))
    assert call(monkeypatch, "doctor") == 1
    assert "error: broken is installed but cannot be imported: libgomp.so.1: cannot open" in capsys.readouterr().err


def test_doctor_finds_what_is_wrong(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "doctor", world / "bundle", world / "gallery") == 0
    assert "No problems found." in capsys.readouterr().out
    bundle = make_bundle(tmp_path)
    (bundle.path / "notes.txt").write_text("edited")
    assert call(monkeypatch, "doctor", bundle.path, tmp_path / "none") == 1
    out = capsys.readouterr().out
    assert "notes.txt is not the file that was written" in out
    assert "is not a gallery" in out


def test_data_check_and_synthetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "photos", items=range(20))
    assert call(monkeypatch, "data", "check", folder) == 0
    assert "60 photos of 20 items, from one folder per item." in capsys.readouterr().out
    (folder / "item-00" / "bad.jpg").write_bytes(b"no image")
    assert call(monkeypatch, "data", "check", folder) == 1
    assert "1 photo that cannot be read:" in capsys.readouterr().out


@pytest.mark.end_to_end
def test_the_whole_way_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "photos", items=range(20), photos=range(4))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text("backbone = 'small'\nsize = 32\ndim = 16\nitems_per_batch = 4\nflip = false\n")
    train = ["train", folder, "-o", "run", "--config", "run.toml", "--epochs", 1, "--learning-rate", 0.002]
    assert call(monkeypatch, *train, "--loss", "smooth_ap", "--loss.temperature", 0.05, "--regularizer", "tcm") == 0
    assert "Next: retrieval evaluate run" in capsys.readouterr().out
    settings = json.loads((tmp_path / "run/settings.json").read_text())
    assert settings["loss_arguments"] == {"temperature": 0.05}
    assert (settings["epochs"], settings["size"], settings["regularizer"]) == (1, 32, "tcm")
    assert call(monkeypatch, "evaluate", "run") == 0
    assert "R@1" in capsys.readouterr().out
    export = ["export", "run", "-o", "bundle", "--target-fpir", 0.3]
    assert call(monkeypatch, *export) == 0
    assert call(monkeypatch, "index", "bundle", folder, "-o", "gallery") == 0
    assert "Next: retrieval serve bundle gallery" in capsys.readouterr().out
    assert call(monkeypatch, "search", "bundle", "gallery", folder / "item-07/2.png") == 0
    assert "item-07" in capsys.readouterr().out.splitlines()[0]
