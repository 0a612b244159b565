"""Command `retrieval search`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import click

from retrieval.bundle.operating_point import EXTRAPOLATED
from retrieval.errors import InvalidParameter
from retrieval.result import LOW_CERTAINTY, RANKED, REVIEW_P, Match, SearchResult, p_value_words

from .bulk import Bulk, bulk_options, search_many
from .options import CataloguePlace, GroupedCommand, Place
from .regions import RegionOptions, region_options, search_parts, show_regions

Folder = click.Path(path_type=Path)


class SearchCommand(GroupedCommand):
    """`retrieval search`, with its options in groups."""

    option_groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "Query and answer": ["combine", "bbox", "top_k", "where", "review", "explain"],
        "Several items in one photo": ["regions", "scale", "max_windows", "detector", "min_score"],
        "Many photos": ["output", "truth", "report", "threads", "batch_size"],
        "Output": ["as_json"],
    }


@click.command(cls=SearchCommand)
@click.argument("bundle", type=Folder)
@click.argument("gallery", type=Place())
@click.argument("images", metavar="IMAGE...", type=CataloguePlace(), nargs=-1, required=True)
@click.option("--combine", is_flag=True, help="Combine 2 to 8 photos of one item into one query.")
@click.option("--top-k", type=int, default=10, show_default=True, help="Maximum number of items.")
@click.option("--where", help="Filter over metadata, such as \"brand = 'x' and price < 10\".")
@click.option(
    "--review",
    type=float,
    default=REVIEW_P,
    show_default=True,
    help="Largest p-value of the items beyond the threshold that are listed for review; 0 lists none.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Also print how many details agree with the nearest items; with --json, add the explanation.",
)
@region_options(boxes=True)
@bulk_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; with --output, the counts and rates.")
def search(  # noqa: PLR0913, PLR0917, one an option
    bundle: Path,
    gallery: Path | str,
    images: tuple[Path | str, ...],
    combine: bool,
    top_k: int,
    where: str | None,
    review: float,
    explain: bool,
    regions: RegionOptions,
    bulk: Bulk,
    as_json: bool,
) -> None:
    """Search for the catalogue item that a photo shows.

    With --combine, several photos of one item form one query. With --regions, all items in a photo are found.

    To search with each of many photos, pass folders, tables (CSV, parquet, JSON lines), tar shards or addresses, or -
    for paths or JSON objects on the standard input. The answers are printed as JSON lines, or written to --output. A
    photo that cannot be used gets a line with the reason.

    If the threshold was set in this gallery, each item is listed with its p-value in words: how often an unknown item
    comes as close. Items for review lie beyond the threshold; they are not matches.

    \b
    Example:
      retrieval search bundles/shop galleries/shop query.jpg --explain
      retrieval search bundles/shop galleries/shop front.jpg back.jpg --combine
      retrieval search bundles/shop galleries/shop shelf.jpg --regions auto --json
      retrieval search bundles/shop galleries/shop photos/ -o answers.jsonl
      retrieval search bundles/shop galleries/shop queries.csv --truth item_id --report worst.html -o answers.parquet
    """
    from retrieval.retriever import Retriever

    if bulk.is_asked(images):
        rule = "be left out with folders, tables, addresses, --output, --truth and --report"
        if combine or regions.asked:
            raise InvalidParameter("--combine" if combine else "--regions and --bbox", rule, combine or regions.asked)
        settings = bulk.settings(top_k=top_k, where=where, review=review, explain=explain)
        search_many(bundle, gallery, images, settings, output=bulk.output, report=bulk.report, as_json=as_json)
        return
    if len(images) > 1 and not combine:
        remedy = "Pass --combine if all show the same item, or --output FILE to search with each"
        raise InvalidParameter("IMAGE", "be one photo", len(images), remedy=remedy)
    regions.check_alone(combine=combine, explain=explain)
    with Retriever.open(bundle, gallery, detector=regions.detector) as retriever:
        if regions.several:
            found = search_parts(retriever, images[0], regions, top_k=top_k, where=where, review=review)
            show_regions(found, as_json=as_json)
            return
        if combine:
            result = retriever.search_photos(images, top_k=top_k, where=where, review=review, explain=explain)
        else:
            (bbox,) = regions.bboxes() or (None,)
            result = retriever.search(images[0], bbox=bbox, top_k=top_k, where=where, review=review, explain=explain)
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
    else:
        show(result, filtered=where is not None)


def show(result: SearchResult, *, filtered: bool) -> None:
    """Print a result, and what its threshold does not cover."""
    for line in lines(result, filtered=filtered):
        click.echo(line)
    if result.threshold_status == EXTRAPOLATED:
        click.echo(
            f"Note: the threshold is for queries of {result.threshold_photos} photo"
            f"{'s' if result.threshold_photos > 1 else ''}; how often {result.photos} photos of an unknown item match "
            "was not measured."
        )


def lines(result: SearchResult, *, filtered: bool) -> Iterator[str]:
    """Yield a result as lines of text."""
    for rank, match in enumerate(result.matches or result.ranked, 1):
        yield f"{rank:3d}  {_line(match)}"
    if result.matches:
        yield f"{len(result.matches)} items within the threshold {result.threshold:.4f}."
    elif result.ranked:
        yield "These are the nearest items. There is no threshold to decide whether any of them is right."
    else:
        outcome = "nothing to rank" if result.decision == RANKED else "no match"
        yield f"{outcome}: {_reason(result, filtered=filtered)}"
    if result.review:
        yield "For review, beyond the threshold:"
    for match in result.review:
        yield f"     {_line(match)}"
    for photo in (result.explanation or {}).get("verified") or ():
        yield f"{photo['inliers']} details agree with {photo['photo_id']} ({photo['item_id']})."
    if result.p_value_without_filter and result.nearest is not None:
        yield "How often an unknown item comes as close was measured without the filter."


def _reason(result: SearchResult, *, filtered: bool) -> str:
    nearest = result.nearest
    if nearest is None:
        return "no photo passes the filter" if filtered else "the gallery is empty"
    if result.reason == LOW_CERTAINTY:
        return f"the photo is too ambiguous (certainty {result.certainty:.3g})"
    return (
        f"the nearest item, {nearest.item_id}, is {nearest.distance:.4f} away{_words(nearest)}; "
        f"the threshold is {result.threshold:.4f}"
    )


def _line(match: Match) -> str:
    return f"{match.distance:.4f}  {match.item_id}  ({match.photo_id}){_words(match)}"


def _words(match: Match) -> str:
    return "" if match.p_value is None else f", {p_value_words(match.p_value)}"
