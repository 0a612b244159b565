"""Every command, where the system refuses its files: one line that says what and why, and nothing half-written."""

from __future__ import annotations

import re
import resource
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from retrieval.bundle.bundle import CALIBRATION
from retrieval.cli.main import main

from .miniature import write_cub
from .retrieval.measuring.simulated import point_of, searches, simulated
from .world import make_bundle, pack_calibration, write_folder

pytestmark = pytest.mark.usefixtures("empty_pictures")

CONFIG = "backbone = 'small'\nsize = 32\ndim = 16\nepochs = 1\nitems_per_batch = 4\nflip = false\n"

# words of a command; OUT is where it is to write, and the other words in capitals are what `shop` holds
SEMAPHORE = 32  # bytes of the file of a semaphore, which a pool of processes needs
WRITERS = [
    "research convert cub CUB -o OUT",
    "data synthetic OUT --items 10",
    "index BUNDLE PHOTOS -o OUT",
    "index BUNDLE PHOTOS -o NEW_GALLERY --report OUT",
    "gallery export GALLERY OUT",
    "gallery export GALLERY OUT.csv",
    "gallery import EXPORTED OUT",
    "keys add OUT shop",
]
TRAINING = [
    "demo -o OUT",
    "train PHOTOS --config CONFIG -o OUT",
    "tune PHOTOS --config CONFIG -o OUT --trials 2 --folds 2",
    "export RUN -o OUT --target-fpir 0.3",
    "explain RUN -o OUT",
    "research run vmf-figure-2 --data PHOTOS -o OUT --smoke-test",
]
CHANGES = [  # commands that write into what is there
    "gallery declare GALLERY colour",
    "gallery remove GALLERY --item item-00",
    "gallery rebuild GALLERY",
    "keys remove KEYS shop",
]
LOST = [  # commands whose input is not there, or is a folder or a file where the other is meant
    "search BUNDLE GALLERY FILE/x.jpg",
    "search BUNDLE GALLERY PHOTO -o FILE/x.jsonl",
    "search FILE/x GALLERY PHOTO",
    "search BUNDLE FILE/x PHOTO",
    "index FILE/x PHOTOS -o OUT",
    "index BUNDLE FILE/x -o OUT",
    "data check FILE/x",
    "research convert cub FILE/x -o OUT",
    "gallery info FILE/x",
    "gallery log FILE/x",
    "gallery verify FILE/x",
    "gallery import PHOTOS OUT",
    "audit FILE/x GALLERY",
    "calibrate FILE/x GALLERY",
    "calibrate BUNDLE FILE/x",
    "calibrate BUNDLE GALLERY --queries FILE/x",
    "feedback export FILE/x --photos PHOTOS -o x.csv",
    "feedback export FILE --photos FILE/x -o x.csv",
    "keys list FILE/x",
    "keys list PHOTOS",
    "keys remove FILE/x shop",
    "serve FILE/x GALLERY",
    "serve BUNDLE FILE/x",
    "serve BUNDLE GALLERY --keys FILE/x",
    "train FILE/x -o OUT",
    "train PHOTOS -o OUT --config FILE/x",
    "train PHOTOS -o OUT --config PHOTOS",
    "train PHOTOS -o OUT --config PHOTO",
    "evaluate FILE/x",
    "explain FILE/x",
    "export FILE/x -o OUT",
    "tune FILE/x -o OUT",
]


