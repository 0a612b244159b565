"""Run the benchmarks behind docs/results.md in order.

    python -m research.benchmarks.suite                        run those without a record of the commit checked out
    python -m research.benchmarks.suite --fast -o runs/fast    run each with few photos and little work, as a check
    python -m research.benchmarks.suite --gpu -o runs/gpu      run on a GPU those that gain from one; no record changes

Each benchmark is a process with a folder of its own for each commit: an interrupted one goes on where it ended, and
nothing that another commit made is used again. Run nothing beside it, because many figures are times. Fast runs measure
nothing, so as many as there are cores run at once.
"""

from __future__ import annotations

import argparse
import csv
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from research.results import RESULTS, read_record

from .tables import ROOT, commit

SHARED = {"FEATURES": "head_start", "VECTORS": "item_distance"}  # whose folder has what others use again
UNFINISHED = 75  # EX_TEMPFAIL: the benchmark stopped at its time limit
FEW = 3  # photos of an item, role and source that a fast run has


class Benchmark(NamedTuple):
    """The name of a benchmark, and its arguments when everything is measured, when little is, and on a GPU.

    OUTPUT is the folder for what it computes, FEATURES that of head_start, VECTORS that of item_distance, BUNDLE a
    pretrained model, GALLERY the photos of grocery as a gallery, and PHOTO and PHOTOS some of them. Without arguments
    for a GPU, it is not run there.
    """

    name: str
    whole: str = "--output OUTPUT"
    fast: str = ""
    gpu: str = ""


INDEXING, ENDPOINT = "BUNDLE --rounds 5 --photos 1000 --large 96", "BUNDLE GALLERY PHOTOS"
BENCHMARKS = (
    Benchmark("step", "", "", "--device cuda"),
    Benchmark("losses", "", "--only smooth_ap", "--device cuda"),
    Benchmark(
        "gallery",
        fast="--output OUTPUT --photos 10000 --milvus 1000",
        gpu="--output OUTPUT --photos 100000 --milvus 2000",
    ),
    Benchmark("milvus", "", "--sizes 3000 --searches 20"),
    Benchmark("indexing", INDEXING, "BUNDLE --rounds 1 --photos 64 --large 4", INDEXING),
    Benchmark("start", "BUNDLE PHOTO", "BUNDLE PHOTO --photos 2000 --starts 1"),
    Benchmark("endpoint", ENDPOINT, f"{ENDPOINT} --rounds 1 --requests 20", ENDPOINT),
    Benchmark("pretrained", "--output VECTORS", "--output VECTORS --repetitions 2"),
    Benchmark("pair", fast="--output OUTPUT --repetitions 2"),
    Benchmark("item_distance", fast="--output OUTPUT --repetitions 2 --compared 1 --demos 0 --symbols 150"),
    Benchmark("promise", "--output VECTORS", "--output VECTORS --worlds 2 --repetitions 1 --grown 1 --labelled 1"),
    Benchmark("promise_vectors", "--output VECTORS", "--output VECTORS --repetitions 1"),
    Benchmark("framing", "", "--repetitions 1 --only covers"),
    Benchmark("operating_point", "--output VECTORS", "--output VECTORS --repetitions 1"),
    Benchmark("sides", fast="--output OUTPUT --repetitions 1"),
    Benchmark("two_photos", fast="--output OUTPUT --repetitions 1"),
    Benchmark("first_hour", "", "--photos 4"),
    Benchmark("verification", "--output VECTORS", "--output VECTORS"),
    Benchmark("head_start", fast="--output OUTPUT --repetitions 1 --only cars"),
    Benchmark("el_nivmf", "--output FEATURES", "--output FEATURES --repetitions 1 --only cars"),
    Benchmark("library_heads", "--output FEATURES", "--output FEATURES --repetitions 1 --only cars"),
    Benchmark("open_set", "--output FEATURES", "--output FEATURES --seeds 1 --only cars"),
    Benchmark("cross_fitting", fast="--output OUTPUT --divisions 1 --only cars"),
    Benchmark("demo", "--output OUTPUT --seeds 6 7 8 9 10", "--output OUTPUT --seeds 6"),
    Benchmark("paper_claims", fast="--output OUTPUT --seeds 1"),
    Benchmark("rotations", fast="--output OUTPUT --seeds 1 --only Smooth-AP"),
    Benchmark("grocery", fast="--output OUTPUT --seeds 1 --epochs 1 --only 'Smooth-AP + TCM'"),
    Benchmark("many_classes", fast="--output OUTPUT --seeds 1 --sets cars --minutes 2"),
)


def unmeasured(results: Path = RESULTS) -> list[str]:
    """Return the names of the benchmarks that have no record of the commit checked out."""
    names, now = [benchmark.name for benchmark in BENCHMARKS], commit()
    return [
        name for name in names if not (results / f"{name}.json").exists() or read_record(name, results).commit != now
    ]


def in_turn(chosen: Sequence[Benchmark], folder: Path, how: str) -> bool:
    """Run benchmarks one after the other; return whether all succeeded."""
    good = [run(each, folder, how) for each in chosen]
    return all(good)


