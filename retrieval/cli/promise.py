"""Command `retrieval promise`, with `retrieval promise check`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from retrieval.errors import command, counted
from retrieval.files import write_file

from .lines import show_lines
from .options import NEW_FILE, GroupedCommand, options_as

if TYPE_CHECKING:
    from retrieval.collections import Collection, Columns
    from retrieval.collections.reading import Collected
    from retrieval.promise.promise import Promise

BROKEN = 3  # exit status of `check` for a promise that is broken
FAMILIES = 5  # with most false matches, that are printed


class PromiseGroup(click.Group):
    """`retrieval promise SOURCE`, and `retrieval promise check FILE SOURCE`: the first word chooses."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the name of the command that measures before its arguments."""
        return super().parse_args(ctx, args if args and args[0] in self.commands else ["measure", *args])

    def get_help(self, ctx: click.Context) -> str:
        """Return the help of the command that measures."""
        command = self.commands["measure"]
        return command.get_help(click.Context(command, parent=ctx))


class MeasureCommand(GroupedCommand):
    """`retrieval promise`, with its options in groups."""

    option_groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "Vectors": ["items", "vectors", "groups", "where"],
        "Target": ["target_fpir", "queries"],
        "Output": ["output", "no_means", "report"],
    }

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usage without the name that the group adds."""
        above = "retrieval promise" if ctx.parent is None else ctx.parent.command_path
        formatter.write_usage(above, " ".join(self.collect_usage_pieces(ctx)))


@dataclass(frozen=True)
class SourceOptions:
    """Options that say where vectors and ids lie in a source."""

    items: str | None
    vectors: str | None
    groups: str | None
    where: str | None

    def columns(self) -> Columns:
        """Return them as the names of columns."""
        from retrieval.collections import Columns

        return Columns(self.items, self.vectors, self.groups, self.where)

    def words(self) -> list[str]:
        """Return the options as they were typed."""
        return [word for name, value in vars(self).items() if value is not None for word in (f"--{name}", value)]


SOURCE_OPTIONS = options_as(
    "source_options",
    SourceOptions,
    (
        click.option("--items", metavar="COLUMN", help="Column, field or array of the item ids, or a file of them."),
        click.option("--vectors", metavar="COLUMN", help="Column, field or array of the vectors."),
        click.option(
            "--groups", metavar="COLUMN", help="Column of the items' groups. Items of one group are no rivals."
        ),
        click.option("--where", metavar="CONDITION", help="Measure these rows alone, in the language of the source."),
    ),
)


@dataclass(frozen=True)
class MeasureOptions:
    """Options of `retrieval promise SOURCE`."""

    target_fpir: float
    queries: str | None
    output: Path | None
    no_means: bool
    report: Path | None


MEASURE_OPTIONS = options_as(
    "options",
    MeasureOptions,
    (
        click.option(
            "--target-fpir",
            type=float,
            default=0.05,
            show_default=True,
            help="Share of queries for unknown items that may return an item, by which decide() decides.",
        ),
        click.option(
            "--queries",
            metavar="SOURCE",
            help="Vectors of users' photos with item ids, in the same columns; an empty id for a photo of no item.",
        ),
        click.option(
            "-o",
            "--output",
            type=NEW_FILE,
            help="File to write the promise to, such as shop.promise; decide() reads it.",
        ),
        click.option(
            "--no-means",
            is_flag=True,
            help="Do not write the mean vectors of the items beside it. Then decide() goes by the score alone.",
        ),
        click.option("--report", type=NEW_FILE, help="HTML file to write a report to."),
    ),
)


@click.group(cls=PromiseGroup, options_metavar="")
def promise() -> None:
    """Measure which score of your own vectors to use as a threshold."""


@promise.command(cls=MeasureCommand, name="measure")
@click.argument("source")
@SOURCE_OPTIONS
@MEASURE_OPTIONS
def measure(
    source: str,
    source_options: SourceOptions,
    options: MeasureOptions,
) -> None:
    """Measure which score of your own vectors to use as a threshold, and what it costs.

    SOURCE is a file (.npz, .npy, .parquet, .arrow, a Faiss index) or the address of a table or collection:
    postgresql://host/database#table, qdrant+http://host:6333/collection or milvus+http://host:19530/collection. It is
    only read. Each item is left out in turn and searched for, which shows how close unknown items come.

    \b
    Example:
      retrieval promise faces.npz --target-fpir 0.01 -o faces.promise
      retrieval promise postgresql://localhost/shop#photos --items sku --vectors embedding -o shop.promise
      retrieval promise check faces.promise faces.npz
    """
    with measured(source, source_options.columns(), target_fpir=options.target_fpir, queries=options.queries) as (
        made,
        remarks,
        opened,
    ):
        if options.output is not None:
            made.save(
                options.output, means=not options.no_means
            )  # before anything is printed, since `| head` ends the command
        if options.report is not None:
            from retrieval.reports.promise_report import render_promise_report

            write_file(options.report, render_promise_report(made, remarks))
        show(made, remarks)
        for written in filter(None, (options.output, options.report)):
            click.echo(f"Wrote {written}.")
        if options.output is not None:
            click.echo(f"Decide by it:\n\n{opened.recipe(str(options.output))}\n")
            again = command("promise", "check", options.output, opened.name, *source_options.words())
            click.echo(f"Measure again as it grows: {again}")


@promise.command(name="check")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("source")
@SOURCE_OPTIONS
def check(file: Path, source: str, source_options: SourceOptions) -> None:
    """Measure a promise again, and end with status 3 if it is broken.

    A threshold is broken if more strangers than the target are called somebody, by more than the one-sided 95 % error
    of the measurement.

    \b
    Example:
      retrieval promise check faces.promise faces.npz
    """
    from retrieval.promise.check import checked
    from retrieval.promise.promise import Promise

    before = Promise.load(file)
    columns, metric = source_options.columns(), before.metric.name
    with measured(source, columns, target_fpir=before.target_fpir, metric=metric) as (now, remarks, opened):
        for remark in remarks:
            click.echo(remark)
        results = checked(before, now)
        for result in results:
            click.echo(str(result))
        if any(result.is_broken for result in results):
            words = source_options.words()
            again = command("promise", opened.name, *words, "--target-fpir", f"{before.target_fpir:g}", "-o", file)
            click.echo(f"Set new thresholds: {again}")
            sys.exit(BROKEN)


@contextmanager
def measured(
    source: str, columns: Columns, *, target_fpir: float, queries: str | None = None, metric: str = "cosine"
) -> Iterator[tuple[Promise, list[str], Collection]]:
    """Yield the promise of a source, what is to be known of its rows and its search, and the source itself."""
    from retrieval.collections.open import open_collection
    from retrieval.collections.own_search import OwnSearch
    from retrieval.collections.reading import read
    from retrieval.promise.metric import metric_named
    from retrieval.promise.promise import Promise

    with closing(open_collection(source, columns)) as opened:
        collected = read(opened)
        metric = collected.metric or metric
        search = OwnSearch.of(opened, collected)
        if search is not None:
            search.check_metric(metric_named(metric))
        made = Promise.measure(
            collected.vectors,
            collected.items,
            target_fpir=target_fpir,
            metric=metric,
            groups=collected.groups,
            queries=None if queries is None else labelled(queries, columns),
            photo_ids=collected.ids,
            name=collected.name,
        )
        remarks = [*collected.remarks, *left_out(collected)]
        if search is not None and made.drawn is not None:
            missed = search.missed(made.drawn.photos.vectors(slice(None)))  # type: ignore[arg-type]
            remarks.append(f"Its own search misses {missed:.1%} of nearest photos.")
        yield made, remarks, opened


def labelled(source: str, columns: Columns) -> tuple[Any, Sequence[str]]:
    """Return vectors and item ids of labelled queries."""
    from retrieval.collections.open import open_collection
    from retrieval.collections.reading import read

    with closing(open_collection(source, columns)) as opened:
        collected = read(opened, unlabelled=True)
        return collected.vectors, collected.items


def left_out(collected: Collected) -> Iterator[str]:
    """Yield how many rows were left out."""
    for count, what in ((collected.without_item, "an item"), (collected.without_vector, "a vector")):
        if count:
            yield f"{counted(count, 'row')} without {what} {'was' if count == 1 else 'were'} left out."


def show(made: Promise, remarks: Sequence[str]) -> None:
    """Print what is to be known of the rows, the table, and the families with most false matches."""
    from retrieval.promise.table import families_lines

    for remark in remarks:
        click.echo(remark)
    click.echo(str(made))
    families = families_lines(made, FAMILIES)
    show_lines("family with most false matches", families, many="families with most false matches")
