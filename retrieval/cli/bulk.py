"""Options and output of `retrieval search` with many photos."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from index.location import is_address
from retrieval.errors import InvalidParameter
from retrieval.files import check_place, write_file

from .lines import show_lines
from .options import options_as

if TYPE_CHECKING:
    from retrieval.bulk.outcome import Outcome
    from retrieval.bulk.search import BulkSettings
    from retrieval.catalogue.photos import Photo
    from retrieval.retriever import Retriever

Folder = click.Path(path_type=Path)


@dataclass(frozen=True)
class Bulk:
    """Options of a search with many photos."""

    output: Path | None
    truth: str | None
    report: Path | None
    threads: int | None
    batch_size: int

    def is_asked(self, places: Sequence[Path | str]) -> bool:
        """Return whether to search with many photos rather than one."""
        from retrieval.bulk.queries import is_bulk

        return bool(self.output or self.truth or self.report) or any(map(is_bulk, places))

    def settings(self, *, top_k: int, where: str | None, review: float, explain: bool) -> BulkSettings:
        """Return the settings of the search; raise InvalidParameter if an option is invalid."""
        from retrieval.arguments import check_arguments
        from retrieval.bulk.search import BulkSettings

        check_arguments((), top_k=top_k, where=where, review=review)
        if self.report is not None and self.truth is None:
            raise InvalidParameter("--report", "be used with --truth", str(self.report))
        return BulkSettings(top_k, where, review, explain, self.truth, self.batch_size, self.threads)


OPTIONS = (
    click.option(
        "-o",
        "--output",
        type=Folder,
        help="Search with each photo, and write the answers to this .jsonl or .parquet file. To continue a search that "
        "was stopped, run it again.",
    ),
    click.option(
        "--truth",
        metavar="COLUMN",
        help="Measure the error rates: column with the item that each photo shows (item_id for a folder with one "
        "sub-folder per item). An item that is empty or not in the gallery is unknown.",
    ),
    click.option("--report", type=Folder, help="HTML file for the error rates and the worst answers (with --truth)."),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        default=os.cpu_count(),
        show_default="all cores",
        help="Number of threads that embed photos.",
    ),
    click.option(
        "--batch-size", type=click.IntRange(1, 64), default=16, show_default=True, help="Number of photos per batch."
    ),
)


bulk_options = options_as("bulk", Bulk, OPTIONS)  # decorates a command that searches with many photos


def search_many(
    bundle: Path,
    gallery: Path | str,
    places: Sequence[Path | str],
    settings: BulkSettings,
    *,
    output: Path | None,
    report: Path | None,
    as_json: bool,
) -> None:
    """Search with each photo of the given places, and write the answers to a file or print them as JSON lines."""
    from retrieval.bulk.answers_file import check_output, open_answers
    from retrieval.bulk.outcome import Outcome
    from retrieval.bulk.queries import read_queries
    from retrieval.retriever import Retriever

    for place in filter(None, (output, report)):
        check_place(place)
    if output is not None:
        check_output(output)
    photos = read_queries(places, truth=settings.truth, lines=sys.stdin)
    outcome = Outcome()
    with Retriever.open(bundle, gallery) as retriever:
        if output is None:
            for lines in _answers(retriever, photos, settings, answered=0):
                outcome.add(lines)
                for line in lines:
                    click.echo(json.dumps(line, ensure_ascii=False))
        else:
            options = _options(retriever, gallery, places, settings)
            with open_answers(output, options) as answers:
                left = [photo for photo in photos if photo.photo_id not in answers.done]
                for lines in _answers(retriever, left, settings, answered=len(photos) - len(left)):
                    answers.append(lines)
                outcome.add(answers.lines())
        show_outcome(outcome, retriever, output, as_json=as_json)
        if report is not None:
            write_report(report, outcome, photos, retriever)
    if outcome.refused and not outcome.answered:
        click.echo("Nothing was answered: every photo was refused.", err=True)
        sys.exit(1)


def _options(
    retriever: Retriever, gallery: Path | str, places: Sequence[Path | str], settings: BulkSettings
) -> dict[str, Any]:
    """Return the options that determine the answers of a file."""
    return {
        "bundle_id": retriever.bundle.bundle_id,
        "gallery": str(gallery) if is_address(gallery) else str(Path(gallery).resolve()),
        "images": [str(place) for place in places],
        **{name: getattr(settings, name) for name in ("top_k", "where", "review", "explain", "truth")},
    }


def _answers(
    retriever: Retriever, photos: Sequence[Photo], settings: BulkSettings, *, answered: int
) -> Iterator[list[dict[str, Any]]]:
    """Yield batches of answers with a progress bar."""
    from tqdm import tqdm

    from retrieval.bulk.search import answer_photos

    with tqdm(total=answered + len(photos), initial=answered, desc="searching", unit="photo") as bar:
        for lines in answer_photos(retriever, photos, settings):
            yield lines
            bar.update(len(lines))


def show_outcome(outcome: Outcome, retriever: Retriever, output: Path | None, *, as_json: bool) -> None:
    """Print the outcome, on standard error if the answers went to standard output."""
    if as_json and output is not None:
        click.echo(json.dumps(outcome.to_dict(), indent=2))
        return
    show_lines("refused", [f"{photo_id}: {reason}" for photo_id, reason in outcome.refused], err=output is None)
    told = [f"{outcome.summary()}." if output is None else f"Wrote {output}: {outcome.summary()}."]
    if len(outcome.versions) > 1:
        counts = ", ".join(f"{count:,} of version {version}" for version, count in sorted(outcome.versions.items()))
        told.append(f"Note: the gallery changed during the search; the answers are {counts}.")
    if outcome.rates is not None:
        told += outcome.rates.lines(_target(retriever))
    for line in told:
        click.echo(line, err=output is None)


def write_report(path: Path, outcome: Outcome, photos: Sequence[Photo], retriever: Retriever) -> None:
    """Write the page with the error rates and the worst answers."""
    from retrieval.bulk.page import answers_page

    page = answers_page(
        outcome, photos, retriever.gallery, target_fpir=_target(retriever), verifier=retriever.bundle.verifier
    )
    write_file(path, page)
    click.echo(f"Wrote {path}.", err=True)


def _target(retriever: Retriever) -> float | None:
    return retriever.point.target_fpir if retriever.point.decides else None
