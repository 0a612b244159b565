"""`retrieval demo`: the whole way on a catalogue that is drawn here, in a few minutes on two cores."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import click

from index.shell import command
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.byte_ranges import write_file
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import RunError
from retrieval.indexing.pipeline import index_catalogue
from training.data.synthetic import make_catalogue
from training.evaluation.report import evaluate_run, render
from training.export.export import export
from training.loop.trainer import train

from .config import Settings

TARGET_FPIR = 0.05
SEED = 2  # a plain threshold misses its target clearly there, by one thread and by two (BENCHMARKS.md)


def demo_settings(catalogue: Path, *, epochs: int = 12, seed: int = SEED) -> Settings:
    """Return the settings of the demo: our small backbone, from scratch, with 64 px photos."""
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


def run_demo(output: Path, *, seed: int = SEED) -> dict[str, Any]:
    """Draw a catalogue, train, evaluate, export and index under `output`; return the evaluation."""
    photos = make_catalogue(output / "photos", seed=seed)
    run = train(demo_settings(photos, seed=seed), output / "run")
    report = evaluate_run(run)
    bundle = export(run, output / "bundle", target_fpir=TARGET_FPIR, allow_estimate=True)
    index_demo(bundle, photos, output / "gallery", run.protocol.gallery_source)
    copy_examples(photos, output / "examples", run.protocol.query_source)
    return report


def index_demo(bundle: Bundle, catalogue: Path, gallery: Path, source: str) -> None:
    """Index the gallery side of the whole catalogue: trained items and items never seen alike."""
    photos = [p for p in read_catalogue(catalogue) if source in (p.role, p.source)]
    index_catalogue(bundle, photos, gallery)


def copy_examples(catalogue: Path, folder: Path, source: str) -> None:
    """Put photos to click on the page into a folder: queries of items in the gallery, and items in no catalogue."""
    folder.mkdir()
    known = [photo.path for photo in read_catalogue(catalogue) if source in (photo.role, photo.source)]
    unknown = sorted((catalogue.parent / "unknown").iterdir())
    for name, photos, count in (("in-the-catalogue", known, 8), ("unknown", unknown, 4)):
        for number in range(count):
            shutil.copy(photos[(2 * number + 1) * len(photos) // (2 * count)], folder / f"{name}-{number}.jpg")


def explain(report: dict[str, Any]) -> str:
    """Say in words what the demo's table shows."""
    plain, served = report["scenes"]["unseen"], report["served"]["scenes"]["unseen"]
    kept = (
        "Corrected distances did no better on the validation products of this small catalogue: the plain one is kept."
        if report["distance"]["form"] == "plain" and not report["distance"]["whitened"]
        else f"With the distance that export chose it is {served['FPIR']:.0%}; {served['TPIR']:.0%} of the searches "
        f"for items of the gallery find theirs, where the plain one finds {plain['TPIR']:.0%}.\n"
        "So few calibration products make an estimate: report.html of the bundle says how far others may be from it."
    )
    return (
        f"Read the first line: of products that nobody trained on, the nearest item is the right one in "
        f"{plain['R@1']:.0%} of the searches.\nOne plain threshold, set so that {report['target_fpir']:.0%} "
        "of the searches without a mate return something on the calibration products,\nreturns something in "
        f"{plain['FPIR']:.0%} of them here: distances do not mean the same for every product. "
        "This is the problem that Retrieval is about.\n" + kept
    )


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("demo"), show_default=True)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=SEED,
    show_default=True,
    help="Another catalogue and another training.",
)
@click.option("--keep", is_flag=True, help="Keep a finished demo, print its table.")
def demo(output: Path, seed: int, keep: bool) -> None:
    """Draw a catalogue, train, evaluate, export and index it: everything `retrieval serve` needs.

    \b
    Example:
      retrieval demo -o demo && retrieval serve demo/bundle demo/gallery
    """
    started = time.perf_counter()
    if output.exists() and any(output.iterdir()):
        if keep and (output / "gallery").exists():
            click.echo(f"{output} holds a finished demo; kept.")
            click.echo((output / "table.txt").read_text())
            return
        _clear(output)
    report = run_demo(output, seed=seed)
    table = f"{render(report)}\n\n{explain(report)}\n"
    write_file(output / "table.txt", table)
    click.echo(f"\n{table}")
    click.echo(f"Wrote {output}/bundle and {output}/gallery in {time.perf_counter() - started:.0f} s.")
    examples = ("--examples", output / "examples")
    click.echo(f"Next: {command('serve', output / 'bundle', output / 'gallery', *examples)}")


def _clear(output: Path) -> None:
    """Remove an earlier demo, and nothing else."""
    known = {"photos", "run", "bundle", "gallery", "examples", "table.txt"}
    strangers = sorted(entry.name for entry in output.iterdir() if entry.name not in known)
    if strangers:
        raise RunError(f"{output} holds {strangers[0]}, which no demo wrote", remedy="Choose another directory with -o")
    for name in sorted(known):
        target = output / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
