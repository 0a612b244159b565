"""Command `retrieval search`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from index.groups import GROUP
from retrieval.catalogue.ids import describe_missing
from retrieval.errors import InvalidParameter, counted
from retrieval.files import naming, write_file
from retrieval.search.result import (
    BLOCK,
    DAMAGED_PHOTO,
    PERHAPS,
    RANKED,
    REGION,
    SHARED_PHOTO,
    TWINS,
    Match,
    SearchResult,
    p_value_words,
)

from .lines import show_lines
from .options import BUNDLE, CATALOGUE, GALLERY, NEW_FILE, GroupedCommand, options_as

if TYPE_CHECKING:
    from retrieval.retriever import Retriever
    from retrieval.search.bulk import Outcome

File = click.Path(path_type=Path)


@dataclass(frozen=True)
class SearchOptions:
    """Options of `retrieval search`."""

    text: str | None
    combine: bool
    bbox: tuple[str, ...]
    boxes: str | None
    top_k: int
    where: str | None
    review: float | None
    explain: bool
    output: Path | None
    report: Path | None
    truth: str | None
    as_json: bool


OPTIONS = (
    click.option("--text", help='Words to search with instead of a photo, such as "red kettle with a bird".'),
    click.option("--combine", is_flag=True, help="Search with 2 to 4 photos of one item as one query."),
    click.option("--top-k", type=int, default=10, show_default=True, help="Maximum number of items."),
    click.option("--where", help="Filter over metadata, such as \"brand = 'x' and price < 10\"."),
    click.option(
        "--review",
        type=float,
        help="Largest p-value of the items beyond the threshold that are listed for review; with 0, at most an item to "
        "confirm is listed.  [default: where a question is worth it]",
    ),
    click.option(
        "--explain",
        is_flag=True,
        help="Also print how many details agree with the nearest items; with --json, add the explanation.",
    ),
    click.option(
        "--bbox",
        multiple=True,
        metavar="L,U,R,B",
        help="Part of the photo to search with, in pixels: left,upper,right,lower. Repeat it for several parts.",
    ),
    click.option(
        "--boxes",
        type=click.Choice(["windows"]),
        help="Search with windows of the photo: its halves, its quarters and its centre.",
    ),
    click.option(
        "-o", "--output", type=NEW_FILE, help="Search with each photo, and write the answers to a .jsonl file."
    ),
    click.option(
        "--report",
        type=NEW_FILE,
        help="HTML file for the photos and their answers; it shows the first 500.",
    ),
    click.option(
        "--truth",
        metavar="COLUMN",
        help="Measure the error rates: column with the item that each photo shows (item_id for a folder with one "
        "sub-folder per item). An empty item is unknown; ids that the gallery lacks are listed, and left out.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; with --output, counts and rates."),
)


class SearchCommand(GroupedCommand):
    """`retrieval search`, with its options in groups."""

    option_groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "Query and answer": ["text", "combine", "top_k", "where", "review", "explain"],
        "Parts of a photo": ["bbox", "boxes"],
        "Many photos": ["output", "report", "truth"],
        "Output": ["as_json"],
    }


@click.command(cls=SearchCommand)
@click.argument("bundle", type=BUNDLE)
@click.argument("gallery", type=GALLERY)
@click.argument("images", metavar="[IMAGE...]", type=CATALOGUE, nargs=-1)
@options_as("options", SearchOptions, OPTIONS)
def search(bundle: Path, gallery: Path | str, images: tuple[Path | str, ...], options: SearchOptions) -> None:
    """Search for the catalogue item that a photo shows.

    With --combine, several photos of one item form one query. With several --bbox or with --boxes, each part of the
    photo is searched. Several --bbox share the target FPIR; --combine and --boxes rank the items, unless the gallery
    has a threshold for queries of that kind.

    To search with each of many photos, pass folders, tables (CSV, parquet, JSON lines), tar shards or addresses, or -
    for paths or JSON objects on the standard input. The answers are printed as JSON lines, or written to --output. A
    photo that cannot be used gets a line with the reason.

    If the threshold was set in this gallery, each item is listed with its p-value in words: how often an unknown item
    comes as close. Items for review lie beyond the threshold; they are not matches.

    \b
    Example:
      retrieval search bundles/shop galleries/shop query.jpg --explain
      retrieval search bundles/shop galleries/shop --text "red kettle with a bird"
      retrieval search bundles/shop galleries/shop front.jpg back.jpg --combine
      retrieval search bundles/shop galleries/shop shelf.jpg --boxes windows --json
      retrieval search bundles/shop galleries/shop photos/ --report answers.html
      retrieval search bundles/shop galleries/shop photos/ -o answers.jsonl
      retrieval search bundles/shop galleries/shop queries.csv --truth item_id -o answers.jsonl
    """
    from retrieval.retriever import Retriever
    from retrieval.search.bulk import is_bulk

    parts = options.combine or bool(options.bbox) or options.boxes is not None
    words = options.text is not None
    many = options.output or options.report or options.truth
    if words == bool(images) or (words and (parts or options.explain or many)):
        remedy = "Words go with --top-k, --where, --review and --json alone"
        raise InvalidParameter("IMAGE", "be given, or --text in its place", list(map(str, images)), remedy=remedy)
    if many or any(map(is_bulk, images)):
        if parts:
            rule = "be left out with folders, tables, addresses, --output, --report and --truth"
            raise InvalidParameter("--combine, --bbox and --boxes", rule, list(map(str, images)))
        _search_each(bundle, gallery, images, options)
        return
    if len(images) > 1 and not options.combine:
        remedy = "Pass --combine if all show the same item, or --output FILE to search with each"
        raise InvalidParameter("IMAGE", "be one photo", len(images), remedy=remedy)
    if sum([options.combine, bool(options.bbox), options.boxes is not None]) > 1:
        raise InvalidParameter("--combine, --bbox and --boxes", "be given one at a time", options.boxes or options.bbox)
    with Retriever.open(bundle, gallery) as retriever:
        results, one = _results(retriever, images, options)
    if options.as_json:
        values = [result.to_dict() for result in results]
        click.echo(json.dumps(values[0] if one else values, indent=2))
        return
    for result in results:
        box = "" if result.box is None else ", ".join(f"{side:g}" for side in result.box)
        if box and not one:
            click.echo(f"Box {box}:")
        for line in lines(result, filtered=options.where is not None):
            click.echo(line)
        if result.look in {BLOCK, REGION}:
            click.echo(f"A second look decided, at a part of the photo (its {result.look}): {box}.")


def _results(
    retriever: Retriever, images: Sequence[Path | str], options: SearchOptions
) -> tuple[list[SearchResult], bool]:
    """Return the answers to one photo, or to several of one item, and whether there can only be one."""
    from retrieval.search.boxes import parse_bbox

    top_k, where, review = options.top_k, options.where, options.review
    boxes = options.boxes or [parse_bbox(text) for text in options.bbox]
    if options.text is not None:
        return [retriever.search_text(options.text, top_k=top_k, where=where, review=review)], True
    if options.combine:
        return [retriever.search_photos(images, top_k=top_k, where=where)], True
    if isinstance(boxes, str) or len(boxes) > 1:
        return retriever.search_boxes(images[0], boxes, top_k=top_k, where=where, review=review), False
    bbox = boxes[0] if boxes else None
    explain = options.explain
    return [retriever.search(images[0], bbox=bbox, top_k=top_k, where=where, review=review, explain=explain)], True


def _search_each(bundle: Path, gallery: Path | str, places: Sequence[Path | str], options: SearchOptions) -> None:
    """Search with each photo of the given places, and write the answers to files or print them as JSON lines."""
    from tqdm import tqdm

    from retrieval.reports.answers import AnswerSheet
    from retrieval.retriever import Retriever
    from retrieval.search.bulk import Outcome, answer_photos, read_queries, require_known_items
    from retrieval.search.looks import Options

    output, truth, outcome = options.output, options.truth, Outcome()
    settings = Options(options.top_k, options.where, options.explain, options.review)
    if output is not None and output.suffix.lower() not in (".jsonl", ".ndjson"):
        raise InvalidParameter("--output", "end in .jsonl", str(output))
    photos = read_queries(places, truth=truth, lines=sys.stdin)
    with Retriever.open(bundle, gallery) as retriever:
        if truth is not None:
            require_known_items(retriever.gallery, places, photos)
        answers = answer_photos(retriever, photos, settings, outcome, truth=truth is not None)
        sheet = None if options.report is None else AnswerSheet(retriever.gallery, photos)
        noted = answers if sheet is None else sheet.noting(answers)
        written = (json.dumps(line, ensure_ascii=False) for line in tqdm(noted, "searching", len(photos), unit="photo"))
        if output is None:
            for line in written:
                if sheet is None:
                    click.echo(line)
        else:
            partial = output.with_name(f"{output.name}.partial")
            with naming(output):
                with partial.open("wb") as file:
                    file.writelines(line.encode(errors="backslashreplace") + b"\n" for line in written)
                partial.replace(output)
        if sheet is not None and options.report is not None:
            write_file(options.report, sheet.html())
        _show_outcome(outcome, retriever, output, as_json=options.as_json)
        if sheet is not None and not options.as_json:
            click.echo(f"Wrote {options.report}: open it in a browser.", err=output is None)
    if outcome.refused and not outcome.decisions:
        click.echo("Nothing was answered: every photo was refused.", err=True)
        sys.exit(1)


def _show_outcome(outcome: Outcome, retriever: Retriever, output: Path | None, *, as_json: bool) -> None:
    """Print the outcome, on standard error if the answers went to standard output."""
    if as_json and output is not None:
        click.echo(json.dumps(outcome.to_dict(), indent=2))
        return
    err, point = output is None, retriever.point
    refusals = [f"{photo_id}: {reason}" for photo_id, reason in outcome.refused]
    show_lines("photo refused", refusals, err=err)
    counts = [f"{count:,} {decision.replace('_', ' ')}" for decision, count in sorted(outcome.decisions.items())]
    told = f"{counted(outcome.decisions.total(), 'photo')} answered: {', '.join(counts) or 'none'}."
    click.echo(told if output is None else f"Wrote {output}: {told}", err=err)
    for count, what in (
        (outcome.copies, "of the gallery, where a photo finds itself"),
        (outcome.variants, "of new items of a group that the gallery has"),
    ):
        if count:
            click.echo(f"Left out of the rates: {counted(count, 'photo')} {what}.", err=err)
    if outcome.missing:
        none = f"none of the gallery's ids ({counted(outcome.missing.total(), 'photo')}, left out of the rates)"
        near = describe_missing(outcome.missing, {item for _, item, _ in retriever.gallery.values(GROUP)})
        show_lines(f"item id of the labels is {none}", near, many=f"item ids of the labels are {none}", err=err)
    rates = outcome.rates
    for line in () if rates is None else rates.lines(point.target_fpir if point.decides else None):
        click.echo(line, err=err)


def lines(result: SearchResult, *, filtered: bool) -> Iterator[str]:
    """Yield a result as lines of text."""
    for rank, match in enumerate(result.matches or result.ranked, 1):
        yield f"{rank:3d}  {_line(match)}"
    if result.matches:
        yield f"{counted(len(result.matches), 'item')} within the threshold {result.threshold:.4f}."
    elif result.ranked:
        yield "These are the nearest items. There is no threshold to decide whether any of them is right."
    elif result.decision == PERHAPS:
        shown = result.review[: {TWINS: 2, SHARED_PHOTO: len(result.review)}.get(result.reason, 1)]
        named = " or ".join(match.item_id for match in shown)
        yield f"perhaps {named}, please confirm: {_reason(result, filtered=filtered)}"
    else:
        outcome = "nothing to rank" if result.decision == RANKED else "no match"
        yield f"{outcome}: {_reason(result, filtered=filtered)}"
    if result.review:
        yield (
            "For review:"
            if result.reason in (TWINS, SHARED_PHOTO, DAMAGED_PHOTO)
            else "For review, beyond the threshold:"
        )
    for match in result.review:
        yield f"     {_line(match)}"
    for item in () if result.explanation is None else result.explanation.items:
        mean = "" if item.mean_distance is None else f", {item.mean_distance:.4f} from the mean of its photos"
        details = f", {counted(item.inliers, 'detail agrees', 'details agree')}" if item.inliers else ""
        yield f"{item.item_id}: {item.photo_distance:.4f} from {item.photo_id}{mean}{details}."
    if result.p_value_without_filter and result.nearest is not None:
        yield "How often an unknown item comes as close was measured without the filter."


def _reason(result: SearchResult, *, filtered: bool) -> str:
    nearest = result.nearest
    if nearest is None:
        return "no photo passes the filter" if filtered else "the gallery is empty"
    if result.reason == TWINS:
        return "the catalogue may have this item under two ids"
    if result.reason == SHARED_PHOTO:
        return "these items have the same photo, so it cannot tell them apart"
    if result.reason == DAMAGED_PHOTO:
        return "the photo is damaged, blocks of its JPEG are lost or noisy; search with a whole file if there is one"
    what = "it is" if result.decision == PERHAPS else f"the nearest item, {nearest.item_id}, is"
    return f"{what} {nearest.distance:.4f} away{_words(nearest)}; the threshold is {result.threshold:.4f}"


def _line(match: Match) -> str:
    return f"{match.distance:.4f}  {match.item_id}  ({match.photo_id}){_words(match)}"


def _words(match: Match) -> str:
    return "" if match.p_value is None else f", {p_value_words(match.p_value)}"
