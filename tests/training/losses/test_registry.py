from __future__ import annotations

import doctest
import inspect
import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import training.losses as package
from retrieval.cli.main import group
from retrieval.errors import InvalidParameter
from training.evaluation.report import evaluate_run
from training.export.export import export
from training.loop.optimizer import learned_by, make_optimizer
from training.loop.recipe import build_loss
from training.loop.run import Run
from training.loop.train import train
from training.loop.trainer import Trainer
from training.losses import LOSSES, Regularized, make_loss
from training.losses.base import Loss
from training.losses.registry import COMPARED, has_comparison_losses, load_comparison_losses, loss_arguments
from training.tune.study import make_plan

from ..conftest import tiny_settings
from .golden import small_batch, some_fast


def test_every_loss_of_the_package_has_a_name() -> None:
    public = [getattr(package, name) for name in package.__all__]
    losses = {item for item in public if inspect.isclass(item) and issubclass(item, Loss)}
    assert losses == {entry.loss for name, entry in LOSSES.items() if name not in COMPARED}


@pytest.mark.parametrize("name", [name for name in package.__all__ if inspect.isclass(getattr(package, name))])
def test_the_example_of_a_loss_shows_what_it_returns(name: str) -> None:
    names = {"torch": torch, **vars(package)}
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(package, name), name, globs=names)
    assert any("tensor(" in each.want or "Size(" in each.want for each in example.examples)
    assert doctest.DocTestRunner().run(example).failed == 0


