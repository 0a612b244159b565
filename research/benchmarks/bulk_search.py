"""Throughput of a search with many photos, compared with indexing the same photos.

    python -m research.benchmarks.bulk_search BUNDLE

Indexing and searching alternate. The searched gallery contains the photos; the answers are written as JSON lines.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

from retrieval.bulk.answers_file import open_answers
from retrieval.bulk.search import BulkSettings, answer_photos
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.indexing.pipeline import index_catalogue
from retrieval.retriever import Retriever

from .indexing import BATCH, Spent, index, measured
from .tables import Recorder, parser_of


def main() -> None:
    """Index and search in turns, and print a table."""
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--photos", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # as in `retrieval`, before Faiss is loaded
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    photos = read_catalogue(data / "data/grocery/grocery.csv")[: arguments.photos]
    bundle = Bundle.open(arguments.bundle)
    indexed: list[tuple[float, float]] = []
    searched: list[tuple[float, float]] = []
    count, threads = len(photos), arguments.threads
    with tempfile.TemporaryDirectory() as place:
        gallery = Path(place) / "gallery"
        index_catalogue(bundle, photos, gallery, threads=arguments.threads, batch_size=BATCH, progress=False)
        with Retriever.open(arguments.bundle, gallery) as retriever:
            for turn in range(arguments.rounds):
                answers = Path(place) / f"{turn}.jsonl"

                def search(path: Path = answers) -> Spent:
                    write_answers(retriever, photos, threads, path)
                    return Spent(0.0, 0.0)

                indexed.append(measured(count, lambda: index(bundle, photos, Path(place), threads, name="again"))[:2])
                searched.append(measured(count, search)[:2])
    ratios = [sorted(s[i] / n[i] for s, n in zip(searched, indexed, strict=True)) for i in (0, 1)]
    with Recorder("bulk_search", arguments) as record:
        record.table("bulk search", ("what", "photos per second (wall clock)", "photos per CPU second"))
        for name, rounds in (("indexing them", indexed), ("searching with many photos, the same cores", searched)):
            record.add(name, *(f"{statistics.median(values):.0f}" for values in zip(*rounds, strict=True)))
        cells = (f"{statistics.median(values):.3f} ({values[0]:.3f} to {values[-1]:.3f})" for values in ratios)
        record.add(f"ratio, median of {arguments.rounds} pairs (least to most)", *cells)


def write_answers(retriever: Retriever, photos: list[Photo], threads: int, path: Path) -> None:
    """Search with photos, and write the answers to a file."""
    with open_answers(path, {}) as answers:
        for lines in answer_photos(retriever, photos, BulkSettings(batch_size=BATCH, threads=threads)):
            answers.append(lines)


if __name__ == "__main__":
    main()
