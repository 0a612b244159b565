"""Losses and gradients equal those that the papers' released code gave, case by case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from training.losses import (
    ClassWiseMultiSimilarity,
    Contextual,
    ContextualSum,
    Contrastive,
    MeanFieldClassWiseMultiSimilarity,
    MeanFieldContrastive,
    ProxyAnchor,
    RecallAtK,
    SimilarityRegularizer,
    SmoothAP,
    ThresholdConsistentMargin,
)

from .golden import F32, F64, Case, agrees, golden, gradient_agrees, measure, set_rows

FIELDS, PROXIES = ("fields", "mean_fields"), ("proxies", "proxies")
WHOLE_NUMBERS = {"neighbours"}


@dataclass(frozen=True)
class Golden:
    """A golden file with the loss of a case, and the ends of the names of its values, the first one that a case has."""

    file: str
    make: Callable[[Case], nn.Module]
    ends: tuple[str, ...] = ("",)
    learned: tuple[str, str] = ("", "")  # parameter of the loss, and its golden rows
    size: Callable[[Case], float] = lambda _: 1.0  # of the terms whose rounding in float32 the loss inherits


def number(case: Case, key: str) -> float:
    return float(case[key])


def of_case(kind: Callable[..., nn.Module], rows: str = "", **keys: str) -> Callable[[Case], nn.Module]:
    """Return a function that makes the loss of a case: the shape of its rows, and arguments by the case's keys."""

    def make(case: Case) -> nn.Module:
        given = {name: int(case[key]) if name in WHOLE_NUMBERS else number(case, key) for name, key in keys.items()}
        return kind(*(case[rows].shape if rows else ()), **given)

    return make


def recall(case: Case, count_query: bool) -> RecallAtK:
    return RecallAtK(
        ks=tuple(case["k_vals"].tolist()),
        similarity_temperature=number(case, "tau_sim"),
        rank_temperature=float(case["tau_rank"][0]),
        count_query=count_query,
    )


def mean_field_similarity(case: Case) -> MeanFieldClassWiseMultiSimilarity:
    return MeanFieldClassWiseMultiSimilarity(
        *case["mean_fields"].shape,
        **{name: number(case, name) for name in ("alpha", "beta")},
        delta=number(case, "delta_distance"),
        regularization=number(case, "mf_reg") / number(case, "beta") ** 2,  # the released code divides by beta
    )


def mean_field_contrastive(reduction: str) -> Callable[[Case], nn.Module]:
    return of_case(
        partial(MeanFieldContrastive, reduction=reduction), "mean_fields", regularization="mf_reg", **MARGINS
    )


MARGINS = {"positive_margin": "pos_margin", "negative_margin": "neg_margin"}
CONTEXT = {"neighbours": "k", "margin": "eps"}
TCM = {
    "positive_margin": "margin_plus",
    "negative_margin": "margin_minus",
    "positive_weight": "lambda_plus",
    "negative_weight": "lambda_minus",
}
WEIGHTS = {"contextual_weight": "lam", "similarity_weight": "gamma", "target": "s_tilde"}


TABLE = {
    "class-wise multi-similarity": Golden(
        "cwms",
        lambda c: ClassWiseMultiSimilarity(
            alpha=number(c, "alpha"), beta=number(c, "beta"), delta=1 - number(c, "base")
        ),
    ),
    "contextual": Golden("contextual", of_case(Contextual, slope="alpha_ste", **CONTEXT), ("_guarded",)),
    "contextual sum": Golden("contextual", of_case(ContextualSum, **WEIGHTS, **CONTEXT, **MARGINS), ("_eq6",)),
    "contrastive": Golden("contrastive", of_case(Contrastive, **MARGINS)),
    "mean-field contrastive": Golden("meanfield_contrastive", mean_field_contrastive("sample"), learned=FIELDS),
    "mean-field multi-similarity": Golden("meanfield_cwms", mean_field_similarity, learned=FIELDS),
    "proxy anchor": Golden(
        "proxyanchor", of_case(ProxyAnchor, "proxies", alpha="alpha", margin="margin"), learned=PROXIES
    ),
    "recall at k": Golden("recall_at_k_surrogate", lambda c: recall(c, True), ("_query_included", "")),
    "recall at k, exact": Golden("recall_at_k_surrogate", lambda c: recall(c, False), ("_query_excluded",)),
    "similarity regularizer": Golden("similarity_regularizer", of_case(SimilarityRegularizer, target="s_tilde")),
    "smooth AP": Golden("smooth_ap", of_case(SmoothAP, temperature="tau")),
    "smooth AP, exact": Golden(
        "smooth_ap", of_case(partial(SmoothAP, count_query=False), temperature="tau"), ("_self_excluded",)
    ),
    "TCM": Golden("tcm", of_case(ThresholdConsistentMargin, **TCM)),
}
LEFT_OUT = {"simix_m4"}  # which has a test of its own


