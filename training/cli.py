"""The commands `retrieval train`, `losses`, `evaluate` and `explain`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from retrieval.catalogue.remote import is_url
from retrieval.cli.options import (
    CATALOGUE,
    NEW_FILE,
    NEW_FOLDER,
    RUN,
    GroupedCommand,
    settings_groups,
    settings_options,
)
from retrieval.errors import DataError, InvalidParameter, command
from retrieval.files import check_place, write_file

from .config import AUTO, DATA, DEFAULT_LOSS, GROUPS, OUTPUT, Settings

if TYPE_CHECKING:
    from training.loop.run import Run


class TrainCommand(GroupedCommand):
    """`retrieval train`, with its options in groups; --loss.NAME VALUE is short for --set loss.NAME=VALUE."""

    option_groups: ClassVar[Mapping[str, Sequence[str]]] = settings_groups(
        Settings, GROUPS, {DATA: ["config", "start", "words"], OUTPUT: ["output", "resume"]}
    )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Write the arguments of losses as values of --set, and parse the options as usual."""
        rest: list[str] = []
        words = iter(args)
        for word in words:
            if word.startswith(("--loss.", "--regularizer.")):
                rest += ["--set", word[2:] if "=" in word else f"{word[2:]}={next(words, '')}"]
            else:
                rest.append(word)
        return super().parse_args(ctx, rest)


@click.command(cls=TrainCommand)
@click.argument("catalogue", type=CATALOGUE, required=False)
@click.option("-o", "--output", required=True, type=NEW_FOLDER, help="Directory to write the run to.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="TOML file with settings. Options on the command line override it.",
)
@click.option(
    "--from",
    "start",
    metavar="RUN",
    type=RUN,
    help="Begin with the weights and settings of this run, and train on its photos together with those of CATALOGUE.",
)
@click.option(
    "--set",
    "words",
    metavar="NAME=VALUE",
    multiple=True,
    help="Set a setting, or an argument of the loss or the regularizer (loss.temperature=0.05).",
)
@click.option("--resume", is_flag=True, help="Continue an interrupted run with the settings it was started with.")
@settings_options(Settings)
def train(
    catalogue: Path | str | None,
    output: Path,
    config: Path | None,
    start: Path | None,
    words: Sequence[str],
    resume: bool,
    **options: Any,
) -> None:
    """Train a model on labelled photos.

    CATALOGUE is a folder in which each folder with photos is an item, or a CSV or parquet file with the columns
    `path` and `item_id` (or `label`). `retrieval data check` shows what training will find in it. Pass arguments of
    the loss and of the regularizer as --loss.NAME VALUE and --regularizer.NAME VALUE.

    With --from, CATALOGUE has new photos, such as those of `retrieval feedback export`; photos of unknown items are
    left out. Parts are decided by a hash of the item id, so held-out items stay held out, and what the earlier run was
    fitted on is never held out.

    \b
    Example:
      retrieval train photos.csv --backbone efficientnet-lite0 -o runs/shop \\
          --loss smooth_ap --loss.temperature 0.01 --regularizer tcm
      retrieval train reviewed.csv --from runs/shop --epochs 2 -o runs/shop-2
    """
    from training.loop.train import train as run_training

    if resume:
        if catalogue or config or start or words or any(value is not None for value in options.values()):
            click.echo("The run goes on with the settings that it was started with, whatever else is given.", err=True)
        run = run_training(open_run(output).settings, output, resume=True)
    else:
        earlier = None if start is None else open_run(start)
        base = {} if earlier is None else earlier.settings.to_dict()
        given = {name: value for name, value in options.items() if value is not None} | parse_settings(words)
        settings = gather_settings(catalogue=catalogue, config=config, given=given, base=base)
        run = run_training(settings, output, start=earlier)
        if earlier is not None:
            click.echo(describe_start(run))
    click.echo(_describe_best(output, run))
    if run.folds or (run.splits.calibration and len(run.splits.test) > 1):  # a `partition` column may have none
        click.echo(f"Next: {command('evaluate', output)}")


