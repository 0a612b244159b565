"""Training on all items: fold runs that leave out each item once, resumed after a kill, and exported together."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from retrieval.bundle.bundle import FOLDS
from retrieval.bundle.embedder import Embedder
from retrieval.bundle.fitted import content_hash
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import InvalidParameter, RunError
from retrieval.indexing.pipeline import index_catalogue
from training.cli import evaluate
from training.data.sources import FEATURES
from training.evaluation.explain import explain_run
from training.export.export import export
from training.export.variants import Variant, embed_with_torch
from training.loop import train as train_module
from training.loop.run import BEST, FOLD_COUNT, Run
from training.loop.train import train

from ..conftest import dying_in_epoch, tiny_settings

FEW = {"epochs": 2, "all_items": True, "precompute": 2}


@pytest.fixture(scope="module")
def finished(catalogue: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run on all items."""
    return train(tiny_settings(catalogue, **FEW), tmp_path_factory.mktemp("all") / "run")


def test_every_item_is_left_out_by_one_fold_with_its_group(finished: Run) -> None:
    items = set(finished.splits.fit)
    assert items == {photo.item_id for photo in finished.photos()}
    left_out = [items.difference(fold.splits.fit) for fold in finished.folds]
    assert len(left_out) == FOLD_COUNT
    assert sorted(item for fold in left_out for item in fold) == sorted(items)
    group_of = {photo.item_id: photo.group for photo in finished.photos()}
    for fold in left_out:
        assert not {group_of[item] for item in fold} & {group_of[item] for item in items - fold}
    fitted = finished.fitted_on()
    assert all(fitted.fold_of(item) == number for number, fold in enumerate(left_out) for item in fold)


def test_folds_train_with_the_settings_of_the_whole_run_and_their_models_differ(finished: Run) -> None:
    whole = finished.settings.to_dict() | {"all_items": False}
    assert [fold.settings.to_dict() for fold in finished.folds] == [whole] * FOLD_COUNT
    heads = [run.load(BEST)[0]["head.weight"] for run in (finished, *finished.folds)]
    assert all(not torch.equal(first, second) for n, first in enumerate(heads) for second in heads[:n])


def test_folds_take_their_features_from_the_whole_run(finished: Run) -> None:
    whole = load_file(finished.path / FEATURES)["fit"]
    rows = {photo.photo_id: row for row, photo in enumerate(finished.photos())}
    for fold in finished.folds:
        held_out = set(fold.held_out)
        seen = [p for p in fold.photos() if p.item_id in fold.splits.fit and p.photo_id not in held_out]
        features = load_file(fold.path / FEATURES)["fit"]
        assert torch.equal(features, whole[:, [rows[photo.photo_id] for photo in seen]])


def test_the_first_fold_compares_the_model_with_the_one_before_training(finished: Run) -> None:
    assert [bool(fold.splits.validation) for fold in finished.folds] == [True] + [False] * (FOLD_COUNT - 1)
    assert {"fitted", "unfitted", "both"} <= finished.comparison.keys()
    assert finished.comparison == finished.folds[0].comparison
    shown = CliRunner().invoke(evaluate, [str(finished.path)])
    assert shown.exit_code == 0, shown.output
    assert "fitted on four fifths of the items" in shown.output


def test_a_run_killed_in_a_fold_continues_with_the_same_weights(
    finished: Run, catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, settings = train_module.train, tiny_settings(catalogue, **FEW)

    def killed(*arguments: object, **options: object) -> Run:
        path = arguments[1]
        assert isinstance(path, Path)
        if path.name != "2":
            return real(*arguments, **options)  # type: ignore[arg-type]

        def stop(epoch: int, _: object) -> None:
            raise KeyboardInterrupt(epoch)

        return real(*arguments, **options, on_epoch=stop)  # type: ignore[arg-type]

    monkeypatch.setattr(train_module, "train", killed)
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "run")
    monkeypatch.setattr(train_module, "train", real)
    with pytest.raises(RunError, match="has not trained all of its 5 fold models") as refused:
        export(Run.open(tmp_path / "run"), tmp_path / "bundle", even_if_worse=True)
    assert "--resume" in str(refused.value)
    assert not (tmp_path / "bundle").exists()
    done = (tmp_path / "run" / "folds" / "1" / "progress.json").stat().st_mtime_ns
    again = train(Run.open(tmp_path / "run").settings, tmp_path / "run", resume=True)
    assert (again.path / "folds" / "1" / "progress.json").stat().st_mtime_ns == done
    for one, other in zip((again, *again.folds), (finished, *finished.folds), strict=True):
        assert all(torch.equal(value, other.load(BEST)[0][name]) for name, value in one.load(BEST)[0].items())


def test_a_run_killed_in_the_first_epoch_of_a_fold_continues(finished: Run, catalogue: Path, tmp_path: Path) -> None:
    settings = tiny_settings(catalogue, **FEW)
    shutil.copytree(finished.path, tmp_path / "run")
    for number in (1, 2, 3, 4):
        shutil.rmtree(tmp_path / "run" / "folds" / str(number))
    with dying_in_epoch(0):
        train(settings, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "folds" / "1" / "settings.json").exists()
    again = train(settings, tmp_path / "run", resume=True)
    for one, other in zip(again.folds, finished.folds, strict=True):
        assert all(torch.equal(value, other.load(BEST)[0][name]) for name, value in one.load(BEST)[0].items())