@pytest.mark.data
@pytest.mark.parametrize("name", TABLE)
def test_loss_and_gradients_equal_the_golden_ones(test_data: Path, name: str) -> None:
    compare_cases(TABLE[name], golden(test_data, TABLE[name].file))


def compare_cases(entry: Golden, cases: dict[str, Case]) -> None:
    compared = 0
    for title, case in cases.items():
        end = next((end for end in entry.ends if f"loss{end}" in case), None)
        if end is None or title in LEFT_OUT:
            continue
        whole = cases[title.rsplit("_", 1)[0] + "_s030"] | case if "emb" not in case else case  # the same batch
        for dtype in (F64, F32):
            if dtype == F32 and title == "boundary":
                continue  # pairs exactly on a margin are not exactly on it in float32
            compare(entry, whole, end, dtype)
            compared += 1
    assert compared >= 2


def compare(entry: Golden, case: Case, end: str, dtype: torch.dtype) -> None:
    loss = entry.make(case)
    parameter, rows = entry.learned
    if parameter:
        set_rows(getattr(loss, parameter), case[rows])
    value, gradient = measure(loss, case, dtype)
    wanted, wanted_gradient = number(case, f"loss{end}"), case[f"grad_emb{end}"]
    if not np.isfinite(wanted) or np.isnan(wanted_gradient).any():  # where the released code divides by nothing
        assert np.isfinite(value)
        assert gradient.isfinite().all()
        if np.isnan(wanted):
            assert value == 0
            assert gradient.eq(0).all()
        elif np.isfinite(wanted):
            assert value == pytest.approx(wanted, rel=1e-5, abs=1e-5)
        return
    agrees((value, gradient), wanted, wanted_gradient, dtype, size=1.0 if dtype == F64 else entry.size(case))
    if f"grad_{rows}{end}" in case and entry.file != "arcface":
        learned = getattr(loss, parameter).grad
        assert learned is not None
        gradient_agrees(learned, case[f"grad_{rows}{end}"], dtype, 1e-8 if dtype == F64 else 5e-5)


@pytest.mark.data
def test_terms_of_sums_equal_the_golden_ones(test_data: Path) -> None:
    case = golden(test_data, "contextual")["combined_regular"]
    for part, name in zip(
        (Contextual(), Contrastive(), SimilarityRegularizer()), ("context", "contrast", "reg"), strict=True
    ):
        assert measure(part, case, F64)[0] == pytest.approx(number(case, f"loss_{name}"), abs=1e-12)
    for case in golden(test_data, "tcm").values():
        margins = {"positive_margin": number(case, "margin_plus"), "negative_margin": number(case, "margin_minus")}
        for weight, term in (("negative_weight", "pos_term"), ("positive_weight", "neg_term")):  # Eq. 16 and 15
            alone = ThresholdConsistentMargin(**margins, **{weight: 0.0})  # type: ignore[arg-type]
            assert measure(alone, case, F64)[0] == pytest.approx(number(case, term), abs=1e-12)
    for case in golden(test_data, "meanfield_contrastive").values():
        by_class = mean_field_contrastive("class")(case)
        set_rows(by_class.fields, case["mean_fields"])
        assert measure(by_class, case, F64)[0] == pytest.approx(number(case, "loss_eq8_class_balanced"), abs=1e-9)
    case = golden(test_data, "meanfield_contrastive")["close_fields"]
    values = []
    for weight in (float(case["mf_reg"]), 1.0):
        loss = mean_field_contrastive("sample")(case)
        set_rows(loss.fields, case["mean_fields"])
        loss.regularization = weight
        values.append(measure(loss, case, F64)[0])
    assert values[1] - values[0] == pytest.approx(number(case, "reg_term"), abs=1e-9)
    case = golden(test_data, "contextual")["regular"]
    unit = nn.functional.normalize(torch.tensor(case["emb"]), dim=1)
    similar = of_case(Contextual, slope="alpha_ste", **CONTEXT)(case)
    assert np.abs(similar.similarity(unit).numpy() - case["w_context"]).max() < 1e-12
