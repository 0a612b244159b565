"""Choice of precision and provider: the fastest on this machine that finds as many items as fp32.

A form is a precision with a provider. Every form that this machine can run is timed with one photo and with a batch,
each on one thread. The validation photos are searched in a gallery of fit and validation items. Each form has a
threshold of its own that keeps the target FPIR there, so forms differ in TPIR only. A form is kept if it is at least
LEAST_SPEEDUP times as fast as fp32 with one photo and the 95 % interval of its TPIR minus that of fp32, by bootstrap
over items, lies above LOSS. The fastest of these is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.bundle.embedder import Embedder
from retrieval.bundle.providers import CPU, PRECISIONS, PROVIDERS, import_onnxruntime
from retrieval.metrics.consistency import search_curves
from retrieval.metrics.identification import SearchScores, threshold_at_fpir
from training.evaluation.distance_selection import validation_split
from training.evaluation.evaluate import item_labels, score_split

from .comparison import TIMED, images_per_second, medians
from .exported_models import ExportedModel, ModelExporter
from .variants import FLOORS, Variant

LOSS = -0.02  # TPIR that a faster form may lose
LEAST_SPEEDUP = 1.1  # timings of the same form differ by a few percent
RESAMPLES = 2000
HERE = (CPU, "openvino")  # providers that run on the CPU
KEPT, SLOWER, TOO_FEW, TOO_FAR = "kept", "not faster than fp32", "may find fewer items", "too far from fp32"


@dataclass(frozen=True)
class TriedForm:
    """A precision and a provider with its speed, and its change of TPIR on the validation items."""

    form: str
    ms_per_photo: float  # one photo at a time
    batch_ms_per_photo: float
    speedup: float  # over fp32, with one photo
    verdict: str
    tpir_change: float | None = None  # None: not searched
    interval: tuple[float, float] | None = None

    def describe(self) -> str:
        """Return a line about the form."""
        searched = ""
        if self.tpir_change is not None and self.interval is not None:
            searched = f", TPIR {self.tpir_change:+.3f} [{self.interval[0]:+.3f}, {self.interval[1]:+.3f}]"
        speed = (
            f"{self.ms_per_photo:.2f} ms a photo ({self.batch_ms_per_photo:.2f} ms in batches, {self.speedup:.2f} x)"
        )
        return f"{self.form}: {speed}{searched}: {self.verdict}"


def forms_here(provider: str | None = None) -> list[Variant]:
    """Return the forms that this machine can run: of one provider, or of all that run on the CPU."""
    engines = import_onnxruntime().get_available_providers()
    names = [provider] if provider else [name for name in HERE if PROVIDERS[name].engine in engines]
    return [form for name in names for precision in PRECISIONS if not (form := Variant(precision, name)).is_reference]


def choose_form(exporter: ModelExporter, forms: Sequence[Variant]) -> tuple[ExportedModel, list[TriedForm]]:
    """Return the model of the fastest form that finds as many items as fp32 on the CPU, and all tried forms."""
    reference, split = exporter.reference, validation_split(exporter.photos, exporter.run.splits, exporter.run.protocol)
    labels = item_labels(exporter.photos)

    def item_tpir(model: ExportedModel) -> NDArray[np.float64]:
        vectors = model.whitened(model.fitted.vectors)
        scores = score_split(split, vectors, labels, distance_form=model.choice.distance_form)
        return tpir_of_items(scores, exporter.target_fpir)

    models = [reference, *(exporter.make(form) for form in forms)]
    embedders = [model.variant.embedder(model.onnx, exporter.run.preprocessing) for model in models]  # on one thread
    alone, batched = (_ms_per_photo(embedders, photos) for photos in (1, TIMED))
    tried = [TriedForm(reference.variant.describe(), alone[0], batched[0], 1.0, KEPT)]
    for model, one, many in zip(models[1:], alone[1:], batched[1:], strict=True):
        form = TriedForm(model.variant.describe(), one, many, alone[0] / one, SLOWER)
        if (model.fitted.vectors * reference.fitted.vectors).sum(axis=1).mean() < FLOORS[model.variant.precision]:
            form = replace(form, verdict=TOO_FAR)
        elif form.speedup >= LEAST_SPEEDUP:
            changes = item_tpir(model) - item_tpir(reference)
            interval = mean_interval(changes)
            verdict = KEPT if interval[0] > LOSS else TOO_FEW
            form = replace(form, verdict=verdict, tpir_change=float(changes.mean()), interval=interval)
        tried.append(form)
    return models[tried.index(_fastest(tried))], tried


def tpir_of_items(scores: SearchScores, target_fpir: float) -> NDArray[np.float64]:
    """Return the TPIR of each item at the largest threshold that keeps the target."""
    return search_curves(scores, [threshold_at_fpir(scores, target_fpir)]).sensitivity[:, 0]


def mean_interval(changes: NDArray[np.float64], *, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of the mean of independent values (k,), by bootstrap."""
    generator = np.random.default_rng(seed)
    rows = generator.integers(0, len(changes), (RESAMPLES, len(changes)))
    low, high = np.percentile(changes[rows].mean(axis=1), (2.5, 97.5))
    return float(low), float(high)


def forms_evidence(tried: Sequence[TriedForm]) -> list[dict[str, Any]]:
    """Return plain JSON values."""
    return [asdict(each) for each in tried]


def describe_forms(evidence: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line about each tried form, and one about the choice."""
    tried = [TriedForm(**each) for each in evidence]
    if not tried:
        return []
    best = _fastest(tried)
    gain = f"{best.speedup:.2f} times as fast as fp32" if best.speedup > 1 else "nothing faster finds as many items"
    return [*(each.describe() for each in tried), f"Chosen: {best.form}, {gain} on this machine."]


def _fastest(tried: Sequence[TriedForm]) -> TriedForm:
    """Return the fastest form that is kept."""
    return max((each for each in tried if each.verdict == KEPT), key=lambda each: each.speedup)


def _ms_per_photo(embedders: Sequence[Embedder], photos: int) -> list[float]:
    """Return the median time of each model, in ms per photo of a batch."""
    size = embedders[0].preprocessing.size
    tensor = np.random.default_rng(0).normal(size=(photos, 3, size, size)).astype(np.float32)
    return [1e3 / rate for rate in medians(images_per_second(embedders, tensor))]
