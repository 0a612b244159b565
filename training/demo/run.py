"""Run the demo: draw a catalogue, train with and without TCM, export, index, and search with new photos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.catalogue.splits import side
from retrieval.indexing.pipeline import index_catalogue
from retrieval.measuring.sentences import describe
from retrieval.retriever import Retriever
from training.config import Settings
from training.data.synthetic.catalogue import CATALOGUE, QUERIES, TRAINING, make_catalogue
from training.export.export import export
from training.loop.run import Run
from training.loop.train import train

from .examples import Example, choose_examples, copy_examples, describe_examples
from .queries import Answers, Rates, ask
from .thresholds import (
    EXPLANATION,
    best_f1_threshold,
    compare_thresholds,
    conclude,
    kind_table,
    threshold_table,
)
from .trainings import WITH_TCM, WITHOUT_TCM, Training, measure_training, training_table

TARGET_FPIR = 0.05
SEED = 0
SIZE = 64  # side of the model's input
PHOTO_SIZE = 224  # side of a photo
RUNS = {WITH_TCM: "run", WITHOUT_TCM: "run-without-tcm"}  # directories; the first is exported


@dataclass(frozen=True)
class DemoResult:
    """What two trainings find, answers to new photos, their rates under three thresholds, and the page's examples."""

    trainings: dict[str, Training]  # by name
    answers: Answers
    rates: dict[str, Rates]  # of each threshold, by name
    expectation: list[str]  # what indexing said to expect
    examples: list[Example]

    def text(self) -> str:
        """Return the tables with a few sentences about them."""
        parts = (
            self.expectation,
            training_table(self.trainings, TARGET_FPIR),
            [*threshold_table(self.rates, TARGET_FPIR), "", *EXPLANATION],
            kind_table(self.answers),
            conclude(self.answers, self.rates, TARGET_FPIR),
            describe_examples(self.examples),
        )
        return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def demo_settings(catalogue: Path, *, epochs: int = 14, seed: int = SEED) -> Settings:
    """Return the settings of the demo: the small backbone, trained from scratch."""
    return Settings(
        catalogue=str(catalogue.resolve()),
        backbone="small",
        size=SIZE,
        dim=128,
        loss="smooth_ap",
        regularizer="tcm",
        regularizer_arguments={"negative_margin": 0.7},
        epochs=epochs,
        learning_rate=2e-3,
        head_learning_rate=2e-3,
        crop_area=0.6,
        flip=False,
        select="r@1",  # TPIR is too uncertain with so few validation items
        target_fpir=TARGET_FPIR,
        seed=seed,
    )


def run_demo(output: Path, *, seed: int = SEED) -> DemoResult:
    """Draw a catalogue, train, export and index it under `output`, and search with new photos."""
    catalogue = make_catalogue(output / "photos", size=PHOTO_SIZE, seed=seed)
    settings = demo_settings(catalogue.with_name(TRAINING), seed=seed)
    run = train(settings, output / RUNS[WITH_TCM])
    train(replace(settings, regularizer="", regularizer_arguments={}), output / RUNS[WITHOUT_TCM])
    bundle = export(run, output / "bundle", target_fpir=TARGET_FPIR)
    index_catalogue(bundle, _shown(run, read_catalogue(catalogue)), output / "gallery")
    result = measure_demo(output)
    copy_examples(result.answers, result.examples, output / "examples")
    return result


def measure_demo(output: Path) -> DemoResult:
    """Search the gallery of a finished demo under `output` with its new photos."""
    photos, queries = (read_catalogue(output / "photos" / name) for name in (CATALOGUE, QUERIES))
    trained = [photo for photo in photos if photo.partition == "train"]
    runs = {name: Run.open(output / folder) for name, folder in RUNS.items()}
    trainings = {name: measure_training(run, _shown(run, photos), queries, TARGET_FPIR) for name, run in runs.items()}
    with Retriever.open(output / "bundle", output / "gallery") as retriever:
        bundle, point = retriever.bundle, retriever.point
        answers = ask(retriever, queries, {photo.item_id for photo in trained})
        expectation = describe(point) if retriever.gallery_point.measured()[1] is not None else []
    by_hand = best_f1_threshold(bundle, trained)
    rates = compare_thresholds(answers, by_hand=by_hand, bundle=bundle.threshold, gallery=point.threshold)
    return DemoResult(trainings, answers, rates, expectation, choose_examples(answers))


def _shown(run: Run, photos: Sequence[Photo]) -> list[Photo]:
    """Return the photos that the gallery holds: the catalogue's pictures, without photos of users."""
    return [photo for photo in photos if side(photo) == run.protocol.gallery_source]
