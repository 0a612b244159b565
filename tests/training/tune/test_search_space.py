"""Search spaces: texts, names, types, and the settings of a trial."""

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FixedTrial

from retrieval.errors import InvalidParameter
from training.config import Settings
from training.tune.search_space import SearchSpace, parse_searches


def settings(**changes: object) -> Settings:
    return Settings.from_dict({"catalogue": "photos.csv", "loss": "smooth_ap", **changes})


def space(*texts: str, base: Settings | None = None) -> SearchSpace:
    return SearchSpace.of(parse_searches(texts), base or settings())


@pytest.mark.parametrize(
    ("text", "distribution"),
    [
        ("learning_rate=1e-5..1e-3:log", FloatDistribution(1e-5, 1e-3, log=True)),
        ("weight-decay=0..0.5", FloatDistribution(0, 0.5)),
        ("items_per_batch=8..32:step=8", IntDistribution(8, 32, step=8)),
        ("epochs=2..8", IntDistribution(2, 8)),
        ("loss=smooth_ap, proxy_anchor", CategoricalDistribution(("smooth_ap", "proxy_anchor"))),
        ("regularizer=none,tcm", CategoricalDistribution(("", "tcm"))),
        ("flip=true,false", CategoricalDistribution((True, False))),
        ("dim=64,128", CategoricalDistribution((64, 128))),
    ],
)
def test_text_becomes_a_distribution_of_the_setting(text: str, distribution: object) -> None:
    assert list(space(text).axes.values()) == [distribution]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("learning_rate", "NAME=LOW..HIGH"),
        ("=1..2", "NAME=LOW..HIGH"),
        ("learning_rate=2..1", "low end must be below"),
        ("learning_rate=0..1:log", "log"),
        ("learning_rate=1..2:lgo", "only :log and :step=N"),
        ("learning_rate=a..b", "could not convert"),
        ("learning_rate=1", "must be valid and different"),
        ("learning_rate=1,1", "must be valid and different"),
        ("head_learning_rate=0..1", "head_learning_rate must be positive, got 0"),
        ("learning_rat=1e-5..1e-3", "Did you mean learning_rate?"),
        ("loss.temprature=0.1..0.2", "Did you mean loss.temperature?"),
        ("loss.proxy_anchor.alpha=16..64", "an argument of a loss that is tried"),
        ("optimizer.beta=0.1..0.2", "loss.ARGUMENT"),
        ("regularizer.positive_margin=0.6..0.9", "none, as no loss is set"),
        ("loss=smooth_ap,proxy_ancor", "Did you mean proxy_anchor?"),
        ("epochs=1.5..3", "of type int"),
        ("epochs=2,2.5", "of type int"),
        ("flip=0..1", "of type bool"),
        ("flip=yes,no", "must be valid and different"),
        ("pooling=1..2", "of type str"),
        ("pooling=average,max", "pooling must be one of average, gem, got 'max'"),
        ("seed=1..4", "name a setting"),
        ("catalogue=a,b", "name a setting"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_its_rule(text: str, told: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        space(text)
    assert told in str(refused.value)


def test_name_given_twice_or_none_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="once"):
        parse_searches(["learning_rate=1..2", "learning-rate=1..3"])
    with pytest.raises(InvalidParameter, match="at least one setting"):
        space()


def test_argument_is_drawn_only_for_a_loss_that_takes_it() -> None:
    texts = ("loss=smooth_ap,proxy_anchor", "loss.alpha=16..64", "loss.temperature=0.01..0.1")
    given = {"loss.alpha": 20.0, "loss.temperature": 0.05}
    anchor = space(*texts).suggest(FixedTrial({"loss": "proxy_anchor", **given}))
    assert anchor.loss_arguments == {"alpha": 20.0}
    smooth = space(*texts).suggest(FixedTrial({"loss": "smooth_ap", **given}))
    assert smooth.loss_arguments == {"temperature": 0.05}


def test_the_weight_of_the_regularizer_is_searched_like_its_arguments() -> None:
    base = settings(regularizer="tcm", regularizer_arguments={"positive_margin": 0.7})
    weights = space("regularizer.weight=0.5..2", base=base)
    assert weights.given() == {"regularizer.weight": 1.0}
    drawn = weights.suggest(FixedTrial({"regularizer.weight": 0.75}))
    assert drawn.regularizer_arguments == {"positive_margin": 0.7, "weight": 0.75}
    with pytest.raises(InvalidParameter, match="search must name a setting"):
        space("loss.weight=0.5..2", base=base)


def test_given_settings_are_the_first_trial_unless_a_word_is_missing() -> None:
    base = settings(learning_rate=1e-4, regularizer="tcm", regularizer_arguments={"positive_margin": 0.7})
    margins = space("regularizer.positive_margin=0.6..0.98", "regularizer.negative_margin=0.2..0.7", base=base)
    assert margins.given() == {"regularizer.positive_margin": 0.7, "regularizer.negative_margin": 0.5}
    assert space("learning_rate=1e-5..1e-3:log", base=base).given() == {"learning_rate": 1e-4}
    assert space("epochs=4..8:step=2", base=settings(epochs=5)).given() == {"epochs": 5}
    assert space("loss=smooth_ap,proxy_anchor", base=settings(loss="smooth_ap")).given() == {"loss": "smooth_ap"}
    assert space("loss=tcm,proxy_anchor", base=settings(loss="smooth_ap")).given() == {}
