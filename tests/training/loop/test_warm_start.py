"""Warm start: weights, rows, splits and photos from an earlier run, and refusals."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner

from retrieval.bundle.fitted import content_hash
from retrieval.catalogue.read import read_catalogue
from retrieval.catalogue.splits import photos_in_protocol
from retrieval.cli.main import group
from retrieval.errors import InvalidParameter, RunError
from training.config import Settings
from training.data.reader import PhotoReader
from training.evaluation.embedding import embed_photos
from training.evaluation.report import evaluate_run
from training.loop.begin import begin_run
from training.loop.distributed import ProcessGroup
from training.loop.run import BEST, LAST, START, Run, held_out_in
from training.loop.train import train

from ...world import draw
from ..conftest import dying_in_epoch, tiny_settings

pytestmark = pytest.mark.usefixtures("empty_pictures")
PROXIES = {"loss": "proxy_anchor", "epochs": 1}


@pytest.fixture(scope="module")
def earlier(catalogue: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(tiny_settings(catalogue, **PROXIES), tmp_path_factory.mktemp("earlier") / "run")


@pytest.fixture(scope="module")
def more(earlier: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a CSV of four new items, more photos of a trained and of a test item, and a photo of an unknown item."""
    folder = tmp_path_factory.mktemp("more")
    rows = [(item, f"item-{item}") for item in range(30, 34) for _ in range(4)]
    rows += [(int(item[-2:]), item) for item in (earlier.splits.fit[0], earlier.splits.test[0])]
    rows += [(99, "")]
    with (folder / "more.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "item_id", "source"])
        for number, (item, name) in enumerate(rows):
            draw(item, 20 + number).save(folder / f"{number}.png")
            writer.writerow([f"{number}.png", name, "feedback"])
    return folder / "more.csv"


@pytest.fixture(scope="module")
def later(earlier: Run, more: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("later") / "run"
    options = ["--epochs", "1", "--from", str(earlier.path)]
    done = CliRunner().invoke(group, ["train", str(more), *options, "-o", str(path)], catch_exceptions=False)
    assert f"Continued {earlier.path}" in done.output
    return Run.open(path)


def begun(earlier: Run, more: Path, path: Path, **changes: object) -> Run:
    """Return a run before its first step."""
    settings = Settings.from_dict({**earlier.settings.to_dict(), "catalogue": str(more), **changes})
    begin_run(settings, path, ProcessGroup.join(), start=earlier)
    return Run.open(path)


def test_it_begins_with_the_weights_and_the_mean_embeddings_of_items(earlier: Run, later: Run) -> None:
    start = later.load(START)[0]
    for name, value in earlier.load(BEST)[0].items():
        assert torch.equal(start[f"model.{name}"], value)
    new, rows = list(later.splits.fit), start["loss.proxies"]
    assert set(earlier.splits.fit) < set(new)
    item = next(item for item in new if item not in earlier.splits.fit)
    photos = [photo for photo in later.photos() if photo.item_id == item]
    vectors = embed_photos(earlier.best_model(), PhotoReader(photos, later.preprocessing), 4, later.preprocessing)
    mean = F.normalize(torch.from_numpy(vectors.mean(axis=0)), dim=0)
    torch.testing.assert_close(F.normalize(rows[new.index(photos[0].item_id)], dim=0), mean)
    assert not torch.equal(later.load(LAST)[0]["loss.proxies"], rows)  # and then it learns


def test_held_out_items_stay_held_out_and_users_photos_take_part(earlier: Run, later: Run, more: Path) -> None:
    assert later.protocol == earlier.protocol
    assert later.warm_start["catalogues"] == [earlier.settings.catalogue, str(more)]
    assert set(earlier.splits.fit) <= set(later.splits.fit)
    assert not {*earlier.splits.test, *earlier.splits.calibration} & {*later.splits.fit}
    photos = later.photos()
    assert all(photo.item_id for photo in photos)
    new = [photo for photo in photos if photo.path.parent == more.parent]
    assert len(new) == 18
    assert {photo.source for photo in new} == {earlier.protocol.query_source}
    noted = json.loads((later.path / "warm_start.json").read_text())
    assert sum(noted["new_items"].values()) == 4


def test_no_photo_that_the_earlier_run_was_trained_on_is_held_out(earlier: Run, later: Run) -> None:
    fitted = set(earlier.splits.fit)
    seen = {photo.photo_id for photo in earlier.photos() if photo.item_id in fitted} - set(earlier.held_out)
    assert later.held_out
    assert not seen & set(later.held_out)


def test_no_photo_that_a_run_in_between_was_trained_on_is_held_out(earlier: Run, tmp_path: Path) -> None:
    """Each generation brings one new photo of every fitted item, and holds out some of those."""
    runs = [earlier]
    for number in (1, 2):
        rows = []
        for item in earlier.splits.fit:
            draw(int(item[-2:]), 40 + number).save(tmp_path / f"{item}-{number}.png")
            rows.append(f"{item}-{number}.png,{item},feedback")
        (tmp_path / f"{number}.csv").write_text("\n".join(["path,item_id,source", *rows]))
        runs.append(begun(runs[-1], tmp_path / f"{number}.csv", tmp_path / f"run-{number}"))
        runs[-1].save(BEST, runs[-2].load(BEST)[0])
        runs[-1].save(LAST, runs[-2].load(LAST)[0])
    for before, after in itertools.pairwise(runs):
        held_out = set(before.held_out)
        fit = photos_in_protocol(before.photos(), before.splits.fit, before.protocol)
        trained = {photo.path for photo in fit if photo.photo_id not in held_out}
        assert after.held_out
        new = set(after.held_out)
        assert not trained & {photo.path for photo in after.photos() if photo.photo_id in new}


def test_photos_that_were_renamed_since_are_neither_trained_on_nor_searched_for_as_new_ones(
    earlier: Run, tmp_path: Path
) -> None:
    place = shutil.copytree(Path(earlier.settings.catalogue).parent, tmp_path / "catalogue") / "photos.csv"
    settings, path = tiny_settings(place, **(PROXIES | {"epochs": 2})), tmp_path / "run"
    with dying_in_epoch(1):
        train(settings, path)
    run = Run.open(path)
    name = run.held_out[0]
    other = next(p for p in run.photos() if p.photo_id[:2] == name[:2] and p.photo_id not in run.held_out).photo_id
    assert sorted(held_out_in(run, run.photos())) == sorted(run.held_out)
    one, two = place.with_name(name).read_bytes(), place.with_name(other).read_bytes()
    place.with_name(name).write_bytes(two)
    place.with_name(other).write_bytes(one)
    assert sorted(held_out_in(run, run.photos())) == sorted(set(run.held_out) - {name})
    with pytest.raises(RunError, match="holds out to search for were renamed, replaced or removed"):
        train(settings, path, resume=True)
    found = evaluate_run(run)["mixed"]["fitted"]["queries"]
    place.with_name(name).write_bytes(one)
    assert evaluate_run(run)["mixed"]["fitted"]["queries"] == found + 1


def test_a_photo_with_a_copy_in_its_item_is_not_held_out(earlier: Run, tmp_path: Path) -> None:
    """Training would see it under the name of the copy."""
    place = shutil.copytree(Path(earlier.settings.catalogue).parent, tmp_path / "catalogue") / "photos.csv"
    name = earlier.held_out[0]
    shutil.copy(place.with_name(name), place.with_name("copy.png"))
    (line,) = [line for line in place.read_text().splitlines() if line.startswith(f"{name},")]
    place.write_text(place.read_text() + line.replace(name, "copy.png") + "\n")
    begin_run(tiny_settings(place, **PROXIES), tmp_path / "run", ProcessGroup.join())
    assert sorted(Run.open(tmp_path / "run").held_out) == sorted(set(earlier.held_out) - {name})


def test_photos_that_are_fitted_under_any_name_are_no_evidence(earlier: Run, tmp_path: Path) -> None:
    photos, splits = earlier.photos(), earlier.splits
    held = {part: next(p for p in photos if p.item_id == getattr(splits, part)[0]) for part in ("test", "calibration")}
    fit = next(photo for photo in photos if photo.item_id == splits.fit[0])
    rows = [
        ("a.png", held["test"], splits.fit[0]),
        ("b.png", held["calibration"], splits.fit[1]),
        ("c.png", fit, splits.test[0]),
        ("d.png", fit, splits.fit[0]),
    ]
    for name, photo, _ in rows:
        (tmp_path / name).write_bytes(photo.read())
    lines = ["path,item_id", *(f"{name},{item}" for name, _, item in rows)]
    (tmp_path / "copies.csv").write_text("\n".join(lines) + "\n")
    run = begun(earlier, tmp_path / "copies.csv", tmp_path / "run")
    assert [photo.path.name for photo in run.photos() if photo.path.parent == tmp_path] == ["a.png", "b.png", "d.png"]
    evidence = {photo.path for photo in run.photos() if photo.item_id not in run.splits.fit}
    assert evidence
    assert not evidence & {photo.path for photo in held.values()}


def test_the_settings_are_those_of_the_run_unless_given(earlier: Run, later: Run) -> None:
    before, now = earlier.settings.to_dict(), later.settings.to_dict()
    assert {name for name in now if now[name] != before[name]} == {"catalogue"}


def test_what_was_ever_fitted_on_stays_known(earlier: Run, later: Run, more: Path, tmp_path: Path) -> None:
    """Training items that a later catalogue no longer has are never used as evidence."""
    gone = earlier.splits.fit[-1]
    rows = [line for line in Path(earlier.settings.catalogue).read_text().splitlines() if gone not in line]
    small = Path(earlier.settings.catalogue).with_name("without.csv")
    small.write_text("\n".join(rows))
    third = begun(later, small, tmp_path / "third")
    fitted = third.fitted_on()
    assert all(fitted.contains(item, None) for item in (*earlier.splits.fit, *later.splits.fit))
    assert not any(fitted.contains(item, None) for item in (*earlier.splits.test, *earlier.splits.calibration))
    photo = next(photo for photo in earlier.photos() if photo.item_id == gone)
    assert fitted.contains("renamed", content_hash(photo.read(), photo.bbox))


def test_photos_that_a_catalogue_no_longer_has_stay_known_as_fitted(earlier: Run, tmp_path: Path) -> None:
    place = shutil.copytree(Path(earlier.settings.catalogue).parent, tmp_path / "catalogue") / "photos.csv"
    first = train(tiny_settings(place, **PROXIES), tmp_path / "first")
    gone = first.splits.fit[0]
    photo = next(photo for photo in first.photos() if photo.item_id == gone)
    content = content_hash(photo.read(), photo.bbox)
    place.write_text("\n".join(line for line in place.read_text().splitlines() if gone not in line))
    second = begun(first, place, tmp_path / "second")
    for run in (first, second):
        fitted = Run.open(run.path).fitted_on()
        assert fitted.contains("renamed", content)
        assert fitted.contains(gone, None)
    kept, rows = second.splits.fit[1], second.load(START)[0]["loss.proxies"]
    photos = photos_in_protocol(second.photos(), [kept], second.protocol, left_out=second.held_out)
    reader = PhotoReader(photos, first.preprocessing)
    vectors = embed_photos(first.best_model(), reader, len(photos), first.preprocessing)
    mean = F.normalize(torch.from_numpy(vectors.mean(axis=0)), dim=0)
    torch.testing.assert_close(F.normalize(rows[1], dim=0), mean)
    assert rows[0].norm() > 0  # the item that is gone keeps a direction


def relabelled(place: Path, old: str, new: str, *, photos: int) -> list[str]:
    """Put the first photos of one item under another, and in its group, in a catalogue; return their names."""
    header, *rows = csv.reader(place.read_text().splitlines())
    group = next((row[2] for row in rows if row[1] == new), new)
    moved = [row for row in rows if row[1] == old][:photos]
    for row in moved:
        row[1:3] = new, group
    with place.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return sorted(row[0] for row in moved)


def test_a_resumed_run_keeps_the_list_of_photos_that_it_was_fitted_on(earlier: Run, tmp_path: Path) -> None:
    """Photos that were under an item to train on are no evidence, whichever item they are under later."""
    place = shutil.copytree(Path(earlier.settings.catalogue).parent, tmp_path / "catalogue") / "photos.csv"
    settings, path = tiny_settings(place, **(PROXIES | {"epochs": 2})), tmp_path / "run"
    with dying_in_epoch(1):
        train(settings, path)
    splits = Run.open(path).splits
    fitted_first = relabelled(place, splits.fit[0], splits.calibration[0], photos=3)
    fitted_later = relabelled(place, splits.test[0], splits.fit[1], photos=2)
    run = train(settings, path, resume=True)
    relabelled(place, splits.fit[1], splits.test[0], photos=99)
    shown = {photo.path.name: photo.item_id for photo in run.photos()}
    assert not shown.keys() & {*fitted_first, *fitted_later}
    assert splits.calibration[0] in shown.values()
    evaluate_run(run)


def test_photos_of_the_earlier_run_under_a_held_out_item_are_left_out(earlier: Run, tmp_path: Path) -> None:
    place = shutil.copytree(Path(earlier.settings.catalogue).parent, tmp_path / "catalogue") / "photos.csv"
    first = train(tiny_settings(place, **PROXIES), tmp_path / "first")
    splits = first.splits
    fitted = relabelled(place, splits.fit[0], splits.test[0], photos=3)
    held_out = relabelled(place, splits.test[1], splits.fit[1], photos=2)
    second = begun(first, place, tmp_path / "second")
    shown = {photo.path.name: photo.item_id for photo in second.photos()}
    assert not shown.keys() & {*fitted}
    assert {shown[name] for name in held_out} == {splits.fit[1]}
    contents = [content_hash((place.parent / name).read_bytes(), None) for name in fitted]
    assert all(second.fitted_on().contains("", content) for content in contents)


def test_fitted_items_that_have_another_name_now_are_not_held_out(earlier: Run, tmp_path: Path) -> None:
    place = shutil.copytree(Path(earlier.settings.catalogue).parent, tmp_path / "catalogue") / "photos.csv"
    first = train(tiny_settings(place, **PROXIES), tmp_path / "first")
    for number, item in enumerate(first.splits.fit):
        relabelled(place, item, f"renamed-{number}", photos=99)
    splits = begun(first, place, tmp_path / "second").splits
    assert {f"renamed-{number}" for number in range(len(first.splits.fit))} <= set(splits.fit)
    assert (splits.test, splits.calibration) == (first.splits.test, first.splits.calibration)


def test_a_fitted_item_that_was_gone_is_fitted_again_with_its_new_variants(earlier: Run, tmp_path: Path) -> None:
    """Tables may name other groups by then, and none for it."""
    place = shutil.copytree(Path(earlier.settings.catalogue).parent, tmp_path / "catalogue") / "photos.csv"
    table = place.read_text()
    first = train(tiny_settings(place, **PROXIES), tmp_path / "first")
    gone, with_variant = first.splits.fit[0], first.splits.fit[-1]
    place.write_text("\n".join(line for line in table.splitlines() if gone not in line and with_variant not in line))
    second = begun(first, place, tmp_path / "second")
    for name in (BEST, LAST):
        second.save(name, first.load(name)[0])
    for number in range(6):
        draw(number, 90).save(tmp_path / f"{number}.png")
    items = [f"{gone},", f"{gone},", f"{with_variant},new", f"{with_variant},new", "variant,new", "variant,new"]
    rows = "\n".join(f"{number}.png,{item}" for number, item in enumerate(items))
    (tmp_path / "back.csv").write_text(f"path,item_id,group\n{rows}\n")
    third = begun(second, tmp_path / "back.csv", tmp_path / "third")
    assert {gone, with_variant, "variant"} <= set(third.splits.fit)
    assert len([photo for photo in third.photos() if photo.path.parent == tmp_path]) == 6


def test_variants_of_fitted_items_are_left_out_of_what_is_held_out(earlier: Run, tmp_path: Path) -> None:
    """A table may name the group of an item anew when the model is trained already."""
    place = shutil.copytree(Path(earlier.settings.catalogue).parent, tmp_path / "catalogue") / "photos.csv"
    run = train(tiny_settings(place, **PROXIES), tmp_path / "first")
    fit, test, other = run.splits.fit[0], *run.splits.test[:2]
    items = {photo.item_id for photo in run.photos()}
    assert {fit, test, other} <= items
    group_of = {photo.item_id: photo.group for photo in run.photos()}
    place.write_text(place.read_text().replace(f",{test},{group_of[test]},", f",{test},{group_of[fit]},"))
    assert {photo.item_id for photo in run.photos()} == items - {test}
    second = begun(run, place, tmp_path / "second")
    assert test in second.splits.fit
    assert other in second.splits.test
    place.write_text(place.read_text().replace(f",{other},{group_of[other]},", f",{other},new,"))
    named = place.read_text().replace(
        f",{run.splits.fit[1]},{group_of[run.splits.fit[1]]},", f",{run.splits.fit[1]},new,"
    )
    assert other in {photo.item_id for photo in run.photos()}
    place.write_text(named)
    assert other not in {photo.item_id for photo in run.photos()}
    key = next(photo.group_key for photo in read_catalogue(place) if photo.item_id == other)
    assert run.fitted_on().contains(key, None)
    assert run.fitted_on().contains(fit, None)
    then = next(photo.group_key for photo in read_catalogue(place) if photo.item_id == fit)
    place.write_text(place.read_text().replace(f",{group_of[fit]},", ",renamed,"))
    assert run.fitted_on().contains(then, None)


def test_a_run_that_dies_in_its_first_epoch_begins_again_the_same(earlier: Run, later: Run, tmp_path: Path) -> None:
    settings = later.settings
    with dying_in_epoch(0):
        train(settings, tmp_path / "run", start=earlier)
    resumed = train(settings, tmp_path / "run", resume=True)
    expected = later.load(LAST)[0]
    assert all(torch.equal(value, expected[name]) for name, value in resumed.load(LAST)[0].items())


@pytest.mark.parametrize(
    ("name", "value"), [("backbone", "efficientnet-lite0"), ("size", 48), ("dim", 8), ("pooling", "gem")]
)
def test_another_network_is_refused(earlier: Run, more: Path, tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(InvalidParameter, match=rf"{name} must be .* that of the run to start from.*--{name}"):
        begun(earlier, more, tmp_path / "run", **{name: value})
    assert not (tmp_path / "run").exists()


def test_what_is_no_run_is_refused(more: Path, tmp_path: Path) -> None:
    words = ["train", str(more), "--from", str(tmp_path), "-o", str(tmp_path / "run")]
    assert isinstance(CliRunner().invoke(group, words).exception, RunError)


def test_another_loss_begins_at_the_mean_embeddings(earlier: Run, more: Path, tmp_path: Path) -> None:
    run = begun(earlier, more, tmp_path / "run", loss="proxy_nca")
    rows = run.load(START)[0]["loss.proxies"]
    item, held_out = run.splits.fit[0], run.held_out
    fit = [photo for photo in run.photos() if photo.item_id == item and photo.photo_id not in held_out]
    assert len(fit) == 8  # of 9
    vectors = embed_photos(earlier.best_model(), PhotoReader(fit, run.preprocessing), len(fit), run.preprocessing)
    mean = torch.from_numpy(vectors.mean(axis=0))
    torch.testing.assert_close(F.normalize(rows[0], dim=0), F.normalize(mean, dim=0))