def on_all_cores(chosen: Sequence[Benchmark], folder: Path) -> bool:
    """Make fast runs of benchmarks, one at a time on each core; return whether all succeeded."""
    few_photos(data_folder(), folder / "data")
    os.environ["OMP_NUM_THREADS"] = "1"
    chains: dict[str, list[Benchmark]] = {}
    for each in chosen:  # those of a chain use what the first one computes
        shared = [SHARED.get(word, word) for word in shlex.split(each.fast) if word in (*SHARED, "BUNDLE")]
        chains.setdefault(shared[0] if shared else each.name, []).append(each)
    with ThreadPoolExecutor(os.cpu_count()) as lanes:
        good = list(lanes.map(lambda chain: in_turn(chain, folder, "fast"), chains.values()))
    return all(good)


def data_folder() -> Path:
    """Return the folder of the photos, weights and vectors."""
    return Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")).resolve()


def run(benchmark: Benchmark, folder: Path, how: str) -> bool:
    """Run a benchmark ("whole", "fast" or "gpu") and tell how long it took; return whether it succeeded."""
    output = folder / commit() / benchmark.name
    output.mkdir(parents=True, exist_ok=True)
    words = shlex.split(getattr(benchmark, how))
    data = data_folder()
    needed = dict(inputs(folder, data, "cuda" if how == "gpu" else "cpu")) if "BUNDLE" in words else {}
    if how == "fast":
        data = folder / "data"
    folders = {**SHARED, "OUTPUT": benchmark.name}
    needed |= {word: [str(output.with_name(name))] for word, name in folders.items()}
    command = [sys.executable, "-m", f"research.benchmarks.{benchmark.name}"]
    for word in words:
        command += needed.get(word, [word])
    if how != "whole":
        command += ["--results", str(output / "record.json")]
    print(f"{benchmark.name}: {shlex.join(command[1:])}", flush=True)
    begun = time.monotonic()
    with (output / "log.txt").open("a") as log:
        environment = os.environ | {"RETRIEVAL_TEST_DATA": str(data)}
        done = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=environment, check=False)
    code = done.returncode
    good = code == 0 or (how == "fast" and code == UNFINISHED)
    told = "done" if good else f"FAILED with exit status {code}, see {output / 'log.txt'}"
    print(f"{benchmark.name}: {told}, {(time.monotonic() - begun) / 60:.1f} minutes", flush=True)
    return good


def few_photos(data: Path, folder: Path) -> None:
    """Fill a folder like `data` whose catalogues list few photos of each item; everything else is linked."""
    for place in (*data.glob("*"), *data.glob("data/*/*")):
        link = folder / place.relative_to(data)
        link.parent.mkdir(parents=True, exist_ok=True)
        if place.suffix == ".csv":
            with place.open(newline="") as file:
                rows, listed = list(csv.DictReader(file)), Counter[tuple[str | None, ...]]()
            with link.open("w", newline="") as file:
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                for row in rows:
                    of = row.get("item_id", row.get("label")), row.get("role"), row.get("source")
                    listed[of] += 1
                    if listed[of] <= FEW:
                        writer.writerow(row)
        elif place != data / "data" and not link.exists():
            link.symlink_to(place)


def inputs(folder: Path, data: Path, provider: str) -> Mapping[str, list[str]]:
    """Return what stands for BUNDLE, GALLERY, PHOTO and PHOTOS; make the bundle and the gallery if they are missing."""
    data = data / "data" / "grocery"
    bundle, gallery = folder / "bundle", folder / "gallery"
    command = [sys.executable, "-m", "retrieval"]
    for missing, words in (
        (bundle, ["export", "--pretrained", "efficientnet-lite0", "--provider", provider, "-o", str(bundle)]),
        (gallery, ["index", str(bundle), str(data / "images"), "-o", str(gallery)]),
    ):
        if not missing.exists():
            subprocess.run([*command, *words], cwd=ROOT, check=True)
    photos = sorted(str(path) for path in (data / "images" / "Banana").glob("*.jpg"))
    return {"BUNDLE": [str(bundle)], "GALLERY": [str(gallery)], "PHOTO": photos[:1], "PHOTOS": photos}


def main() -> None:
    """Run what is asked for; the exit status is 1 if a benchmark failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="Run only these, with or without a record of this commit."
    )
    parser.add_argument("--fast", action="store_true", help="Little work, and no record is changed.")
    parser.add_argument("--gpu", action="store_true", help="On a GPU, those that gain from it; no record is changed.")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/bench"), help="Folder for what is computed.")
    arguments = parser.parse_args()
    how = "gpu" if arguments.gpu else "fast" if arguments.fast else "whole"
    able = [each.name for each in BENCHMARKS if each.gpu]
    chosen = arguments.names or {"gpu": able, "fast": [each.name for each in BENCHMARKS], "whole": unmeasured()}[how]
    benchmarks, folder = [each for each in BENCHMARKS if each.name in chosen], arguments.output.resolve()
    good = on_all_cores(benchmarks, folder) if arguments.fast else in_turn(benchmarks, folder, how)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
