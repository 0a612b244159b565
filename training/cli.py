"""The commands `retrieval train`, `evaluate` and `export`."""

from __future__ import annotations

import dataclasses
import json
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from index.shell import command
from retrieval.bundle.providers import CPU, FP32, PRECISIONS, PROVIDERS
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.cli.signing_options import read_key, say_signed
from retrieval.cli.target_options import target_options
from retrieval.errors import DataError, InvalidParameter

from .config import Settings

Command = TypeVar("Command", bound=Callable[..., Any])
TYPES: Mapping[str, Any] = {"int": int, "float": float, "str": str, "bool": bool}
NESTED = {"loss_arguments": "--loss.", "regularizer_arguments": "--regularizer."}


def settings_options(command: Command) -> Command:
    """Add an option for every setting, so that help, TOML file and API never differ."""
    for entry in reversed(dataclasses.fields(Settings)):
        if entry.name == "catalogue" or entry.name in NESTED:
            continue
        name = entry.name.replace("_", "-")
        flags = f"--{name}/--no-{name}" if entry.type == "bool" else f"--{name}"
        text = f"{entry.metadata['help']}  [default: {entry.default!r}]"
        command = click.option(flags, entry.name, type=TYPES[str(entry.type)], default=None, help=text)(command)
    return command


def _of_context(flag: str, **options: Any) -> Callable[[Command], Command]:
    """Add an option whose value is found in the `meta` of click's context, under its name."""

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        context.meta[str(parameter.name)] = value

    return click.option(flag, callback=keep, expose_value=False, show_default=True, **options)


class NestedOptions(click.Command):
    """A command that takes --loss.NAME VALUE and --regularizer.NAME VALUE beside its own options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set the nested options aside in `ctx.meta`, and parse the others as ever."""
        rest, nested = [], []
        words = iter(args)
        for word in words:
            if not word.startswith(tuple(NESTED.values())):
                rest.append(word)
                continue
            value = next(words, None) if "=" not in word else None
            nested.append(word if value is None else f"{word}={value}")
        ctx.meta["nested"] = _nested(nested)
        return super().parse_args(ctx, rest)


@click.command(cls=NestedOptions)
@click.argument("catalogue", required=False)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The run's directory.")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with settings; options win over it.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run with its own settings.")
@settings_options
@click.pass_context
def train(
    context: click.Context,
    /,
    catalogue: str | None,
    output: Path,
    config: Path | None,
    resume: bool,
    **options: Any,
) -> None:
    """Train an embedder on labelled photos.

    CATALOGUE is a folder in which each folder with photos is an item, or a CSV or parquet file with the columns
    `path` and `item_id` (or `label`); `retrieval data check` says what a training will find in it. Arguments of the
    loss and of the regularizer are given as --loss.NAME VALUE and --regularizer.NAME VALUE.

    \b
    Example:
      retrieval train photos.csv --backbone google/mobilenet_v1_0.75_224 -o runs/shop \\
          --loss smooth_ap --loss.temperature 0.01 --regularizer tcm
    """
    from training.loop.trainer import train as run_training

    if resume:
        run = run_training(open_run(output).settings, output, resume=True)
    else:
        run = run_training(gather_settings(context, catalogue=catalogue, config=config, options=options), output)
    best = run.progress["best"]
    fnir = best["figures"].get("validation FNIR")
    told = "" if fnir is None else f", FNIR {fnir:.3f} on validation items"
    click.echo(f"Wrote {output}: epoch {best['epoch']} is kept{told}.")
    click.echo(f"Next: {command('evaluate', output)}")


