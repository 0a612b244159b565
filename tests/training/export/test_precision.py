"""Choice of the precision of an exported model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from retrieval.errors import InvalidParameter
from retrieval.metrics.identification import SearchScores
from training.export import precision
from training.export.cli import export as export_command
from training.export.precision import KEPT, LOSS, SLOWER, TOO_FAR, TOO_FEW, choose_form, forms_here, mean_interval
from training.export.variants import Variant

ITEMS = 40
INT8, FP16 = Variant("int8"), Variant("fp16")


@dataclass
class Model:
    """A fake of an exported model: its speed and the items that it finds."""

    variant: Variant
    ms: float
    finds: int
    cosine: float = 1.0
    onnx: Path = field(default_factory=Path)

    @property
    def fitted(self) -> Any:
        return SimpleNamespace(vectors=np.array([[self.cosine, 0.0]]))

    @property
    def choice(self) -> Any:
        return SimpleNamespace(distance_form=self)

    def whitened(self, vectors: np.ndarray) -> np.ndarray:
        return vectors


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that chooses among models."""

    def score_split(*_: Any, distance_form: Model) -> SearchScores:
        own = np.where(np.arange(ITEMS) < distance_form.finds, 0.1, 0.9)  # strangers come as close as 0.5
        return SearchScores(np.arange(ITEMS).astype(str), own, np.full(ITEMS, 0.5), ITEMS)

    def run(*models: Model) -> tuple[Model, Sequence[Any]]:
        by_variant = {model.variant: model for model in models}
        monkeypatch.setattr(Variant, "embedder", lambda self, *_: by_variant[self])
        monkeypatch.setattr(precision, "validation_split", lambda *_: None)
        monkeypatch.setattr(precision, "item_labels", lambda *_: None)
        monkeypatch.setattr(precision, "score_split", score_split)
        monkeypatch.setattr(precision, "_ms_per_photo", lambda embedders, _: [each.ms for each in embedders])
        settings = SimpleNamespace(splits=None, protocol=None, preprocessing=None)
        exporter = SimpleNamespace(
            reference=models[0], make=by_variant.__getitem__, run=settings, photos=(), target_fpir=0.05
        )
        chosen, tried = choose_form(exporter, [model.variant for model in models[1:]])  # type: ignore[arg-type]
        return chosen, tried  # type: ignore[return-value]

    return run


def test_the_fastest_form_that_finds_as_many_items_is_chosen(choose: Any) -> None:
    fp32 = Model(Variant(), 8.0, finds=30)
    chosen, tried = choose(fp32, Model(INT8, 4.0, finds=30), Model(FP16, 6.0, finds=30))
    assert chosen.variant == INT8
    assert [each.verdict for each in tried] == [KEPT, KEPT, KEPT]
    assert [each.speedup for each in tried] == [1.0, 2.0, pytest.approx(8 / 6)]
    chosen, tried = choose(fp32, Model(INT8, 4.0, finds=20), Model(FP16, 6.0, finds=30))
    assert (chosen.variant, tried[1].verdict, tried[1].tpir_change) == (FP16, TOO_FEW, pytest.approx(-0.25))
    assert tried[1].interval[0] < -0.25 < tried[1].interval[1]


def test_a_form_that_is_slower_or_too_far_from_fp32_is_not_searched(choose: Any) -> None:
    fp32 = Model(Variant(), 8.0, finds=30)
    chosen, tried = choose(fp32, Model(INT8, 9.0, finds=30), Model(FP16, 4.0, finds=30, cosine=0.9))
    assert chosen is fp32
    assert [(each.verdict, each.tpir_change) for each in tried[1:]] == [(SLOWER, None), (TOO_FAR, None)]


def test_too_few_items_to_tell_keep_fp32(choose: Any) -> None:
    chosen, tried = choose(Model(Variant(), 8.0, finds=30), Model(INT8, 4.0, finds=29))
    assert (chosen.variant, tried[1].verdict) == (Variant(), TOO_FEW)
    assert tried[1].interval[0] <= LOSS
    assert choose(Model(Variant(), 8.0, finds=30), Model(INT8, 7.5, finds=30))[1][1].verdict == SLOWER  # within noise


def test_the_interval_covers_the_mean_of_items() -> None:
    generator = np.random.default_rng(1)
    covered = 0
    for seed in range(200):
        low, high = mean_interval(generator.normal(0.3, 1, 60), seed=seed)
        covered += low < 0.3 < high
    assert 180 <= covered <= 199


def test_all_forms_of_the_cpu_are_tried() -> None:
    assert [form for form in forms_here() if form.provider == "cpu"] == [FP16, INT8]
    assert forms_here("cpu") == [FP16, INT8]


def test_a_pretrained_model_has_no_items_to_choose_on(tmp_path: Path) -> None:
    words = ["--pretrained", "efficientnet-lite0", "--precision", "auto", "-o", str(tmp_path / "b")]
    refused = CliRunner().invoke(export_command, words)
    assert isinstance(refused.exception, InvalidParameter)
    assert "--precision must be one of fp32, fp16, int8" in str(refused.exception)
