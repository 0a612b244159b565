"""What a user names by mistake: the refusal says what lies there and what is expected, before any work."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from retrieval.cli.main import group
from retrieval.errors import RetrievalError
from retrieval.files import check_place
from serving import launch

from ...world import draw, write_folder


@pytest.fixture
def here(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder: bundle b, gallery g, both in q, photos in `photos`, strangers in `flat`, a file."""
    for name in ("b", "q/bundle"):
        shutil.copytree(world / "bundle", tmp_path / name)
    for name in ("g", "q/gallery"):
        shutil.copytree(world / "gallery", tmp_path / name)
    write_folder(tmp_path / "photos", items=range(3))
    (tmp_path / "flat").mkdir()
    for item in range(30, 34):
        draw(item, 0).save(tmp_path / "flat" / f"{item}.png")
    for name in ("file", "e.onnx"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(group, words)


def refusal(words: str) -> str:
    """Return the error of a command."""
    done = run(*words.split())
    assert isinstance(done.exception, (RetrievalError, OSError)), done.output
    return str(done.exception)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("audit g", "g is a gallery, not a bundle. Name a bundle"),
        ("serve g b", "g is a gallery, not a bundle. Name a bundle"),
        ("search g b flat/30.png --json", "g is a gallery, not a bundle. Name a bundle"),
        ("search flat/30.png g b", "flat/30.png is a file, not a bundle. Name a bundle"),
        (
            "index e.onnx photos -o new",
            "e.onnx is a file, not a bundle. `retrieval export --onnx e.onnx -o BUNDLE` makes a bundle of it",
        ),
        ("calibrate b photos/item-00/0.png", "photos/item-00/0.png is a file, not a gallery. Name a gallery"),
        ("index b g -o new", "g is a gallery, not a catalogue. Name a catalogue"),
        ("index g photos -o b", "b is a bundle, not a gallery. Name a gallery"),
        ("export g -o b", "g is a gallery, not a training run. Name a training run"),
        ("gallery import g b", "b is a bundle, not a gallery. Name a gallery"),
    ],
)
def test_the_error_names_what_lies_at_a_place_and_what_is_expected(here: Path, typed: str, told: str) -> None:
    before = sorted(here.rglob("*"))
    assert refusal(typed) == told
    assert sorted(here.rglob("*")) == before


def test_a_folder_that_is_no_bundle_is_not_suggested_as_output(here: Path) -> None:
    assert "-o photos" not in refusal("serve photos g")
    assert "-o photos" not in refusal("evaluate photos")
    assert "/nothing` makes one" in refusal("serve nothing g")


def test_a_folder_with_bundle_and_gallery_is_served_whole(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[launch.ServePlan] = []
    monkeypatch.setattr(launch, "serve", lambda plan, *_: plans.append(plan))
    assert run("serve", "q", "--port", "0").exit_code == 0
    assert run("serve", "b", "g", "--port", "0").exit_code == 0
    assert [(plan.bundle, plan.gallery) for plan in plans] == [
        (Path("q/bundle"), Path("q/gallery")),
        (Path("b"), Path("g")),
    ]
    assert "Leave out g" in refusal("serve q g --port 0")
    assert "retrieval serve b GALLERY" in refusal("serve b --port 0")
    for typed in ("search q flat/30.png", "gallery info q"):
        assert refusal(typed).endswith("They are q/bundle and q/gallery")


def test_commands_are_found_by_the_nearest_name() -> None:
    assert "Did you mean 'search' or 'research'?" in run("serach").output
    assert "Did you mean 'check'?" in run("data", "chek").output
    assert "'info'" in run("gallery", "inof").output
    assert "--port" in run("serve", "--prot", "1").output
    assert run("nonsense").output.endswith("No such command 'nonsense'.\n")


@pytest.mark.parametrize(
    "typed",
    [
        "quickstart https://example.com/photos",
        "serve https://example.com/photos g",
        "search b g http://example.com/photos",
        "index b photos -o https://example.com/photos",
        "train photos -o https://example.com/photos",
    ],
)
def test_an_address_is_shown_as_it_was_typed(here: Path, typed: str) -> None:
    assert "//example.com/photos is an address that this command cannot use" in refusal(typed)
    assert not list(here.glob("http*"))


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("index b photos -o file", "file is a file, not a gallery"),
        ("index b photos -o b", "b is a bundle, not a gallery"),
        ("index b photos -o file/g", "Not a directory"),
        ("train photos -o file", "Not a directory"),
        ("quickstart photos -o file/q", "Not a directory"),
        ("data check photos --report photos", "Is a directory"),
        ("search b g flat --output photos", "Is a directory"),
        ("gallery report b g -o photos", "Is a directory"),
        ("gallery export g photos", "photos exists"),
        ("gallery export g file/g.csv", "Not a directory"),
    ],
)
def test_an_impossible_output_is_refused_before_anything_is_read(
    here: Path, typed: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    monkeypatch.setattr("retrieval.catalogue.read.read_catalogue", read.append)
    monkeypatch.setattr("retrieval.bundle.bundle.Bundle.open", read.append)
    done = run(*typed.split())
    text = str(done.exception)
    assert told in text
    assert read == []


def test_a_gallery_in_a_folder_that_cannot_be_written_is_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may run as root, who may write everywhere."""
    monkeypatch.setattr("os.access", lambda path, _: Path(path).name != here.name)
    check_place(here / "g")
    for new in ("x", "file"):
        with pytest.raises(PermissionError):
            check_place(here / new)


def test_a_taken_port_is_refused_before_the_bundle_is_opened(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(launch, "serve", lambda *_: pytest.fail("the bundle would be opened"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("serve", "b", "g", "--port", str(taken.getsockname()[1]))
    assert "--port must be free" in str(done.exception)


def test_rates_are_not_measured_where_no_folder_names_an_item(here: Path) -> None:
    told = refusal("search b g flat --truth item_id -o answers.jsonl")
    assert "none of the items that flat names: '30' (1 photo), '31' (1 photo)" in told
    assert "empty for an unknown item" in told
    assert not (here / "answers.jsonl").exists()
    assert run("search", "b", "g", "photos", "--truth", "item_id", "-o", "answers.jsonl").exit_code == 0
    (here / "strangers.csv").write_text("path,item_id\nflat/30.png,\n")
    done = run("search", "b", "g", "strangers.csv", "--truth", "item_id", "-o", "answers.jsonl")
    assert "1 photo of 1 unknown item:" in done.output