@click.command()
@click.argument("names", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def losses(names: Sequence[str], as_json: bool) -> None:
    """List the losses that --loss and --regularizer accept, or only NAMES.

    The cost is that of one step for n photos in the batch, d dimensions, m positives per photo, C items and N samples.

    \b
    Example:
      retrieval losses
      retrieval losses recall_at_k tcm
    """
    from training.losses.registry import describe, render_losses

    rows = describe(names)
    click.echo(json.dumps(rows, indent=2) if as_json else render_losses(rows, summaries=bool(names)))
    if not as_json:
        name = next((name for name in names if name != "tcm"), DEFAULT_LOSS)
        click.echo(f"\nNext: {command('train', 'CATALOGUE', '--loss', name, '--regularizer', 'tcm', '-o', 'RUN')}")


@click.command()
@click.argument("run", type=RUN)
@click.option("--json", "as_json", is_flag=True, help="Print the metrics as JSON.")
@click.option("--target-fpir", type=float, help="FPIR that the threshold is set for.  [default: that of the run]")
def evaluate(run: Path, as_json: bool, target_fpir: float | None) -> None:
    """Compare a run with the model that it started from, in a gallery of fitted and unfitted items.

    New photos of both are searched: the photos of fitted items that were held out of training, and those of the test
    items. The threshold is set on the calibration items alone. The metrics are written to RUN/evaluation.json.

    \b
    Example:
      retrieval evaluate runs/shop --target-fpir 0.01
    """
    from training.evaluation.report import evaluate_run, render

    opened = open_run(run)
    report = evaluate_run(opened, target_fpir=target_fpir)
    click.echo(json.dumps(report, indent=2) if as_json else render(report))
    if not as_json:
        click.echo(f"\nWrote {run / 'evaluation.json'}.")
        _show_export(opened)


@click.command()
@click.argument("run", type=RUN)
@click.option("-o", "--output", type=NEW_FILE, help="File to write the sheet to.  [default: RUN/errors.html]")
@click.option(
    "--worst", type=int, default=8, show_default=True, help="Number of searches to show per kind of error, at most 50."
)
@click.option("--json", "as_json", is_flag=True, help="Print the errors as JSON.")
def explain(run: Path, output: Path | None, worst: int, as_json: bool) -> None:
    """Show the worst errors of a run on its test items, with photos, on one HTML page.

    For each wrong search, the error sheet has the query, the nearest photo of another item, the nearest one of its own
    item and their distances. The threshold is set on the calibration items. A run on all items (`train --all-items`)
    has no test items: a fifth of the items is searched by the fold model that was fitted without them.

    \b
    Example:
      retrieval explain runs/shop
    """
    from training.evaluation.explain import explain_run

    opened = open_run(run)
    target = output or run / "errors.html"
    if target.is_dir() or not target.parent.is_dir():
        raise InvalidParameter("output", "be a file in an existing folder", str(target))
    check_place(target)
    errors = explain_run(opened, worst=worst)
    write_file(target, errors.sheet().html())
    if as_json:
        click.echo(json.dumps(errors.to_dict() | {"page": str(target)}, indent=2))
        return
    click.echo("\n".join(errors.summary()))
    click.echo(f"\nWrote {target}: open it in a browser.")
    _show_export(opened)


def parse_settings(words: Sequence[str]) -> dict[str, Any]:
    """Return the settings of NAME=VALUE words; loss.NAME=VALUE is an argument of the loss."""
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name or not text:
            raise InvalidParameter(
                "options", "be --set NAME=VALUE, --loss.NAME VALUE or --regularizer.NAME VALUE", word
            )
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        part, dot, argument = name.replace("-", "_").partition(".")
        if dot:
            values.setdefault(f"{part}_arguments", {})[argument] = value
        else:
            values[part] = value
    return values


def gather_settings(
    *,
    catalogue: Path | str | None,
    config: Path | None,
    given: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
) -> Settings:
    """Return the settings of a TOML file, overridden by given ones; the others are those of `base`.

    The arguments of a loss are kept only with the same loss.
    """
    values = dict(base or {})
    for layer in (read_toml(config) if config else {}, given):
        for kind in ("loss", "regularizer"):
            if layer.get(kind, values.get(kind)) != values.get(kind):
                values[f"{kind}_arguments"] = {}
        for name, value in layer.items():
            values[name] = {**values.get(name, {}), **value} if name.endswith("_arguments") else value
    if catalogue:
        values["catalogue"] = catalogue if is_url(catalogue) else str(Path(catalogue).resolve())
    if "catalogue" not in values:
        raise InvalidParameter("CATALOGUE", "be given", None, remedy="Name a folder, a CSV or a parquet file")
    values["backbone"] = named_backbone(values.get("backbone", AUTO))
    return Settings.from_dict(values)


def named_backbone(name: str) -> str:
    """Return the name of a backbone; choose one if it is `auto`, and print it with the reason."""
    if name != AUTO:
        return name
    from training.backbones import choose_backbone

    chosen, why = choose_backbone()
    click.echo(f"Backbone: {chosen} ({why}).")
    return chosen


def describe_start(run: Run) -> str:
    """Describe the run that this one continues, and its new items."""
    new = ", ".join(f"{count} for {part}" for part, count in run.warm_start["new_items"].items())
    return f"Continued {run.warm_start['run']} with new items: {new}."


def _describe_best(output: Path, run: Run) -> str:
    """Return sentences about the checkpoint that a run keeps."""
    best, compared = run.progress["best"], run.comparison.get("both", {})
    figures = [
        f"{name} {compared[name]['after']:.3f}, {compared[name]['before']:.3f} before training"
        for name in ("R@1", "TPIR")
        if name in compared
    ]
    result = f" ({'; '.join(figures)})" if figures else ""
    if best["epoch"]:
        return f"Wrote {output} with the checkpoint of epoch {best['epoch']}{result}."
    return (
        f"Wrote {output} with the model before the first epoch{result}: no trained epoch is better. More items, a "
        "lower learning rate or another loss may help."
    )


def _show_export(run: Run) -> None:
    """Print the command that writes a bundle: of the model before training where the run is worse."""
    if run.worse:
        click.echo(f"This run finds less than the model that it started from: {'; '.join(run.worse)}.")
    click.echo(f"Next: {run.export_command}")


def open_run(path: Path) -> Run:
    """Open a run directory."""
    from training.loop.run import Run

    return Run.open(path)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raise DataError if it is missing or invalid."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid TOML: {error}") from error


__all__ = ["evaluate", "explain", "losses", "train"]
