from pathlib import Path
from typing import Any

import optuna
import pytest

from retrieval.errors import DataError, InvalidParameter
from training.config import Settings
from training.tune.search_space import Axis, Choice, Range, parse_axis, parse_searches, read_searches
from training.tune.search_targets import TCM_MARGINS, apply, make_space


def settings(**changes: object) -> Settings:
    return Settings.from_dict({"catalogue": "photos.csv", **changes})


def searches(*texts: str) -> dict[str, Axis]:
    return parse_searches(texts)


def drawn(base: Settings, *texts: str, **values: Any) -> Settings:
    """Return the settings of a trial whose draws are given, by name with _ for the dot."""
    space = make_space(searches(*texts), base)
    return space.suggest(
        optuna.trial.FixedTrial({key.replace("__", "."): value for key, value in values.items()}), base
    )


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("x=16..64", Range(16, 64)),
        ("x=1e-5..1e-3:log", Range(1e-5, 1e-3, log=True)),
        ("x=-0.5..0.5", Range(-0.5, 0.5)),
        ("x=.5..1.", Range(0.5, 1.0)),
        ("x=8..32:step=8", Range(8, 32, step=8)),
        ("x=a, b", Choice(("a", "b"))),
        ("x=1,2.5", Choice((1, 2.5))),
        ("x=true,false", Choice((True, False))),
        ("x=[1,2],[1,2,4]", Choice(([1, 2], [1, 2, 4]))),
        ("x=none,tcm", Choice(("", "tcm"))),
    ],
)
def test_what_is_typed_is_understood(text: str, axis: Axis) -> None:
    assert searches(text) == {"x": axis}
    assert parse_axis("x", axis.to_dict()) == axis
    assert searches(f"x={axis}") == {"x": axis}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("learning_rate", "NAME=LOW..HIGH"),
        ("=1..2", "NAME=LOW..HIGH"),
        ("x=2..1", "low end below its high end, got '2..1'"),
        ("x=1..1", "low end below its high end"),
        ("x=0..1:log", "start above zero on a log scale, got 0"),
        ("x=1..2:lgo", "have low, high and optionally log or step"),
        ("x=1..2:step=5", "have a step within the range"),
        ("x=1..8:log:step=1", "no log scale with a step"),
        ("x=a..b", "be a range of numbers, got 'a'"),
        ("x=1..inf", "be a range of numbers, got inf"),
        ("x=a", "at least two different choices"),
        ("x=a,a", "at least two different choices"),
        ("x=", "at least two different choices"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_its_rule(text: str, told: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        searches(text)
    assert told in str(refused.value)


def test_a_name_comes_once() -> None:
    with pytest.raises(InvalidParameter, match="once"):
        searches("learning_rate=1..2", "learning-rate=1..3")


def test_a_file_says_the_same(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text(
        """
        loss = ["smooth_ap", "proxy_anchor"]
        learning_rate = {low = 1e-5, high = 1e-3, log = true}
        "loss.alpha" = "16..64"
        regularizer.positive_margin = {low = 0.6, high = 0.9}
        """
    )
    assert read_searches(file) == searches(
        "loss=smooth_ap,proxy_anchor",
        "learning_rate=1e-5..1e-3:log",
        "loss.alpha=16..64",
        "regularizer.positive_margin=0.6..0.9",
    )
    file.write_text("loss = ")
    with pytest.raises(DataError, match="not valid TOML"):
        read_searches(file)
    with pytest.raises(DataError, match="does not exist"):
        read_searches(tmp_path / "none.toml")
    file.write_text("epochs = 3")
    with pytest.raises(InvalidParameter, match="be a range or a list of choices, got 3"):
        read_searches(file)


@pytest.mark.parametrize(
    ("base", "text", "told"),
    [
        ({}, "learning_rat=1e-5..1e-3", "Did you mean learning_rate?"),
        ({}, "loss.temprature=0.1..0.2", "Did you mean loss.temperature?"),
        ({}, "loss.proxy_anchor.alpha=16..64", "got 'smooth_ap'. Pass --loss proxy_anchor, or add it"),
        ({}, "loss.proxy_ancor.alpha=16..64", "Did you mean proxy_anchor?"),
        ({}, "optimizer.beta=0.1..0.2", "loss.ARGUMENT"),
        ({}, "regularizer.positive_margin=0.6..0.9", "Pass --regularizer, or search it"),
        ({}, "loss=smooth_ap,proxy_ancor", "Did you mean proxy_anchor?"),
        ({}, "epochs=1.5..3", "have integers, got '1.5..3'"),
        ({}, "epochs=2,2.5", "have integers, got 2.5"),
        ({}, "flip=0..1", "have true and false"),
        ({}, "pooling=1..2", "have strings"),
        ({}, "pooling=average,max", "pooling must be one of average, gem, got 'max'"),
        ({}, "learning_rate=0..1", "learning_rate must be positive, got 0"),
        ({}, "loss.temperature=-1..1", "have values that smooth_ap accepts"),
        ({}, "loss.temperature=low,high", "have numbers, got 'low'"),
        ({"loss": "recall_at_k"}, "loss.ks=1..4", "have lists"),
        ({}, "target_fpir=0.01..0.1", "be a setting that can be searched"),
        ({}, "seed=1..9", "be a setting that can be searched"),
        ({"loss_arguments": {"alhpa": 3.0}}, "loss=proxy_anchor,arcface", "Did you mean loss.alpha?"),
    ],
)
def test_unknown_names_and_wrong_kinds_are_refused(base: dict[str, object], text: str, told: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        make_space(searches(text), settings(**base))
    assert told in str(refused.value)


def test_every_number_and_choice_of_the_settings_can_be_searched() -> None:
    texts = ("dim=8..16", "warmup=0..0.2", "flip=true,false", "pooling=average,gem", "items_per_batch=4..16:step=4")
    found = drawn(settings(), *texts, dim=12, warmup=0.1, flip="false", pooling="gem", items_per_batch=8)
    assert (found.dim, found.warmup, found.flip, found.pooling, found.items_per_batch) == (12, 0.1, False, "gem", 8)
    assert found.learning_rate == settings().learning_rate


def test_arguments_go_with_their_loss() -> None:
    texts = ("loss=smooth_ap,proxy_anchor,arcface", "loss.alpha=16..64", "loss.arcface.margin=0.1..0.6")
    anchor = drawn(settings(), *texts, loss="proxy_anchor", loss__alpha=20.0)
    assert (anchor.loss, anchor.loss_arguments) == ("proxy_anchor", {"alpha": 20.0})
    plain = drawn(settings(), *texts, loss="smooth_ap")
    assert (plain.loss, plain.loss_arguments) == ("smooth_ap", {})
    other = drawn(settings(), *texts, loss="arcface", loss__arcface__margin=0.2)
    assert other.loss_arguments == {"margin": 0.2}


def test_an_argument_of_one_loss_goes_before_a_common_one() -> None:
    texts = ("loss=arcface,cosface", "loss.margin=0.1..0.4", "loss.arcface.margin=0.4..0.6")
    found = drawn(settings(), *texts, loss="arcface", loss__margin=0.1, loss__arcface__margin=0.5)
    assert found.loss_arguments == {"margin": 0.5}


def test_arguments_of_a_loss_that_was_exchanged_are_left_behind() -> None:
    base = settings(loss="smooth_ap", loss_arguments={"temperature": 0.02}, regularizer="tcm")
    assert apply(base, {"loss": "proxy_anchor"}).loss_arguments == {}
    assert apply(base, {"loss": "smooth_ap"}).loss_arguments == {"temperature": 0.02}
    assert apply(base, {"learning_rate": 0.1}).loss_arguments == {"temperature": 0.02}
    assert apply(base, {"regularizer": ""}).regularizer == ""


def test_without_a_search_tcm_has_its_margins_searched_and_others_are_asked() -> None:
    space = make_space({}, settings(regularizer="tcm"))
    assert dict(space.axes) == dict(TCM_MARGINS)
    assert space.stored_values(settings(regularizer="tcm")) == {
        "regularizer.positive_margin": 0.9,
        "regularizer.negative_margin": 0.5,
    }
    with pytest.raises(InvalidParameter, match=r"name at least one setting.*--regularizer tcm"):
        make_space({}, settings())


def test_settings_are_found_on_the_axes_or_said_to_lie_outside() -> None:
    space = make_space(
        searches("learning_rate=1e-3..1e-2:log", "loss=smooth_ap,arcface", "loss.scale=1..9"), settings()
    )
    assert space.stored_values(settings()) == {"learning_rate": None, "loss": "smooth_ap"}
    inside = settings(learning_rate=2e-3, loss="arcface", loss_arguments={"scale": 4.0})
    assert space.stored_values(inside) == {"learning_rate": 2e-3, "loss": "arcface", "loss.scale": 4.0}