def test_photos_have_the_fold_of_the_item_that_they_were_under_when_their_folds_were_trained(
    finished: Run, catalogue: Path, tmp_path: Path
) -> None:
    place = shutil.copytree(catalogue.parent, tmp_path / "catalogue") / "photos.csv"
    path = shutil.copytree(finished.path, tmp_path / "run")
    for file in (path / "settings.json", *path.glob("folds/*/settings.json")):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"catalogue": str(place)}))
    run = Run.open(path)
    (one, *_), (other, *_) = (sorted(set(run.splits.fit) - set(fold.splits.fit)) for fold in run.folds[:2])
    first, second = (f"\n{item[-2:]}_" for item in (one, other))  # of the names of their photos
    swapped = place.read_text().replace(first, "\nswap").replace(second, first).replace("\nswap", second)
    place.write_text(swapped)
    for number in (2, 3, 4):
        shutil.rmtree(path / "folds" / str(number))
    fitted = train(run.settings, path, resume=True).fitted_on()
    for photo in run.photos():
        fold = fitted.fold_of(photo.item_id)
        expected = {one: 1, other: 0}.get(photo.item_id, fold)
        assert fitted.fold_of(content_hash(photo.read(), None)) == expected
    assert (fitted.fold_of(one), fitted.fold_of(other)) == (0, 1)
    unfitted = {photo.item_id for photo in run.folds[0].photos()} - set(run.folds[0].splits.fit)
    assert other not in unfitted
    assert one not in unfitted  # its photos were under the other item, which the first fold was fitted on


@pytest.mark.parametrize("precompute", [0, 2])
def test_the_bundle_holds_the_fold_models_and_a_gallery_of_the_items_gets_a_threshold(
    finished: Run, catalogue: Path, tmp_path: Path, precompute: int
) -> None:
    run = finished
    if not precompute:
        settings = tiny_settings(catalogue, **(FEW | {"precompute": 0, "epochs": 1}))
        run = train(settings, tmp_path / "run")
    bundle = export(run, tmp_path / "bundle", target_fpir=0.1, even_if_worse=True)
    assert not bundle.operating_point.decides
    photos = read_catalogue(catalogue)[::7]
    vectors = Embedder(bundle.read(FOLDS), bundle.preprocessing).embed([photo.path for photo in photos]).vectors
    for number, fold in enumerate(run.folds):
        own = vectors.reshape(len(photos), FOLD_COUNT, bundle.dim)[:, number] * np.sqrt(FOLD_COUNT)
        assert own == pytest.approx(embed_with_torch(fold, fold.best_model(), photos).vectors, abs=1e-4)
    single = [replace(photo, group="") for photo in read_catalogue(catalogue)]  # its 10 groups are too few
    report = index_catalogue(bundle, single, tmp_path / "g", progress=False)
    assert report.point is not None, report.unanchored
    assert report.point.evidence["cross_fitted"] == 20


@pytest.mark.parametrize(("column", "changed"), [(2, "groups"), (1, "items")])
def test_a_run_killed_in_a_fold_is_not_resumed_with_other_groups_or_items(
    finished: Run, catalogue: Path, tmp_path: Path, column: int, changed: str
) -> None:
    """The folds of other groups would leave out some items twice and others never."""
    place = shutil.copytree(catalogue.parent, tmp_path / "catalogue") / "photos.csv"
    path = shutil.copytree(finished.path, tmp_path / "run")
    settings = json.loads((path / "settings.json").read_text()) | {"catalogue": str(place)}
    (path / "settings.json").write_text(json.dumps(settings))
    for number in (2, 3, 4):
        shutil.rmtree(path / "folds" / str(number))
    head, *rows = [line.split(",") for line in place.read_text().splitlines()]
    for row in rows:
        row[column] = {"group": f"group-{int(row[1][-2:]) % 10}", "item_id": "one " + row[1]}[head[column]]
    place.write_text("".join(",".join(row) + "\n" for row in (head, *rows)))
    with pytest.raises(RunError, match=f"other {changed} than when .* was begun"):
        train(Run.open(path).settings, path, resume=True)
    assert not (path / "folds" / "2").exists()


def test_what_a_run_on_all_items_cannot_do_is_refused(finished: Run, catalogue: Path, tmp_path: Path) -> None:
    settings = tiny_settings(catalogue, **FEW)
    with pytest.raises(RunError, match=r"cannot begin with the weights of .* Train without --from, on one table"):
        train(settings, tmp_path / "run", start=finished)
    with pytest.raises(InvalidParameter, match="fp32 or fp16"):
        export(finished, tmp_path / "bundle", variant=Variant("int8"), even_if_worse=True)
    with pytest.raises(InvalidParameter, match="--verify"):
        export(finished, tmp_path / "bundle", verify=True, even_if_worse=True)
    with pytest.raises(RunError, match="holds a run already"):
        train(settings, finished.path)
    assert not (tmp_path / "bundle").exists()


def test_a_run_on_all_items_is_explained_on_the_items_of_a_fold(finished: Run) -> None:
    told = explain_run(finished, progress=False)
    left_out = set(finished.folds[0].splits.validation)
    assert {wrong.photo.item_id for found in told.worst.values() for wrong in found} <= left_out
    assert told.items == len(left_out)
    assert (told.run, told.queries > 0) == (finished.path.name, True)
    assert "set on the same items, which one of 5 fold models was fitted without" in told.summary()[0]
