"""Every table and figure of the papers runs from start to end on miniature data, and docs/papers.md lists it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from research.papers.configuration import MODERN, Configuration
from research.papers.drawings import draw as draw_figure
from research.papers.labelled_photos import read_labelled_photos
from research.papers.listing import configurations, find
from research.papers.runner import check, run
from research.papers.runs import Options, settings_of
from research.papers.transformations import transform
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import DataError, InvalidParameter

from ...miniature import WRITERS
from ...world import write_folder

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