@click.command()
@click.argument("names", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def losses(names: Sequence[str], as_json: bool) -> None:
    """List the losses that --loss and --regularizer take, or those called NAMES.

    Cost is that of a step, in photos of a batch n, dimensions d, positives of a photo m, items C and samples N.

    \b
    Example:
      retrieval losses
      retrieval losses recall_at_k tcm
    """
    from training.losses.describe import describe, render_losses

    rows = describe(names)
    click.echo(json.dumps(rows, indent=2) if as_json else render_losses(rows, summaries=bool(names)))
    if not as_json:
        name = next((row["name"] for row in rows if row["name"] != "tcm"), "contrastive")
        click.echo(f"\nNext: {command('train', 'CATALOGUE', '--loss', name, '--regularizer', 'tcm', '-o', 'RUN')}")


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--target-fpir", type=float, help="The FPIR to promise.  [default: the run's]")
@click.option("--metrics", type=click.Choice(["standard", "extended"]), default="standard", show_default=True)
def evaluate(run: Path, as_json: bool, target_fpir: float | None, metrics: str) -> None:
    """Measure a run on items never seen in training, on trained items and on both mixed.

    The threshold comes from the calibration items alone; the figures are written to RUN/evaluation.json. Extended
    metrics add, for the unseen items, mAP@1000, NMI, diversity, re-ranked R@1 and, with a column `category`, H-AP.

    \b
    Example:
      retrieval evaluate runs/shop --metrics extended
    """
    from training.evaluation.report import evaluate_run, render

    report = evaluate_run(open_run(run), target_fpir=target_fpir, extended=metrics == "extended")
    click.echo(json.dumps(report, indent=2) if as_json else render(report))
    if not as_json:
        click.echo(f"\nWrote {run / 'evaluation.json'}.")
        click.echo(f"Next: {command('export', run, '-o', f'bundles/{run.name}', '--allow-estimate')}")


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The bundle's directory.")
@target_options
@click.option("--allow-estimate", is_flag=True, help="Accept a threshold whose FPIR could not be certified.")
@click.option("--gallery-size", type=int, help="Items to keep the promise for.  [default: the calibration items]")
@click.option("--reject-uncertain", is_flag=True, help="Answer photos of low certainty with a no-match.")
@click.option(
    "--protocol", type=click.Choice(["searches", "pairs"]), default="searches", show_default=True, help="1:N, or 1:1."
)
@click.option("--far-range", type=(float, float), default=(0.01, 0.1), show_default=True, help="With --protocol pairs.")
@_of_context(
    "--precision", type=click.Choice(PRECISIONS), default=FP32, help="Of the model: fewer bits, more photos/s."
)
@_of_context("--provider", type=click.Choice(list(PROVIDERS)), default=CPU, help="What will run the model, only it.")
@_of_context(
    "--sign", type=click.Path(path_type=Path), help="Sign it with this private key (retrieval keys new-signing)."
)
@click.option("--gallery", type=click.Path(path_type=Path), help="Also index these photos (folder, CSV, parquet).")
@click.option("--gallery-output", type=click.Path(path_type=Path), help="Where.  [default: galleries/BUNDLE]")
def export(
    run: Path,
    output: Path,
    target: Any,
    allow_estimate: bool,
    gallery_size: int | None,
    reject_uncertain: bool,
    protocol: str,
    far_range: tuple[float, float],
    gallery: Path | None,
    gallery_output: Path | None,
) -> None:
    """Write a run as a bundle: the ONNX model and one threshold with its evidence.

    Without a target an FPIR of 0.05 is promised. In another precision, or by another provider, than fp32 on the CPU
    everything is measured anew and shown beside fp32; such a bundle has galleries of its own.

    \b
    Example:
      retrieval export runs/shop -o bundles/shop --target-fpir 0.05 --allow-estimate
      retrieval export runs/shop -o bundles/shop-int8 --precision int8 --allow-estimate
    """
    from training.export.export import export as export_run
    from training.export.variants import Variant

    chosen = click.get_current_context().meta
    key = read_key(chosen["sign"])
    photos = read_catalogue(gallery) if gallery else None
    bundle = export_run(
        open_run(run),
        output,
        target=target,
        allow_estimate=allow_estimate,
        gallery_size=gallery_size,
        reject_uncertain=reject_uncertain,
        pairs_far_range=far_range if protocol == "pairs" else None,
        variant=Variant(chosen["precision"], chosen["provider"]),
    )
    if bundle.manifest["evidence"]["beside_fp32"]:
        click.echo(_beside(bundle.manifest["evidence"]))
    say_signed(bundle, key)
    click.echo(f"Wrote {output}: {bundle.operating_point.describe()}")
    for caveat in bundle.operating_point.caveats():
        click.echo(f"Note: {caveat}.")
    if photos is None:
        click.echo(f"Next: {command('index', output, 'PHOTOS', '-o', f'galleries/{output.name}')}")
        return
    where = gallery_output or Path("galleries") / output.name
    _index(bundle, photos, where)
    click.echo(f"Next: {command('serve', output, where)}")


def gather_settings(
    context: click.Context, *, catalogue: str | None, config: Path | None, options: Mapping[str, Any]
) -> Settings:
    """Return the settings of a TOML file, of options, which win over it, and of nested options (`NestedOptions`)."""
    values = _toml(config) if config else {}
    values |= {name: value for name, value in options.items() if value is not None}
    for name, value in context.meta["nested"].items():
        values[name] = {**values.get(name, {}), **value}
    if catalogue:
        values["catalogue"] = str(Path(catalogue).resolve())
    if "catalogue" not in values:
        raise InvalidParameter("CATALOGUE", "be given", None, remedy="Name a folder, a CSV or a parquet file")
    return Settings.from_dict(values)


def open_run(path: Path) -> Any:
    """Open a run directory."""
    from training.loop.run import Run

    return Run.open(path)


def _beside(evidence: Mapping[str, Any]) -> str:
    from training.export.comparison import render_beside

    cosine = evidence["parity"]["mean_cosine"]
    return f"{render_beside(evidence['beside_fp32'])}\nMean cosine to fp32: {cosine:.4f}."


def _index(bundle: Any, photos: Sequence[Photo], where: Path) -> None:
    from retrieval.indexing.pipeline import index_catalogue

    report = index_catalogue(bundle, photos, where)
    click.echo(f"Wrote {where}: {report.added} photos added, {len(report.refused)} refused.")
    if report.refused and not report.added and not report.skipped:
        click.echo("Nothing was added: every photo was refused.", err=True)
        sys.exit(1)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid TOML: {error}") from error


def _nested(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return {"loss_arguments": {...}, ...} of `--loss.NAME=VALUE` words."""
    found: dict[str, dict[str, Any]] = {}
    for word in words:
        target = next(name for name, prefix in NESTED.items() if word.startswith(prefix))
        name, equals, value = word.removeprefix(NESTED[target]).partition("=")
        if not equals or not name:
            raise InvalidParameter("options", "be --loss.NAME VALUE or --regularizer.NAME VALUE", word)
        found.setdefault(target, {})[name.replace("-", "_")] = _plain(value)
    return found


def _plain(text: str) -> Any:
    """Return a number, a truth value or a list where the text is one in JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


__all__ = ["evaluate", "export", "losses", "train"]
