"""`retrieval quickstart`: from photos to a search, by the verbs that do each step."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.cli import quickstart as quickstarting
from retrieval.cli.main import group
from retrieval.errors import DataError
from retrieval.galleries.kept import Kept, read_parts
from retrieval.images import Preprocessing
from retrieval.measuring.sides import in_words, sides_of
from retrieval.retriever import Retriever
from training.backbones.load import SmallConvNet
from training.export.pretrained import Pretrained, export_pretrained
from training.model import PretrainedModel

from ...world import draw, make_bundle, write_folder

pytestmark = pytest.mark.usefixtures("onnx_written_once")


@pytest.fixture(scope="module")
def tiny() -> Pretrained:
    torch.manual_seed(0)
    return Pretrained("tiny", PretrainedModel(SmallConvNet()).eval(), Preprocessing(size=32))


@pytest.fixture(scope="module")
def bundle(tiny: Pretrained, onnx_written_once: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_pretrained(tiny, tmp_path_factory.mktemp("bundles") / "tiny").path


@pytest.fixture
def output(bundle: Path, tmp_path: Path) -> Path:
    """Return the directory of an earlier run, which has the model already: its export takes seconds."""
    shutil.copytree(bundle, tmp_path / "q" / "bundle")
    return tmp_path / "q"


def run(photos: Path, output: Path, *options: str) -> Result:
    words = ["quickstart", str(photos), "-o", str(output), "--backbone", "tiny", "--no-serve", *options]
    return CliRunner().invoke(group, words)


def commands(result: Result) -> list[str]:
    return [line.split()[2] for line in result.output.splitlines() if line.startswith("$ retrieval")]


def test_photos_become_a_search(tiny: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pretrained, "load", classmethod(lambda cls, name, size=None: tiny))
    photos = write_folder(tmp_path / "photos", items=range(30), photos=range(2))
    done = run(photos, tmp_path / "q", "--target-fpir", "0.1")
    assert done.exit_code == 0, done.output
    assert commands(done) == ["export", "index"]
    assert "60 photos of 30 items" in done.output
    assert f"retrieval serve {tmp_path}/q" in done.output
    with Retriever.open(tmp_path / "q/bundle", tmp_path / "q/gallery") as retriever:
        assert retriever.point.target_fpir == 0.1
        answer = retriever.search(photos / "item-03" / next((photos / "item-03").iterdir()).name)
    assert answer.matches[0].item_id == "item-03"


def test_a_second_run_keeps_the_model_and_adds_photos(output: Path, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", items=range(25), photos=range(2))
    run(photos, output)
    write_folder(photos, items=range(25, 27), photos=range(2))
    done = run(photos, output)
    assert done.exit_code == 0, done.output
    assert commands(done) == ["index"]
    assert "Keeping the model" in done.output
    assert "4 photos added" in done.output


def test_a_second_run_sets_another_target(output: Path, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", items=range(30), photos=range(2))
    run(photos, output)
    done = run(photos, output, "--target-fpir", "0.2")
    assert done.exit_code == 0, done.output
    assert commands(done) == ["index", "calibrate"]
    assert commands(run(photos, output)) == ["index"]
    with Retriever.open(output / "bundle", output / "gallery") as retriever:
        assert retriever.point.target_fpir == 0.2


def test_each_photo_of_a_flat_folder_is_an_item(output: Path, tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    for item in range(22):
        draw(item, 0).save(tmp_path / "flat" / f"thing {item}.png")
    done = run(tmp_path / "flat", output)
    assert done.exit_code == 0, done.output
    with Retriever.open(output / "bundle", output / "gallery") as retriever:
        answer = retriever.search(tmp_path / "flat" / "thing 7.png")
    assert answer.threshold_status == "estimated"
    assert answer.matches[0].metadata["name"] == "thing 7"


def test_rules_for_folders_become_a_table_for_the_steps(output: Path, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos" / "train", items=range(24), photos=range(2)).parent
    write_folder(photos / "val", items=range(24), photos=range(2, 3))
    assert isinstance(run(photos, output).exception, DataError)
    result = run(photos, output, "--splits", "merge", "--ignore", "*/item-23")
    assert result.exit_code == 0, result.output
    assert commands(result)[:2] == ["data", "index"]
    assert "69 photos of 23 items" in result.output
    with Gallery.open(output / "gallery", read_only=True) as gallery:
        assert (len(gallery), gallery.items) == (69, 23)


def test_under_twenty_items_the_search_ranks(output: Path, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", items=range(12), photos=range(2))
    done = run(photos, output)
    assert done.exit_code == 0, done.output
    assert "This gallery has no threshold, so searches only rank items" in done.output
    assert "LABELLED.csv" not in done.output
    with Retriever.open(output / "bundle", output / "gallery") as retriever:
        answer = retriever.search(next((photos / "item-03").iterdir()))
    assert (answer.decision, answer.matches) == ("ranked", ())


def test_labelled_photos_of_unknown_items_are_measured(output: Path, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", items=range(22), photos=range(2))
    draw(100, 0).save(tmp_path / "unknown.png")
    (tmp_path / "labelled.csv").write_text("path,item_id\nunknown.png,\n")
    done = run(photos, output, "--queries", str(tmp_path / "labelled.csv"))
    assert done.exit_code == 0, done.output
    assert "Labelled photos of unknown items that return a match: 0.0% before, 0.0% after (at most 95.0%" in done.output


def test_a_taken_port_is_found_before_anything_is_written(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", items=range(3), photos=range(1))
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        done = CliRunner().invoke(group, ["quickstart", str(photos), "-o", str(tmp_path / "q"), "--port", str(port)])
    assert "--port must be free" in str(done.exception)
    assert not (tmp_path / "q").exists()


def serving(output: Path, photos: Path, *options: str) -> Result:
    """Run a quickstart that serves; what `serve` does is replaced by the tests."""
    words = ["quickstart", str(photos), "-o", str(output), "--backbone", "tiny", "--port", "0", *options]
    return CliRunner().invoke(group, words)


@pytest.mark.parametrize("kept", [True, False])
def test_the_page_keeps_judged_photos_unless_told_not_to(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    photos, ran = write_folder(tmp_path / "photos", items=range(22), photos=range(1)), []
    run(photos, output)  # a gallery to continue with
    monkeypatch.setattr(quickstarting, "_run", lambda *words: ran.append([str(word) for word in words]))
    done = serving(output, photos, *([] if kept else ["--no-keep-photos"]))
    assert done.exit_code == 0, done.output
    judged = ["--feedback-photos", str(output / "judged")]
    assert ran[-1] == ["serve", str(output), "--port", "0", *(judged if kept else [])]
    table = f"retrieval feedback export {output / 'gallery.feedback.jsonl'} --photos {output / 'judged'} -o judged.csv"
    assert (table in done.output) == kept


def has_windows(output: Path) -> bool:
    with Gallery.open(output / "gallery", read_only=True) as gallery:
        return gallery.kept(Kept.WINDOWS) is not None


def test_windows_are_embedded_while_the_page_is_served_and_once(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = write_folder(tmp_path / "photos", items=range(22), photos=range(2))
    plain, seen, runs_really = quickstarting._run, [], True

    def serve_until_windows_are_there(*words: object) -> None:
        if words[0] != "serve":
            plain(*words)  # type: ignore[arg-type]
            return
        seen.append(has_windows(output))
        ends = time.monotonic() + 60
        while runs_really and not has_windows(output) and time.monotonic() < ends:
            time.sleep(0.1)
        seen.append(has_windows(output))

    monkeypatch.setattr(quickstarting, "_run", serve_until_windows_are_there)
    done = serving(output, photos)
    assert done.exit_code == 0, done.output
    assert seen == [False, True]  # the server did not wait for them
    assert "the closest items are only listed" in done.output
    assert f"$ retrieval index {output / 'bundle'} {photos} -o {output / 'gallery'} --windows > " in done.output
    write_folder(photos, items=range(22, 24), photos=range(2))
    again = serving(output, photos)
    assert "--windows" not in again.output  # the gallery keeps them, and indexing again embeds those of new photos
    assert "the closest items are only listed" not in again.output
    with Gallery.open(output / "gallery", read_only=True) as gallery:
        windows = read_parts(gallery, Kept.WINDOWS)
    assert windows is not None
    assert len(windows.ids) == 48


def test_the_windows_end_with_the_server(output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = write_folder(tmp_path / "photos", items=range(22), photos=range(1))
    run(photos, output)
    started, begin = [], subprocess.Popen

    def remember(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(begin(*words, **options))
        return started[-1]

    def stop(*_: object) -> None:
        sys.exit(0)

    monkeypatch.setattr(quickstarting.subprocess, "Popen", remember)
    monkeypatch.setattr(quickstarting, "_run", lambda *words: stop() if words[0] == "serve" else None)
    assert serving(output, photos).exit_code == 0
    assert started[0].poll() is not None
    assert not has_windows(output)


def rows(result: Result) -> dict[str, str]:
    """Return the rows of the box by heading, those of commands by number."""
    box = result.output[result.output.index("┌") :].splitlines()
    assert len([line for line in box if line.startswith(("┌", "│", "└"))]) == 6
    commands = [line[1:].replace("Next", "").partition("#")[0].strip() for line in box[3:6]]
    return {"works": box[1], "lacks": box[2], **{str(row): line for row, line in enumerate(commands)}}


def test_the_end_is_a_box_of_what_works_what_does_not_and_three_commands(output: Path, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", items=range(22), photos=range(2))
    done = run(photos, output)
    bundle, gallery = output / "bundle", output / "gallery"
    with Retriever.open(bundle, gallery) as retriever:
        sides = sides_of(*retriever.gallery_point.measured())
    assert sides is not None
    box = rows(done)
    assert in_words(sides) in box["works"]
    assert "users' photos were not measured" in box["lacks"]
    assert box["0"] == f"retrieval serve {output}"
    assert box["1"].startswith("retrieval train")
    assert box["2"] == f"retrieval calibrate {bundle} {gallery} --queries LABELLED.csv"
    assert "This assumes" not in done.output


def test_the_box_of_items_with_one_photo_says_what_was_not_measured(output: Path, tmp_path: Path) -> None:
    box = rows(run(write_folder(tmp_path / "photos", items=range(22), photos=range(1)), output))
    assert "Of things we do not have" in box["works"]
    assert "how many photos it finds was not measured" in box["lacks"]
    assert box["2"].startswith("retrieval search")
    assert "--report answers.html" in box["2"]


def test_photos_of_another_catalogue_are_refused(output: Path, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", items=range(22), photos=range(2))
    run(photos, output)
    other = write_folder(tmp_path / "other", items=range(40, 62), photos=range(2))
    renamed = tmp_path / "renamed"  # the same names with other content
    shutil.copytree(other, renamed)
    for number, folder in enumerate(sorted(renamed.iterdir())):
        folder.rename(renamed / f"item-{number:02d}")
    for place in (other, renamed):
        done = run(place, output)
        assert isinstance(done.exception, DataError)
        assert "photos of another catalogue" in done.exception.message
        assert f"retrieval index {output / 'bundle'} {place} -o {output / 'gallery'}" in done.exception.remedy
        assert commands(done) == []
    with Gallery.open(output / "gallery", read_only=True) as gallery:
        assert gallery.items == 22


def test_what_is_missing_is_said_before_anything_is_written(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", items=range(3), photos=range(1))
    done = run(photos, tmp_path / "q", "--queries", str(tmp_path / "none.csv"))
    assert done.exit_code != 0
    assert "none.csv" in str(done.exception)
    assert not (tmp_path / "q").exists()
    done = run(tmp_path / "nowhere", tmp_path / "q")
    assert "does not exist" in str(done.exception)
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize(("items", "photos", "suggested"), [(20, 2, True), (19, 2, False), (25, 1, False)])
def test_training_on_all_items_is_suggested_from_twenty_items_with_several_photos(
    output: Path, tmp_path: Path, items: int, photos: int, suggested: bool
) -> None:
    folder = write_folder(tmp_path / "photos", items=range(items), photos=range(photos))
    done = run(folder, output)
    assert done.exit_code == 0, done.output
    line = f"retrieval train {folder} --backbone tiny --all-items --precompute 8 -o {output / 'run'}"
    assert (line in done.output) == suggested
    (output / "run").mkdir()
    assert "retrieval train" not in run(folder, output).output


def test_a_bundle_is_used_in_place_of_a_pretrained_model(bundle: Path, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", items=range(22), photos=range(2))
    words = ["quickstart", str(photos), "-o", str(tmp_path / "q"), "--no-serve", "--model", str(bundle)]
    for _ in range(2):
        done = CliRunner().invoke(group, words)
        assert done.exit_code == 0, done.output
        assert commands(done) == ["index"]
        assert Bundle.open(tmp_path / "q" / "bundle").bundle_id == Bundle.open(bundle).bundle_id
    make_bundle(tmp_path, name="other")
    done = CliRunner().invoke(group, [*words[:-1], str(tmp_path / "other")])
    assert f"--model must be the bundle in {tmp_path / 'q' / 'bundle'}" in str(done.exception)
    for option in ("--backbone=auto", "--fit"):
        done = CliRunner().invoke(group, [*words, option])
        assert f"--model must be used without {option.partition('=')[0]}" in str(done.exception)


def test_training_is_not_suggested_for_an_onnx_file(tmp_path: Path) -> None:
    evidence = {"fit": {"items": 15, "photos": 60, "recall_at_1": 0.5, "gain": 0.2}, "onnx": {"file": "e.onnx"}}
    make_bundle(tmp_path / "q", evidence=evidence)
    done = run(write_folder(tmp_path / "photos", items=range(30), photos=range(4)), tmp_path / "q")
    assert done.exit_code == 0, done.output
    assert "retrieval train" not in done.output
