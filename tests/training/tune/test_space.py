"""Search spaces: names, values, and the settings of a trial."""

from __future__ import annotations

from typing import Any

import pytest
from optuna.trial import FixedTrial

from retrieval.errors import InvalidParameter
from training.config import Settings
from training.tune.space import check_space, default_space, draw_settings, given_values


def settings(**changes: object) -> Settings:
    return Settings.from_dict({"catalogue": "photos.csv", "loss": "smooth_ap", **changes})


def test_every_value_of_the_default_space_can_be_drawn() -> None:
    base, space = settings(), default_space()
    check_space(base, space)
    for place in ("low", "high"):
        numbers = {name: values[place] for name, values in space.items() if not isinstance(values, list)}
        for loss in space["loss"]:
            for regularizer in space["regularizer"]:
                drawn = draw_settings(FixedTrial({**numbers, "loss": loss, "regularizer": regularizer}), base, space)
                assert (drawn.loss, drawn.regularizer) == (loss, regularizer)
                assert drawn.learning_rate == numbers["learning_rate"]


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ({}, "name at least one setting"),
        ({"learning_rat": [1e-4, 1e-3]}, "Did you mean learning_rate?"),
        ({"learning_rate": 1e-4}, "have a list of values, or a range"),
        ({"learning_rate": {"low": 1e-4}}, "have a list of values, or a range"),
        ({"learning_rate": {"low": 2.0, "high": 1.0}}, "have a list of values, or a range"),
        ({"learning_rate": {"low": 1.0, "high": 2.0, "lgo": True}}, "have a list of values, or a range"),
        ({"head_learning_rate": {"low": 0.0, "high": 1.0}}, "head_learning_rate must be positive, got 0"),
        ({"epochs": {"low": 1.5, "high": 3}}, "epochs must be a whole number"),
        ({"pooling": {"low": 1, "high": 2}}, "pooling must be a text"),
        ({"pooling": ["average", "max"]}, "pooling must be one of average, gem, got 'max'"),
        ({"flip": ["yes", True]}, "flip must be true or false"),
        ({"loss": ["smooth_ap", "proxy_ancor"]}, "Did you mean proxy_anchor?"),
        ({"loss.temprature": [0.1, 0.2]}, "Arguments: loss.temperature, loss.count_query"),
        ({"regularizer.positive_margin": [0.6, 0.9]}, "arguments of losses that are tried"),
        ({"seed": [1, 2]}, "settings that do not decide how trials are measured"),
        ({"catalogue": ["a", "b"]}, "settings that do not decide how trials are measured"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_its_rule(space: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        check_space(settings(), space)
    assert told in str(refused.value)


def test_argument_is_drawn_only_for_a_loss_that_takes_it() -> None:
    space = {
        "loss": ["smooth_ap", "proxy_anchor"],
        "loss.alpha": {"low": 16, "high": 64},
        "loss.temperature": {"low": 0.01, "high": 0.1},
    }
    base = settings(loss_arguments={"count_query": False})
    check_space(base, space)
    values = {"loss.alpha": 20.0, "loss.temperature": 0.05}
    anchor = draw_settings(FixedTrial({"loss": "proxy_anchor", **values}), base, space)
    assert anchor.loss_arguments == {"alpha": 20.0}
    smooth = draw_settings(FixedTrial({"loss": "smooth_ap", **values}), base, space)
    assert smooth.loss_arguments == {"count_query": False, "temperature": 0.05}


def test_the_weight_of_the_regularizer_is_searched_like_its_arguments() -> None:
    base = settings(regularizer="tcm", regularizer_arguments={"positive_margin": 0.7})
    space = {"regularizer.weight": {"low": 0.5, "high": 2}}
    check_space(base, space)
    assert given_values(base, space) == {"regularizer.weight": 1.0}
    drawn = draw_settings(FixedTrial({"regularizer.weight": 0.75}), base, space)
    assert drawn.regularizer_arguments == {"positive_margin": 0.7, "weight": 0.75}
    with pytest.raises(InvalidParameter, match="arguments of losses that are tried"):
        check_space(base, {"loss.weight": [0.5, 2.0]})


def test_given_settings_are_the_first_trial_where_the_space_has_them() -> None:
    base = settings(learning_rate=1e-4, regularizer="tcm", regularizer_arguments={"positive_margin": 0.7})
    space = {
        "learning_rate": {"low": 1e-5, "high": 1e-3},
        "loss": ["proxy_anchor", "recall_at_k"],
        "regularizer.positive_margin": {"low": 0.6, "high": 0.98},
        "regularizer.negative_margin": {"low": 0.2, "high": 0.55},
        "loss.alpha": [16.0, 32.0],
    }
    margins = {"regularizer.positive_margin": 0.7, "regularizer.negative_margin": 0.5}
    assert given_values(base, space) == {"learning_rate": 1e-4, **margins}