@pytest.fixture(scope="module")
def shop(world: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return what the commands read, by the words that stand for it."""
    from index.gallery import Gallery
    from index.upkeep.transfer import export_gallery
    from serving.access.keys import add_key

    folder = tmp_path_factory.mktemp("shop")
    vectors, labels = simulated(100, 4, seed=0)
    scores = searches(vectors, labels, np.arange(100), 4)
    packed = pack_calibration(scores, np.ones(len(scores.own), np.float32))
    make_bundle(folder, point=point_of(scores), files={CALIBRATION: packed})
    photos = write_folder(folder / "photos", items=range(20), photos=range(4))
    (folder / "config.toml").write_text(CONFIG)
    (folder / "file").write_text("a file")
    add_key(folder / "keys.json", "shop", "search")
    with Gallery.open(world / "gallery", read_only=True) as gallery:
        export_gallery(gallery, folder / "backup")
    return {
        "BUNDLE": folder / "bundle",
        "GALLERY": world / "gallery",
        "EXPORTED": folder / "backup",
        "PHOTOS": photos,
        "PHOTO": photos / "item-00" / "0.png",
        "CUB": write_cub(folder / "cub"),
        "CONFIG": folder / "config.toml",
        "FILE": folder / "file",
        "KEYS": folder / "keys.json",
    }


@pytest.fixture(scope="module")
def run(shop: dict[str, Path]) -> dict[str, Path]:
    """Return the shop with a trained run."""
    from training.config import Settings
    from training.loop.train import train

    place = shop["BUNDLE"].parent / "run"
    settings = Settings(catalogue=str(shop["PHOTOS"]), size=32, dim=16, epochs=1, items_per_batch=4, flip=False)
    train(settings, place)
    return shop | {"RUN": place}


def words_of(line: str, places: dict[str, Path], out: Path) -> list[str]:
    """Return the words of a command with paths in the place of those in capitals."""
    named = places | {"OUT": out, "NEW_GALLERY": out.parent.parent / "new-gallery"}
    return [re.sub("^[A-Z_]+", lambda name: str(named.get(name[0], name[0])), word) for word in line.split()]


def refused(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must fail, and return the line that says why."""
    monkeypatch.setattr(sys, "argv", ["retrieval", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err
    assert ended.value.code == 1, told
    assert "Traceback" not in told
    last = told.rstrip("\n").split("\r")[-1].splitlines()[-1]
    assert last.startswith("error: "), told
    return last


@contextmanager
def full_disk(room: int = 0) -> Iterator[None]:
    """Let every write beyond the first bytes of a file fail, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def left(folder: Path) -> list[str]:
    """Return the files that are more than what a full disk takes, and those that are set aside."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return [str(file) for file in files if "partial" in file.name or file.stat().st_size > SEMAPHORE]


def check_writers(
    lines: Sequence[str],
    places: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run each command where its output is below a file, in a read-only folder and on a full disk."""
    for number, line in enumerate(lines):
        for place in (places["FILE"] / "x", Path("/proc/self/x")):
            refused(words_of(line, places, place), monkeypatch, capsys)
        folder = tmp_path / str(number) / "out"
        folder.mkdir(parents=True)
        words = words_of(line, places, folder / "x")
        with full_disk(SEMAPHORE):
            told = refused(words, monkeypatch, capsys)
        assert re.search(r"[ ']/\w", told), told  # it names the file
        assert left(folder) == [], line
    assert places["FILE"].read_text() == "a file"


def test_what_cannot_be_written_is_one_line(
    shop: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_writers(WRITERS, shop, tmp_path, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*joblib will operate in serial mode")
def test_what_training_cannot_write_is_one_line(
    run: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_writers(TRAINING, run, tmp_path, monkeypatch, capsys)


def test_what_cannot_be_changed_stays_as_it_was(
    shop: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from index.gallery import Gallery

    for number, line in enumerate(CHANGES):
        own = {name: tmp_path / str(number) / shop[name].name for name in ("BUNDLE", "GALLERY", "KEYS")}
        for name in ("BUNDLE", "GALLERY"):
            shutil.copytree(shop[name], own[name])
        shutil.copy(shop["KEYS"], own["KEYS"])
        with full_disk():
            assert str(tmp_path) in refused(words_of(line, shop | own, tmp_path / "out"), monkeypatch, capsys)
        assert own["KEYS"].read_bytes() == shop["KEYS"].read_bytes()
        assert [file.name for file in tmp_path.rglob("*.partial*")] == []
        with Gallery.open(own["GALLERY"], read_only=True) as gallery:
            assert (gallery.verify(), len(gallery), gallery.columns()) == ([], 30, {}), line


def test_what_cannot_be_read_is_one_line(
    shop: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    for line in LOST:
        refused(words_of(line, shop, tmp_path / "out" / "x"), monkeypatch, capsys)
        assert left(tmp_path / "out") == [], line
