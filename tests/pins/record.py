"""Record galleries anew: `python -m tests.pins.record [--layer LAYER] [GALLERY ...]` prints what changes and writes it.

`--dry-run` writes nothing. RETRIEVAL_TEST_DATA names the folder of the real photos and vectors.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ..conftest import ROOT
from .galleries import GALLERIES
from .layers import LAYERS, Record

DATA = Path(__file__).parent / "data"
OPEN = {"evidence", "rates"}  # of a point: may tell more than was recorded
Difference = tuple[str, str, str]  # where, recorded, now


def read(layer: str) -> dict[str, Record]:
    """Return what is recorded of a layer, by gallery."""
    path = DATA / f"{layer}.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def write(layer: str, records: dict[str, Record]) -> None:
    """Write the records of a layer, one line for each query, point or source."""
    galleries = []
    for name, record in records.items():
        lines = [f"  {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in record.items()]
        galleries.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    DATA.mkdir(exist_ok=True)
    (DATA / f"{layer}.json").write_text("{\n" + ",\n".join(galleries) + "\n}\n")


def measured(gallery: str, folder: Path, shared: Path, layers: tuple[str, ...] = tuple(LAYERS)) -> dict[str, Record]:
    """Fill a gallery in a folder and return its record by layer, as JSON values."""
    shop = GALLERIES[gallery](folder, shared)
    return {layer: json.loads(json.dumps(LAYERS[layer](shop))) for layer in layers}


def differences(recorded: Any, now: Any, where: str = "", *, is_open: bool = False) -> Iterator[Difference]:
    """Yield the places where values differ from recorded ones, to the last digit."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        for key in {**recorded, **({} if is_open else now)}:
            place = f"{where} › {key}" if where else key
            if key not in recorded:
                yield place, "nothing", _text(now[key])
            elif key in now:
                yield from differences(recorded[key], now[key], place, is_open=is_open or key in OPEN)
            else:
                yield place, _text(recorded[key]), "nothing"
    elif isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        for place, pair in enumerate(zip(recorded, now, strict=True)):
            yield from differences(*pair, f"{where}[{place}]", is_open=is_open)
    elif repr(recorded) != repr(now):
        yield where, _text(recorded), _text(now)


def _text(value: Any) -> str:
    return text if len(text := repr(value)) <= 120 else f"{text[:117]}..."


def table(found: list[Difference], most: int = 40) -> str:
    """Return differences as lines."""
    lines = [f"  {where}: {recorded} → {now}" for where, recorded, now in found[:most]]
    return "\n".join([*lines, *([f"  and {len(found) - most} more"] if len(found) > most else [])])


@click.command()
@click.argument("galleries", nargs=-1, type=click.Choice(list(GALLERIES)))
@click.option("--layer", "layers", multiple=True, type=click.Choice(list(LAYERS)), help="By default, all layers.")
@click.option("--dry-run", is_flag=True, help="Write nothing.")
def main(galleries: tuple[str, ...], layers: tuple[str, ...], dry_run: bool) -> None:
    """Record galleries anew, by default all of them."""
    layers = layers or tuple(LAYERS)
    records = {layer: read(layer) for layer in layers}
    shared = Path(os.environ.get("RETRIEVAL_TEST_DATA", ROOT.parent / "shared"))
    for gallery in galleries or tuple(GALLERIES):
        started = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            now = measured(gallery, Path(folder), shared, layers)
        click.echo(f"{gallery}: {time.process_time() - started:.0f} s of CPU")
        for layer in layers:
            before = records[layer].get(gallery)
            found = [] if before is None else list(differences(before, now[layer]))
            told = f"{len(found)} differences (recorded → now)\n{table(found)}" if found else "no difference"
            click.echo(f" {layer}: {'recorded for the first time' if before is None else told}")
            records[layer][gallery] = now[layer]
            if not dry_run:
                write(layer, {name: records[layer][name] for name in GALLERIES if name in records[layer]})


if __name__ == "__main__":
    main()