def test_unknown_names_and_arguments_list_the_valid_ones() -> None:
    with pytest.raises(
        InvalidParameter,
        match=r"class_wise_multi_similarity, .*vmf_nca, .*triplet, got 'triplett'\. Did you mean triplet\?",
    ):
        make_loss("triplett", classes=3, dim=4, arguments={})
    with pytest.raises(InvalidParameter, match="temperature, count_query"):
        make_loss("smooth_ap", classes=3, dim=4, arguments={"tau": 1})


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        ("smooth_ap", {"temperature": "warm"}, "a number"),
        ("smooth_ap", {"temperature": True}, "a number"),
        ("smooth_ap", {"count_query": 1}, "a truth value"),
        ("recall_at_k", {"ks": 4}, "a list"),
        ("contextual", {"neighbours": 2.5}, "a whole number"),
        ("vmf_nca", {"distance": 3}, "a word"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_refused(name: str, arguments: dict, kind: str) -> None:
    with pytest.raises(InvalidParameter, match=f"{name}.* must be {kind}"):
        make_loss(name, classes=3, dim=4, arguments=arguments)


@pytest.mark.parametrize("regularizer", LOSSES)
def test_any_loss_regularizes_another_with_its_weight(regularizer: str) -> None:
    vectors, labels = small_batch()
    torch.manual_seed(0)
    arguments = {"distance": "el_vmf"} if regularizer == "vmf_nca" else {}
    base = make_loss("multi_similarity", classes=4, dim=6, arguments={}).double()
    extra = make_loss(regularizer, classes=4, dim=6, arguments=arguments).double()
    torch.manual_seed(1)  # for a loss that draws what it compares
    total = Regularized(base, extra, 0.5)(vectors, labels)
    torch.manual_seed(1)
    assert total.item() == pytest.approx(base(vectors, labels).item() + 0.5 * extra(vectors, labels).item())


def test_the_table_names_everything() -> None:
    shown = CliRunner().invoke(group, ["losses"])
    assert shown.exit_code == 0
    for name, entry in LOSSES.items():
        assert name in shown.output
        assert entry.paper in shown.output
        assert entry.cost in shown.output
        assert all(f"{argument}=" in shown.output for argument in loss_arguments(name))
    first, apart = shown.output.split("\n\nfor comparison:\n")
    listed = [[line.split()[0] for line in part.splitlines() if line[:1].strip()] for part in (first, apart)]
    assert listed[0][2:] == [name for name in LOSSES if name not in COMPARED]
    assert listed[1][:-1] == list(COMPARED)
    assert "for comparison" not in CliRunner().invoke(group, ["losses", "recall_at_k"]).output
    one_of_each = json.loads(CliRunner().invoke(group, ["losses", "tcm", "roadmap", "--json"]).output)
    assert {row["name"]: row["compared_only"] for row in one_of_each} == {"tcm": False, "roadmap": True}
    rows = json.loads(CliRunner().invoke(group, ["losses", "recall_at_k", "--json"]).output)
    assert [row["name"] for row in rows] == ["recall_at_k"]
    assert rows[0]["arguments"]["ks"] == [1, 2, 4, 8, 16]
    assert rows[0]["batches"] == "at least 2 photos per item"
    refused = CliRunner().invoke(group, ["losses", "nothing"])
    assert refused.exit_code != 0


def test_without_a_checkout_the_comparison_losses_are_missing_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in COMPARED:
        monkeypatch.delitem(LOSSES, name)
    monkeypatch.setitem(sys.modules, "research", None)
    monkeypatch.delitem(sys.modules, "research.losses")
    assert not has_comparison_losses()
    load_comparison_losses()
    with pytest.raises(InvalidParameter, match=r"got 'roadmap'.* are in research/losses of a checkout$"):
        make_loss("roadmap", classes=3, dim=4, arguments={})
    shown = CliRunner().invoke(group, ["losses"]).output
    assert "smooth_ap" in shown
    assert "research/losses of a checkout." in shown
    assert "roadmap" not in shown
    assert "\nmulti_similarity" not in shown


@pytest.mark.parametrize("form", ["options", "toml"])
def test_losses_are_chosen_by_options_or_in_a_file(catalogue: Path, tmp_path: Path, form: str) -> None:
    settings = tiny_settings(catalogue, epochs=1).to_dict()
    plain = {k: v for k, v in settings.items() if isinstance(v, str | int | float) and k not in ("loss", "regularizer")}
    lines = [f"{name} = {json.dumps(value)}" for name, value in plain.items()]
    chosen = ["--loss", "recall_at_k", "--regularizer", "tcm", "--loss.similarity_temperature", "0.02",
              "--loss.ks", "[1,2]", "--regularizer.positive-margin", "0.8"]  # fmt: skip
    if form == "toml":
        lines += ['loss = "recall_at_k"', 'regularizer = "tcm"', "[loss_arguments]", "similarity_temperature = 0.02",
                  "ks = [1, 2]", "[regularizer_arguments]", "positive_margin = 0.8"]  # fmt: skip
        chosen = []
    (tmp_path / "settings.toml").write_text("\n".join(lines))
    command = ["train", "--config", str(tmp_path / "settings.toml"), "-o", str(tmp_path / "run"), *chosen]
    result = CliRunner().invoke(group, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    loss = Trainer(Run.open(tmp_path / "run")).learner.loss
    assert isinstance(loss, Regularized)
    assert loss.base.ks == (1, 2)
    assert loss.base.similarity_temperature == 0.02
    assert loss.regularizer.positive_margin == 0.8


@pytest.mark.parametrize(("loss", "regularizer"), [("smooth_ap", ""), ("arcface", "tcm")])
def test_a_loss_that_needs_balanced_batches_says_so_before_training(
    catalogue: Path, tmp_path: Path, loss: str, regularizer: str
) -> None:
    settings = tiny_settings(catalogue, photos_per_item=1, loss=loss, regularizer=regularizer)
    with pytest.raises(InvalidParameter, match="compares photos of one item within a batch"):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("loss", some_fast(set(LOSSES) - {"similarity_regularizer", "triplet"}))
def test_every_loss_trains(catalogue: Path, tmp_path: Path, loss: str) -> None:
    run = train(tiny_settings(catalogue, epochs=1, loss=loss), tmp_path / loss)
    assert run.progress["epoch"] == 1
    assert math.isfinite(run.progress["best_trained"]["metrics"]["loss"])


TWO_SETS_OF_PROXIES = [("proxy_anchor", "vmf_nca"), ("vmf_nca", "mean_field_contrastive"), ("vmf_nca", "vmf_nca")]


@pytest.mark.parametrize(("loss", "regularizer"), TWO_SETS_OF_PROXIES)
def test_vmf_nca_beside_other_proxies_is_refused_before_anything_is_written(
    catalogue: Path, tmp_path: Path, loss: str, regularizer: str
) -> None:
    (tmp_path / "shop.toml").write_text(f'loss = "{loss}"\nregularizer = "{regularizer}"\n')
    small = ("--backbone", "small", "--size", "32", "--epochs", "1", "-o", str(tmp_path / "run"))
    words = ("--loss", loss, "--regularizer", regularizer)
    refusals = [
        CliRunner().invoke(group, ["train", str(catalogue), *small, *given]).exception
        for given in (words, ("--config", str(tmp_path / "shop.toml")))
    ]
    settings = tiny_settings(catalogue, loss=loss, regularizer=regularizer)
    for begin in (lambda: train(settings, tmp_path / "run"), lambda: make_plan(settings, {"dim": [8, 16]})):
        with pytest.raises(InvalidParameter) as refused:
            begin()
        refusals.append(refused.value)
    for refusal in refusals:
        assert isinstance(refusal, InvalidParameter)
        assert re.search(f"regularizer must learn no proxies beside {loss}.*got '{regularizer}'", str(refusal))
        assert "--loss vmf_nca --loss.anchor_weight 0.3" in str(refusal)
    assert [path.name for path in tmp_path.iterdir()] == ["shop.toml"]


def test_vmf_nca_regularizes_a_loss_without_proxies(catalogue: Path) -> None:
    settings = tiny_settings(catalogue, loss="smooth_ap", regularizer="vmf_nca")
    assert isinstance(build_loss(settings, classes=5), Regularized)


def test_a_run_with_two_sets_of_proxies_is_evaluated_and_exported_but_not_resumed(
    catalogue: Path, tmp_path: Path, onnx_written_once: None
) -> None:
    run = train(tiny_settings(catalogue, epochs=1, loss="proxy_anchor"), tmp_path / "run")
    settings = json.loads((run.path / "settings.json").read_text()) | {"regularizer": "vmf_nca", "epochs": 2}
    (run.path / "settings.json").write_text(json.dumps(settings))
    old = Run.open(run.path)
    assert evaluate_run(old)["target_fpir"] == 0.05
    bundle = export(old, tmp_path / "bundle", target_fpir=0.2)
    assert bundle.tells_norms
    with pytest.raises(InvalidParameter, match="regularizer must learn no proxies"):
        train(old.settings, old.path, resume=True)
    assert Run.open(run.path).progress["epoch"] == 1


def test_what_a_loss_learns_has_its_own_rates(catalogue: Path, tmp_path: Path) -> None:
    arguments = {"concentration_rate": 20.0, "temperature_rate": 0.1}
    settings = tiny_settings(
        catalogue, loss="proxy_anchor", regularizer="mean_field_contrastive", proxy_learning_rate=0.01
    )
    assert [len(learned) for learned in learned_by(build_loss(settings, classes=5)).values()] == [2]
    settings = tiny_settings(catalogue, loss="vmf_nca", loss_arguments=arguments, proxy_learning_rate=0.01)
    trainer = Trainer(train(tiny_settings(catalogue, epochs=1), tmp_path / "run"))
    groups = make_optimizer(trainer.model, build_loss(settings, classes=5), settings).param_groups
    shapes = {round(group["lr"], 6): sorted(tuple(p.shape) for p in group["params"]) for group in groups[-3:]}
    assert shapes == {0.001: [()], 0.01: [(5, 16)], 0.2: [(5, 16)]}
    assert all(group["weight_decay"] == 0 for group in groups[-3:])


def test_the_initial_norm_is_what_a_probabilistic_loss_reads(catalogue: Path, tmp_path: Path) -> None:
    settings = tiny_settings(catalogue, epochs=1, loss="vmf_nca", learning_rate=1e-9, head_learning_rate=1e-9)
    trainer = Trainer(train(settings, tmp_path / "run"))
    trainer._restore()
    pixels = trainer.source.reader.pixels(range(64))
    trainer.model.train()  # batch-norm here is not frozen
    with torch.no_grad():
        norms = trainer.model(trainer.source.prepare(pixels)).norm(dim=1)
    assert norms.mean().item() == pytest.approx(50.0, rel=0.1)
