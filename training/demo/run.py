"""Run the demo: draw a catalogue, train three heads, export and index one, and search with new photos."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retrieval.catalogue.read import read_catalogue
from retrieval.indexing.pipeline import index_catalogue
from retrieval.measuring.sentences import describe
from retrieval.process import cores
from retrieval.retriever import Retriever
from training.config import LITE0, Settings
from training.data.sources import FEATURES
from training.data.synthetic.catalogue import CATALOGUE, QUERIES, make_catalogue
from training.export.export import export
from training.loop.run import Run
from training.loop.train import train

from .examples import RULE, Example, choose_examples, copy_examples
from .queries import Answers, Rates, ask
from .thresholds import EXPLANATION, best_f1_threshold, compare_thresholds, conclude, threshold_table
from .trainings import BASE, EL_NIVMF, WITH_TCM, Features, Found, measure_trainings, training_table

TARGET_FPIR = 0.05
SEED = 0
PHOTO_SIZE = 192  # side of a photo
RUNS = {BASE: "run-without-tcm", WITH_TCM: "run", EL_NIVMF: "run-el-nivmf"}  # directories; that with TCM is exported
OTHERS: dict[str, dict[str, Any]] = {  # settings of trainings on the same features
    BASE: {"regularizer": ""},
    EL_NIVMF: {"loss": "vmf_nca", "loss_arguments": {"anchor_weight": 0.3}, "regularizer": ""},
}


@dataclass(frozen=True)
class DemoResult:
    """What three trainings find, answers to new photos, their rates under three thresholds, and the page's examples."""

    trainings: dict[tuple[str, str], Found]  # by training and part of the items
    answers: Answers
    rates: dict[str, Rates]  # of each threshold, by name
    expectation: list[str]  # what indexing said to expect
    examples: list[Example]

    def text(self) -> str:
        """Return the tables with a few sentences about them."""
        parts = (
            self.expectation,
            training_table(self.trainings),
            [*threshold_table(self.rates, TARGET_FPIR), "", *EXPLANATION],
            conclude(self.answers, self.rates, TARGET_FPIR),
            [RULE],
        )
        return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def demo_settings(catalogue: Path, *, seed: int = SEED) -> Settings:
    """Return the settings of the demo: a head on a pretrained backbone, with a small input and few views for speed."""
    return Settings(
        catalogue=str(catalogue.resolve()),
        backbone=LITE0,
        size=160,
        precompute=2,
        epochs=5,  # with as many steps as the default, and fewer validations
        epoch_steps=20,
        target_fpir=TARGET_FPIR,
        seed=seed,
    )


def run_demo(output: Path, *, seed: int = SEED) -> DemoResult:
    """Draw a catalogue, train, export and index it under `output`, and search with new photos."""
    catalogue = make_catalogue(output / "photos", size=PHOTO_SIZE, seed=seed)
    settings = demo_settings(catalogue, seed=seed)
    run = train(settings, output / RUNS[WITH_TCM])
    for name, changes in OTHERS.items():
        other = output / RUNS[name]
        other.mkdir()
        shutil.copy(run.path / FEATURES, other)  # all heads are trained on the same features
        train(replace(settings, **changes), other)
    bundle = export(run, output / "bundle", target_fpir=TARGET_FPIR)
    index_catalogue(bundle, read_catalogue(catalogue), output / "gallery")
    result = measure_demo(output)
    copy_examples(result.answers, result.examples, output / "examples")
    return result


def measure_demo(output: Path) -> DemoResult:
    """Search the gallery of a finished demo under `output` with its new photos."""
    photos, queries = (read_catalogue(output / "photos" / name) for name in (CATALOGUE, QUERIES))
    runs = {name: Run.open(output / folder) for name, folder in RUNS.items()}
    features = Features.of(runs[WITH_TCM], photos, queries)
    trainings = measure_trainings(features, runs, TARGET_FPIR)
    rows = features.is_fitted
    by_hand = best_f1_threshold(features.vectors(runs[WITH_TCM])[rows], features.items[rows])
    with Retriever.open(output / "bundle", output / "gallery", threads=cores()) as retriever:
        point, bundled = retriever.point, retriever.bundle.threshold
        answers = ask(retriever, queries)
        expectation = describe(point) if retriever.gallery_point.measured()[1] is not None else []
    rates = compare_thresholds(answers, by_hand=by_hand, bundle=bundled, gallery=point.threshold)
    return DemoResult(trainings, answers, rates, expectation, choose_examples(answers))
