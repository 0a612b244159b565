"""Ask bundles and galleries for golden answers, by what both the old and the new code have."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retrieval import Bundle, Retriever
from retrieval.catalogue.read import read_catalogue

NAMES = ("birds", "demo", "grocery")
AFTER_A_CHANGE = 100  # queries asked again


def index(bundle: Path, table: Path, gallery: Path, *options: str) -> None:
    """Run `retrieval index`."""
    subprocess.run(_words(bundle, table, gallery, *options), check=True, stdout=subprocess.DEVNULL)


def _words(bundle: Path, table: Path, gallery: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "retrieval", "index", str(bundle), str(table), "-o", str(gallery), *options]


def kill_while_indexing(bundle: Path, table: Path, gallery: Path) -> None:
    """Start `retrieval index` and kill it by SIGKILL soon after it has made the gallery."""
    run = subprocess.Popen(_words(bundle, table, gallery), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not (gallery / "gallery.sqlite").exists():
        assert run.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.3 if table.parent.name == "demo" else 1.2)  # the demo's photos are small
    run.kill()
    assert run.wait() == -signal.SIGKILL


def ask(bundle: Path, gallery: Path, table: Path, most: int | None = None) -> dict[str, Any]:
    """Return the threshold of a gallery and, for each query, the nearest item, its distance and the decision."""
    with Retriever.open(bundle, gallery) as retriever:
        found = [(photo.photo_id, retriever.search(photo.path)) for photo in read_catalogue(table)[:most]]
        first = found[0][1]
        answers = [
            [name, None if r.nearest is None else r.nearest.item_id, round(float(r.nearest_distance), 9), r.decision]
            for name, r in found
            if r.nearest_distance is not None
        ]
        assert len(answers) == len(found)
        return {
            "threshold": first.threshold if first.threshold is None else round(first.threshold, 9),
            "status": first.threshold_status,
            "answers": answers,
        }


def ask_everything(
    bundle: Path, tables: Path, work: Path, *, tighten: Callable[[Path, Path], object]
) -> dict[str, Any]:
    """Index, ask, change, ask, tighten, kill, reopen and ask again; return all answers. `work` is written anew.

    `tighten` sets a stricter threshold in a gallery whose promise is broken.
    """
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    gallery, changed, queries = (tables / f"{name}.csv" for name in ("gallery", "changed", "queries"))
    index(bundle, gallery, work / "gallery")
    told: dict[str, Any] = {"bundle_threshold": _threshold(bundle), "first": ask(bundle, work / "gallery", queries)}
    index(bundle, changed, work / "gallery", "--prune")
    told["synchronized"] = ask(bundle, work / "gallery", queries, AFTER_A_CHANGE)
    tighten(bundle, work / "gallery")
    told["tightened"] = ask(bundle, work / "gallery", queries, AFTER_A_CHANGE)
    index(bundle, changed, work / "anew")
    told["anew"] = ask(bundle, work / "anew", queries, AFTER_A_CHANGE)
    kill_while_indexing(bundle, gallery, work / "killed")
    index(bundle, gallery, work / "killed")
    told["killed"] = ask(bundle, work / "killed", queries, AFTER_A_CHANGE)
    return told


def _threshold(bundle: Path) -> float | None:
    point = Bundle.open(bundle).operating_point
    return round(point.threshold, 9) if point.decides else None


def write_answers(path: Path, told: dict[str, Any]) -> None:
    """Write answers as JSON, one query a line."""
    text = json.dumps(told, indent=1)
    for answer in {
        json.dumps(a, indent=1) for part in told.values() if isinstance(part, dict) for a in part["answers"]
    }:
        text = text.replace(answer.replace("\n", "\n   "), json.dumps(json.loads(answer)))
    path.write_text(text + "\n")
