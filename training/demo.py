"""Demo of the whole workflow on a synthetic catalogue, in a few minutes on two cores."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import click

from index.shell import command
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import RunError
from retrieval.files import write_file
from retrieval.indexing.pipeline import index_catalogue
from retrieval.threshold.gallery_anchor import describe
from training.data.synthetic import make_catalogue
from training.evaluation.report import evaluate_run, render
from training.export.export import export
from training.loop.train import train

from .config import Settings

TARGET_FPIR = 0.05
SEED = 2  # a seed with which a plain threshold clearly misses its target, with one thread and with two


def demo_settings(catalogue: Path, *, epochs: int = 12, seed: int = SEED) -> Settings:
    """Return the settings of the demo: the small backbone, trained from scratch on 64 px photos."""
    return Settings(
        catalogue=str(catalogue.resolve()),
        backbone="small",
        size=64,
        dim=128,
        loss="smooth_ap",
        epochs=epochs,
        learning_rate=2e-3,
        head_learning_rate=2e-3,
        freeze_batch_norm=False,
        crop_area=0.6,
        flip=False,
        target_fpir=TARGET_FPIR,
        seed=seed,
    )


def run_demo(output: Path, *, seed: int = SEED) -> tuple[dict[str, Any], str]:
    """Draw a catalogue, train, evaluate, export and index it under `output`.

    Returns the evaluation, and what to expect of the gallery's threshold.
    """
    photos = make_catalogue(output / "photos", seed=seed)
    run = train(demo_settings(photos, seed=seed), output / "run")
    report = evaluate_run(run)
    bundle = export(run, output / "bundle", target_fpir=TARGET_FPIR, allow_estimate=True)
    expectation = index_demo(bundle, photos, output / "gallery", run.protocol.gallery_source)
    copy_examples(photos, output / "examples", run.protocol.query_source)
    return report, expectation


def index_demo(bundle: Bundle, catalogue: Path, gallery: Path, source: str) -> str:
    """Index the gallery photos of all items, trained and unseen; return what to expect of the gallery's threshold."""
    photos = [p for p in read_catalogue(catalogue) if source in (p.role, p.source)]
    point = index_catalogue(bundle, photos, gallery).point
    return "" if point is None else "\nThe threshold is set again in the gallery. " + "\n".join(describe(point)) + "\n"


def copy_examples(catalogue: Path, folder: Path, source: str) -> None:
    """Copy example photos for the web page to a folder: some of gallery items, some of unknown items."""
    folder.mkdir()
    known = [photo.path for photo in read_catalogue(catalogue) if source in (photo.role, photo.source)]
    unknown = sorted((catalogue.parent / "unknown").iterdir())
    for name, photos, count in (("in-the-catalogue", known, 8), ("unknown", unknown, 4)):
        for number in range(count):
            shutil.copy(photos[(2 * number + 1) * len(photos) // (2 * count)], folder / f"{name}-{number}.jpg")


def explain(report: dict[str, Any]) -> str:
    """Return an explanation of the demo's table."""
    plain, served = report["splits"]["unseen"], report["served"]["splits"]["unseen"]
    conclusion = (
        "Corrected distances are no better on the validation items of this small catalogue, so the plain one is kept."
        if report["distance"]["form"] == "plain" and not report["distance"]["whitened"]
        else f"With the distance that export selected it is {served['FPIR']:.0%}, and {served['TPIR']:.0%} of the "
        f"searches for gallery items find their item, compared with {plain['TPIR']:.0%} for the plain distance.\n"
        "With so few calibration items this is an estimate; report.html of the bundle shows its uncertainty."
    )
    return (
        f"The first line is about unseen items: the nearest item is the right one in {plain['R@1']:.0%} of the "
        f"searches.\nA plain threshold that lets {report['target_fpir']:.0%} of the searches for unknown items return "
        f"something on the calibration items\nlets {plain['FPIR']:.0%} of them do so here, because distances differ "
        "from item to item. This is the problem that Retrieval solves.\n" + conclusion
    )


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("demo"),
    show_default=True,
    help="Directory to write to.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=SEED,
    show_default=True,
    help="Seed of the catalogue and of the training.",
)
@click.option("--keep", is_flag=True, help="Keep a finished demo and print its table.")
def demo(output: Path, seed: int, keep: bool) -> None:
    """Draw a catalogue, train, evaluate, export and index it, ready for `retrieval serve`.

    \b
    Example:
      retrieval demo -o demo && retrieval serve demo/bundle demo/gallery
    """
    started = time.perf_counter()
    if output.exists() and any(output.iterdir()):
        if keep and (output / "gallery").exists():
            click.echo(f"Kept the finished demo in {output}.")
            click.echo((output / "table.txt").read_text())
            return
        _clear(output)
    report, expectation = run_demo(output, seed=seed)
    table = f"{render(report)}\n\n{explain(report)}\n{expectation}"
    write_file(output / "table.txt", table)
    click.echo(f"\n{table}")
    click.echo(f"Wrote {output}/bundle and {output}/gallery in {time.perf_counter() - started:.0f} s.")
    examples = ("--examples", output / "examples")
    click.echo(f"Next: {command('serve', output / 'bundle', output / 'gallery', *examples)}")


def _clear(output: Path) -> None:
    """Remove the files of an earlier demo; raise RunError if there are others."""
    known = {"photos", "run", "bundle", "gallery", "examples", "table.txt"}
    others = sorted(entry.name for entry in output.iterdir() if entry.name not in known)
    if others:
        raise RunError(
            f"{output} contains {others[0]}, which is not part of a demo", remedy="Choose another directory with -o"
        )
    for name in sorted(known):
        target = output / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
