import numpy as np
import pytest

from retrieval.errors import InvalidParameter
from retrieval.metrics.identification import SearchScores, identification_rates
from retrieval.threshold.certainty import auroc, choose_cut, risk_coverage, without_uncertain, wrong_answers


def test_auroc_by_hand() -> None:
    wrong = np.array([True, False, True, False])
    assert auroc([1.0, 2.0, 3.0, 4.0], wrong) == 3 / 4  # (1, 2), (1, 4), (3, 4) of four pairs
    assert auroc([1.0, 1.0, 1.0, 1.0], wrong) == 1 / 2
    assert auroc([1.0, 2.0], [False, False]) is None


def test_risk_coverage_by_hand() -> None:
    curve = risk_coverage([0.1, 0.9, 0.5, 0.7], [True, False, True, False])
    assert curve.coverage == pytest.approx([0.25, 0.5, 0.75, 1])
    assert curve.risk == pytest.approx([0, 0, 1 / 3, 1 / 2])
    assert curve.area == pytest.approx(5 / 24)


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
