import numpy as np
import pytest

from retrieval.errors import InvalidParameter
from retrieval.metrics.identification import SearchScores, identification_rates
from training.export.certainty import auroc, choose_cut, risk_coverage, without_uncertain, wrong_answers


def test_auroc_by_hand() -> None:
    wrong = np.array([True, False, True, False])
    assert auroc([1.0, 2.0, 3.0, 4.0], wrong) == 3 / 4  # (1, 2), (1, 4), (3, 4) of four pairs
    assert auroc([1.0, 1.0, 1.0, 1.0], wrong) == 1 / 2
    assert auroc([1.0, 2.0], [False, False]) is None
    assert auroc([1.0, 2.0], [True, True]) is None
    assert auroc([1, 2, 3, 4], [1, 0, 1, 0]) == 3 / 4  # as whole numbers


def test_auroc_is_the_share_of_pairs_in_order() -> None:
    generator = np.random.default_rng(0)
    values, wrong = generator.integers(0, 6, 80) / 2, generator.random(80) < 0.3
    pairs = [(bad, good) for bad in values[wrong] for good in values[~wrong]]
    assert auroc(values, wrong) == pytest.approx(np.mean([(bad < good) + (bad == good) / 2 for bad, good in pairs]))


def test_a_tie_with_another_item_is_a_wrong_answer() -> None:
    own, impostor = np.array([0.3, 0.3, 0.3, np.inf]), np.array([0.4, 0.3, 0.2, 0.1])
    assert wrong_answers(SearchScores(np.arange(4), own, impostor, 4)).tolist() == [False, True, True, False]


def test_risk_coverage_by_hand() -> None:
    curve = risk_coverage([0.1, 0.9, 0.5, 0.7], [True, False, True, False])
    assert curve.coverage == pytest.approx([0.25, 0.5, 0.75, 1])
    assert curve.risk == pytest.approx([0, 0, 1 / 3, 1 / 2])
    assert curve.area == pytest.approx(5 / 24)
    assert risk_coverage([1, 9, 5, 7], [1, 0, 1, 0]).risk.tolist() == curve.risk.tolist()  # as whole numbers
    assert risk_coverage([1, 9, 5, 7], [2, 0, 3, 0]).risk.tolist() == curve.risk.tolist()  # as truths


def test_equally_certain_searches_keep_their_order() -> None:
    generator = np.random.default_rng(0)
    wrong, certain = generator.random(500) < 0.4, generator.random(500) < 0.5
    curve = risk_coverage(np.where(certain, 2.0, 1.0), wrong)
    assert curve.risk == pytest.approx(np.r_[wrong[certain], wrong[~certain]].cumsum() / np.arange(1, 501))


@pytest.mark.parametrize(("certainties", "wrong"), [([], []), ([1.0, 2.0], [True]), ([1.0], [True, False])])
def test_a_curve_needs_one_certainty_a_search(certainties: list[float], wrong: list[bool]) -> None:
    with pytest.raises(InvalidParameter, match="have one value a search"):
        risk_coverage(certainties, wrong)


def test_an_uncertain_search_returns_nothing_and_counts_as_a_miss() -> None:
    scores = SearchScores(
        np.array([0, 1, 2]),
        np.array([0.1, 0.2, np.inf]),
        np.array([0.5, 0.6, 0.3]),
        2,
        np.array([[0.5, 0.7], [0.6, 0.8], [0.3, 0.4]]),
    )
    kept = without_uncertain(scores, [5.0, 1.0, 1.0], cut=2.0)
    rates = identification_rates(kept, 0.6)
    assert (rates.fpir, rates.tpir, rates.mated_queries) == (1 / 3, 1 / 2, 2)
    assert np.isinf(kept.near[1:]).all()
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
    assert auroc(telling, wrong_answers(scores)) > 0.95
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
    assert kept.near is None
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
