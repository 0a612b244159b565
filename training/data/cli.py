"""The command `retrieval data synthetic`, which draws a catalogue."""

from __future__ import annotations

from pathlib import Path

import click

from retrieval.cli.options import NEW_FOLDER
from retrieval.errors import command


@click.command()
@click.argument("output", type=NEW_FOLDER)
@click.option("--items", type=int, default=240, show_default=True, help="Number of items to draw.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the catalogue.")
def synthetic(output: Path, items: int, seed: int) -> None:
    """Draw a catalogue: mugs, T-shirts, sneakers and backpacks with several photos each, and its CSV.

    `queries.csv` lists new photos to search with, of catalogue items, unknown items and empty places.

    \b
    Example:
      retrieval data synthetic demo/photos --seed 1
    """
    from .synthetic import make_catalogue

    catalogue = make_catalogue(output, items=items, seed=seed)
    click.echo(f"Wrote {catalogue}.")
    click.echo(f"Next: {command('train', catalogue, '-o', 'runs/synthetic')}")
