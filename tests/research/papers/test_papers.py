"""Every table and figure of the papers runs from start to end on miniature data, and docs/papers.md lists it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from research.papers import runs
from research.papers.configuration import MODERN, Configuration, Variant
from research.papers.drawings import draw as draw_figure
from research.papers.labelled_photos import read_labelled_photos
from research.papers.listing import configurations, find
from research.papers.metrics import find_metric
from research.papers.modern import concatenated
from research.papers.runner import check, run
from research.papers.runs import Options, PhotoSets, embedded, settings_of
from research.papers.transformations import transform
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import DataError, InvalidParameter

from ...miniature import WRITERS
from ...world import draw, write_folder

ALL = configurations()


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the five benchmark sets in smoke_test, a catalogue of one's own, and strange photos."""
    root = tmp_path_factory.mktemp("sets")
    for name, write in WRITERS.items():
        (root / name).mkdir()
        write(root / name)
    write_folder(root / "grocery", items=range(20), photos=range(6))
    write_folder(root / "strangers", items=range(4), photos=range(4))
    return root


@pytest.fixture(scope="session")
def options(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Options:
    """Return options whose runs are shared by all configurations of these tests."""
    strangers = read_catalogue(data / "strangers")
    return Options(data, tmp_path_factory.mktemp("papers"), seeds=1, smoke_test=True, strangers=strangers)


def only_one_set(options: Options, entry: Configuration) -> Options:
    """Return options under which the modern protocol, of some hundred runs, has one data set."""
    return dataclasses.replace(options, datasets=("cub",)) if entry.protocol == MODERN else options


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_configuration_runs_from_start_to_end(name: str, options: Options) -> None:
    entry = find(name)
    results = run(entry, only_one_set(options, entry))
    folder = options.output / name
    stored = json.loads((folder / "results.json").read_text())
    if entry.variants:
        known = only_one_set(options, entry).datasets or entry.datasets or ("this machine",)
        assert list(results.cells) == list(known)
    for dataset, rows in results.cells.items():
        assert not entry.variants or list(rows) == list(entry.variants)
        for variant, row in rows.items():
            assert not entry.metrics or tuple(row) == entry.metrics
            for metric, values in row.items():
                assert np.isfinite(values).all(), (dataset, variant, metric)
                assert stored["results"][dataset][variant][metric]["values"] == values
    table = (folder / "results.md").read_text()
    assert all(f"| {variant} |" in table for rows in results.cells.values() for variant in rows)


def test_a_run_is_named_after_what_its_photos_show_and_not_after_where_they_lie(data: Path, tmp_path: Path) -> None:
    entry = find("tcm-table-6")

    def place(source: Path) -> Path:
        photo_sets = PhotoSets(Options(source, tmp_path / "out", seeds=1, smoke_test=True))
        return photo_sets.job(entry, entry.variants["SAP"], "grocery", 0).path

    def catalogue(folder: Path, *, change: str = "") -> Path:
        folder.mkdir()
        shutil.copytree(data / "grocery", folder / "photos")
        photos = read_catalogue(folder / "photos")
        if change == "photo":
            draw(99, 0).save(photos[0].path)
        rows = [f"{p.path.relative_to(folder)},{p.item_id},{p.photo_id}" for p in photos]
        if change == "label":
            rows[0] = rows[0].replace(f",{photos[0].item_id},", ",another,")
        (folder / "c.csv").write_text("\n".join(["path,item_id,photo_id", *rows]) + "\n")
        return folder / "c.csv"

    first = place(catalogue(tmp_path / "a"))
    assert place(catalogue(tmp_path / "moved")) == first
    assert len({first, *(place(catalogue(tmp_path / c, change=c)) for c in ("photo", "label"))}) == 3
    listed = (tmp_path / "out" / "catalogues").glob("grocery-*.jsonl")
    assert len({p.path for file in listed for p in read_catalogue(file) if p.path.exists()}) == 3 * 120


@pytest.mark.slow
def test_an_interrupted_run_is_continued(options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = dataclasses.replace(find("tcm-table-8"), variants={"RS@K": Variant()}, published={})
    whole = run(entry, options).cells
    other = dataclasses.replace(options, output=tmp_path)
    real = runs.train
    monkeypatch.setattr(runs, "train", lambda *a, **k: real(*a, **k, on_epoch=_stop))
    with pytest.raises(KeyboardInterrupt):
        run(entry, other)
    monkeypatch.undo()
    assert run(entry, other).cells == whole


def _stop(epoch: int, figures: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_two_seeds_give_an_interval_and_one_own_catalogue_takes_every_set(options: Options, data: Path) -> None:
    catalogue = data / "grocery.csv"
    rows = [f"{p.path},{p.item_id}" for p in read_catalogue(data / "grocery")]
    catalogue.write_text("\n".join(["path,item_id", *rows]) + "\n")
    entry = dataclasses.replace(find("tcm-table-6"), variants={"SAP": Variant({"loss": "smooth_ap"})}, published={})
    results = run(entry, dataclasses.replace(options, data=catalogue, seeds=2))
    values = results.to_dict()["results"]["grocery"]["SAP"]["OPIS"]
    first, second = values["values"]
    assert first != second
    assert values["mean"] == pytest.approx((first + second) / 2)
    assert values["half_width"] == pytest.approx(12.7062 * abs(first - second) / 2, rel=1e-4)
    assert "±" in results.to_markdown()


def test_settings_losses_and_metrics_are_known(data: Path, tmp_path: Path) -> None:
    for name, entry in ALL.items():
        check(find(name), Options(data, tmp_path), entry.datasets)


def test_nothing_unknown_is_passed_over(data: Path, tmp_path: Path) -> None:
    options = Options(data, tmp_path, smoke_test=True)
    entry = find("tcm-table-7")
    for changes, text in (({"losss": "tcm"}, "loss"), ({"loss": "smoothap"}, "smooth_ap")):
        with pytest.raises(InvalidParameter, match=text):
            run(entry, dataclasses.replace(options, changes=changes))
    with pytest.raises(InvalidParameter, match=r"R@"):
        run(dataclasses.replace(entry, metrics=("recall",), published={}), options)
    with pytest.raises(InvalidParameter, match="inat"):
        run(entry, dataclasses.replace(options, datasets=("cub",)))
    with pytest.raises(InvalidParameter, match="tcm-table-7"):
        find("tcm-tabel-7")
    with pytest.raises(InvalidParameter, match="densities"):
        draw_figure("pie")
    with pytest.raises(InvalidParameter, match="label noise"):
        transform([], [], ("blur", 0.1), seed=0)
    with pytest.raises(InvalidParameter, match="published"):
        dataclasses.replace(entry, published={("cub", "SAP"): (1.0,)})
    assert not (tmp_path / "runs").exists()


def test_settings_of_a_variant_win_over_those_of_the_configuration_and_given_ones_over_both(tmp_path: Path) -> None:
    entry = find("contextual-table-2")
    options = Options(tmp_path, tmp_path, changes={"epochs": 3})
    cub = settings_of(entry, entry.variants["Contextual"], "cub", options)
    cars = settings_of(entry, entry.variants["Contextual"], "cars", options)
    assert (cub.loss_arguments["contextual_weight"], cars.loss_arguments["contextual_weight"]) == (0.95, 0.8)
    assert (cub.items_per_batch, cars.items_per_batch, cub.epochs) == (32, 16, 3)
    other = settings_of(
        entry, entry.variants["Contextual"], "cub", Options(tmp_path, tmp_path, changes={"loss": "tcm"})
    )
    assert other.loss_arguments == {}


def test_the_shared_split_has_every_class_on_both_sides(data: Path) -> None:
    labelled = read_labelled_photos("cub", data, split="shared")
    assert {item.removeprefix("test:") for item in labelled.test} == set(labelled.train)
    parts = [
        {p.photo_id for p in labelled.photos if p.item_id in set(items)} for items in (labelled.train, labelled.test)
    ]
    listed = dict(
        line.split() for line in (data / "cub" / "CUB_200_2011" / "train_test_split.txt").read_text().splitlines()
    )
    assert len(parts[0]) == list(listed.values()).count("1")
    assert not parts[0] & parts[1]


def test_transformations_change_training_photos_alone(data: Path) -> None:
    labelled = read_labelled_photos("cub", data, split="classes")
    strangers = read_catalogue(data / "strangers")
    train = [i for i, p in enumerate(labelled.photos) if p.item_id in set(labelled.train)]
    labels = transform(labelled.photos, labelled.train, ("label noise", 0.25), seed=3)
    changed = [i for i, (a, b) in enumerate(zip(labelled.photos, labels, strict=True)) if a.item_id != b.item_id]
    assert len(changed) == round(0.25 * len(train))
    assert set(changed) <= set(train)
    assert {labels[i].item_id for i in changed} <= set(labelled.train)
    assert labels == transform(labelled.photos, labelled.train, ("label noise", 0.25), seed=3)
    assert labels != transform(labelled.photos, labelled.train, ("label noise", 0.25), seed=4)

    images = transform(labelled.photos, labelled.train, ("image noise", 0.25), seed=3, strangers=strangers)
    replaced = [i for i, (a, b) in enumerate(zip(labelled.photos, images, strict=True)) if a.path != b.path]
    assert len(replaced) == round(0.25 * len(train))
    assert {images[i].path for i in replaced} <= {p.path for p in strangers}
    assert [p.item_id for p in images] == [p.item_id for p in labelled.photos]
    with pytest.raises(DataError, match="--strangers"):
        transform(labelled.photos, labelled.train, ("image noise", 0.25), seed=3)

    fewer = transform(labelled.photos, labelled.train, ("first classes", 0.5), seed=0)
    assert {p.item_id for p in fewer} == {*sorted(labelled.train)[: len(labelled.train) // 2], *labelled.test}
    assert {p.role for p in transform(labelled.photos, labelled.train, ("one set", 1.0), seed=0)} == {""}


@pytest.mark.slow
def test_concatenated_vectors_have_the_mean_of_the_cosines(options: Options) -> None:
    entry = find("tcm-table-6")
    photo_sets = PhotoSets(options)
    models = [embedded(_trained(photo_sets.job(entry, variant, "inat", 0))) for variant in entry.variants.values()]
    side_by_side = concatenated(models)
    assert side_by_side.unit.shape[1] == sum(model.unit.shape[1] for model in models)
    mean = sum(model.unit @ model.unit.T for model in models) / len(models)
    np.testing.assert_allclose(side_by_side.unit @ side_by_side.unit.T, mean, atol=1e-5)


def _trained(job: runs.Job) -> runs.Job:
    runs.trained(job)
    return job


@pytest.mark.slow
def test_metrics_of_norms_and_distances(options: Options) -> None:
    entry = find("tcm-table-6")
    part = embedded(_trained(PhotoSets(options).job(entry, entry.variants["SAP"], "inat", 0)))
    raw = part.unit.astype(np.float64) * part.norms[:, None]
    distances = np.linalg.norm(raw[:, None] - raw[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    right = part.labels[distances.argmin(axis=1)] == part.labels
    assert find_metric("L2 R@1")[0].measure(part, ()) == pytest.approx(right.mean())
    cosines = part.unit @ part.unit.T
    np.fill_diagonal(cosines, -9)
    right = part.labels[cosines.argmax(axis=1)] == part.labels
    assert find_metric("norm where right")[0].measure(part, ()) == pytest.approx(part.norms[right].mean(), rel=1e-5)
    assert find_metric("error")[0].measure(part, ()) == pytest.approx(1 - right.mean())
