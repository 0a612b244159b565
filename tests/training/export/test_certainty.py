import numpy as np
import pytest

from retrieval.errors import InvalidParameter
from retrieval.metrics.identification import SearchScores, identification_rates
from training.export.export import choose_cut, without_uncertain


def test_an_uncertain_search_returns_nothing_and_counts_as_a_miss() -> None:
    scores = SearchScores(
        np.array([0, 1, 2]),
        np.array([0.1, 0.2, np.inf]),
        np.array([0.5, 0.6, 0.3]),
        2,
    )
    kept = without_uncertain(scores, [5.0, 1.0, 1.0], cut=2.0)
    rates = identification_rates(kept, 0.6)
    assert (rates.fpir, rates.tpir) == (1 / 3, 1 / 2)
    assert without_uncertain(scores, [5.0, 1.0, 1.0], cut=0.0).own.tolist() == scores.own.tolist()
    with pytest.raises(InvalidParameter, match="one value a search"):
        without_uncertain(scores, [1.0], cut=2.0)


def test_a_cut_is_chosen_where_it_helps_and_none_where_it_does_not() -> None:
    generator = np.random.default_rng(0)
    ambiguous = generator.random(2000) < 0.1
    own = np.where(ambiguous, 0.9, 0.4) + 0.05 * generator.normal(size=2000)
    impostor = np.where(ambiguous, 0.35, 0.9) + 0.05 * generator.normal(size=2000)
    scores = SearchScores(np.arange(2000), own, impostor, 2000)
    telling = np.where(ambiguous, 1.0, 2.0) + 0.1 * generator.normal(size=2000)
    cut, tried = choose_cut(scores, telling, 0.05)
    assert 1.0 < cut < 2.0
    assert tried[cut] < 0.2 < tried[0.0]
    cut, tried = choose_cut(scores, generator.random(2000), 0.001)
    assert tried[cut] <= tried[0.0]


def test_the_cuts_that_are_tried_are_low_quantiles() -> None:
    """Nothing, and the least certain 1, 2, 5, 10 and 20 % of the searches."""
    scores = SearchScores(np.arange(101), np.full(101, 0.4), np.linspace(0.5, 1.5, 101), 101)
    certainties = np.random.default_rng(0).permutation(101) + 1.0
    _, tried = choose_cut(scores, certainties, 0.05)
    assert list(tried) == pytest.approx([0.0, 2.0, 3.0, 6.0, 11.0, 21.0])


def test_a_search_of_exactly_the_cut_is_answered() -> None:
    scores = SearchScores(np.arange(3), np.full(3, 0.4), np.full(3, 0.9), 3)
    kept = without_uncertain(scores, [1.0, 2.0, 3.0], 2.0)
    assert np.isinf(kept.impostor).tolist() == [True, False, False]
    assert (kept.own > 2).tolist() == [True, False, False]
    third = np.array([0.3], dtype=np.float32)
    just_above = SearchScores(np.arange(1), np.full(1, 0.4), np.full(1, 0.9), 3)
    assert np.isinf(without_uncertain(just_above, third, float(third[0]) + 1e-9).impostor).all()
    assert kept.mated.all()  # a search that is rejected has a mate still, which it never finds


def test_of_cuts_that_are_as_good_the_lowest_is_chosen() -> None:
    scores = SearchScores(np.arange(50), np.full(50, 0.4), np.full(50, 0.9), 50)
    assert choose_cut(scores, np.ones(50), 0.05)[0] == 0.0
    hopeless = SearchScores(np.arange(50), np.full(50, 1.4), np.full(50, 0.9), 50)
    cut, tried = choose_cut(hopeless, np.arange(50.0), 0.05)
    assert (cut, set(tried.values())) == (0.0, {1.0})
