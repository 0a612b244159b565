"""The command `retrieval demo`."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import click

from retrieval.cli.options import NEW_FOLDER
from retrieval.errors import RunError, command
from retrieval.files import write_file

from .run import RUNS, SEED, run_demo

PARTS = ("photos", *RUNS.values(), "bundle", "gallery", "examples", "table.txt")  # of a demo


@click.command()
@click.option(
    "-o",
    "--output",
    type=NEW_FOLDER,
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
    """Draw a catalogue, train, export and index it, and compare trainings and thresholds.

    The tables at the end show what the threshold-consistent margin (TCM) changes, and three thresholds with the same
    new photos of known and unknown items: chosen by hand on the training photos, the bundle's and the gallery's. The
    output is ready for `retrieval serve`.

    \b
    Example:
      retrieval demo -o demo && retrieval serve demo/bundle demo/gallery
    """
    started = time.perf_counter()
    if output.exists() and any(output.iterdir()):
        if keep and (output / "table.txt").exists():  # it is written last
            click.echo(f"Kept the finished demo in {output}.")
            click.echo((output / "table.txt").read_text())
            return
        _clear(output)
    table = run_demo(output, seed=seed).text()
    write_file(output / "table.txt", table)
    click.echo(f"\n{table}")
    click.echo(f"Wrote {output}/bundle and {output}/gallery in {time.perf_counter() - started:.0f} s.")
    examples = ("--examples", output / "examples")
    click.echo(f"Next: {command('serve', output / 'bundle', output / 'gallery', *examples)}")


def _clear(output: Path) -> None:
    """Remove the files of an earlier demo; raise RunError if there are others."""
    others = sorted(entry.name for entry in output.iterdir() if entry.name not in PARTS)
    if others:
        raise RunError(
            f"{output} contains {others[0]}, which is not part of a demo", remedy="Choose another directory with -o"
        )
    for name in PARTS:
        target = output / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
