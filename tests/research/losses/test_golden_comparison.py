"""Comparison losses and their gradients equal those that the papers' released code gave, case by case."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from research.losses import ArcFace, MultiSimilarity, ProxyNCA

from ...training.losses.golden import Case, golden
from ...training.losses.test_golden_losses import PROXIES, Golden, compare_cases, number, of_case


def twice_the_scale(case: Case) -> float:
    return 2 * number(case, "softmax_scale")


SCALES = {"alpha": "alpha", "beta": "beta", "base": "base"}
TABLE = {
    "arcface": Golden(
        "arcface",
        of_case(ArcFace, "proxies", scale="scale", margin="margin_rad"),
        learned=PROXIES,
        size=lambda case: number(case, "scale"),
    ),
    "multi-similarity": Golden("multisimilarity", of_case(partial(MultiSimilarity, epsilon=-1.0), **SCALES)),
    "multi-similarity, mined": Golden(
        "multisimilarity", of_case(MultiSimilarity, epsilon="epsilon", **SCALES), ("_mined",)
    ),
    "proxy NCA": Golden(
        "proxynca", of_case(ProxyNCA, "proxies", scale="softmax_scale"), learned=PROXIES, size=twice_the_scale
    ),
    "proxy NCA, classic": Golden(
        "proxynca",
        of_case(partial(ProxyNCA, classic=True), "proxies", scale="softmax_scale"),
        ("_classic",),
        PROXIES,
        twice_the_scale,
    ),
}


@pytest.mark.data
@pytest.mark.parametrize("name", TABLE)
def test_loss_and_gradients_equal_the_golden_ones(test_data: Path, name: str) -> None:
    compare_cases(TABLE[name], golden(test_data, TABLE[name].file))
