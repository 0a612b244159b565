"""The commands `retrieval train`, `losses`, `evaluate` and `export`."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click

from index.shell import command
from retrieval.bundle.providers import CPU, FP32, PRECISIONS, PROVIDERS
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.cli.settings_options import GroupedCommand
from retrieval.cli.signing_options import read_key, say_signed
from retrieval.cli.target_options import target_options
from retrieval.errors import DataError, InvalidParameter

from .config import DATA, EVALUATION, HARDWARE, OUTPUT, Settings
from .options import SettingsCommand, training_groups, training_options

Command = TypeVar("Command", bound=Callable[..., Any])


class TrainCommand(SettingsCommand):
    """`retrieval train`, with its options in groups."""

    option_groups: ClassVar[Mapping[str, Sequence[str]]] = training_groups(
        {DATA: ["config"], OUTPUT: ["output", "resume"]}
    )


class EvaluateCommand(GroupedCommand):
    """`retrieval evaluate`, with its options in groups."""

    option_groups: ClassVar[Mapping[str, Sequence[str]]] = {
        EVALUATION: ["target_fpir", "metrics"],
        OUTPUT: ["as_json"],
    }


class ExportCommand(GroupedCommand):
    """`retrieval export`, with its options in groups."""

    option_groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "Threshold": [
            *("target_fpir", "target_far", "target_precision", "mated_share", "allow_estimate"),
            *("gallery_size", "reject_uncertain", "protocol", "far_range"),
        ],
        HARDWARE: ["precision", "provider"],
        OUTPUT: ["output", "sign", "gallery", "gallery_output"],
    }


def _of_context(flag: str, **options: Any) -> Callable[[Command], Command]:
    """Add an option whose value is stored in the `meta` of click's context, under its name."""

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        context.meta[str(parameter.name)] = value

    return click.option(flag, callback=keep, expose_value=False, show_default=True, **options)


@click.command(cls=TrainCommand)
@click.argument("catalogue", required=False)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory to write the run to.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="TOML file with settings. Options on the command line override it.",
)
@click.option("--resume", is_flag=True, help="Continue an interrupted run with the settings it was started with.")
@training_options
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
    `path` and `item_id` (or `label`). `retrieval data check` shows what training will find in it. Pass arguments of
    the loss and of the regularizer as --loss.NAME VALUE and --regularizer.NAME VALUE.

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
    fnir = best["metrics"].get("validation FNIR")
    result = "" if fnir is None else f" (FNIR {fnir:.3f} on the validation items)"
    click.echo(f"Wrote {output} with the checkpoint of epoch {best['epoch']}{result}.")
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
    from training.losses.describe import describe, render_losses

    rows = describe(names)
    click.echo(json.dumps(rows, indent=2) if as_json else render_losses(rows, summaries=bool(names)))
    if not as_json:
        name = next((row["name"] for row in rows if row["name"] != "tcm"), "contrastive")
        click.echo(f"\nNext: {command('train', 'CATALOGUE', '--loss', name, '--regularizer', 'tcm', '-o', 'RUN')}")


@click.command(cls=EvaluateCommand)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the metrics as JSON.")
@click.option("--target-fpir", type=float, help="FPIR that the threshold is set for.  [default: that of the run]")
@click.option(
    "--metrics",
    type=click.Choice(["standard", "extended"]),
    default="standard",
    show_default=True,
    help="Which metrics to compute. The extended ones take longer.",
)
def evaluate(run: Path, as_json: bool, target_fpir: float | None, metrics: str) -> None:
    """Measure a run on unseen items, on trained items and on both mixed.

    The threshold is set on the calibration items alone. The metrics are written to RUN/evaluation.json. Extended
    metrics add mAP@1000, NMI, diversity, re-ranked R@1 and, with a column `category`, H-AP of the unseen items.

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


@click.command(cls=ExportCommand)
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory to write the bundle to."
)
@target_options
@click.option("--allow-estimate", is_flag=True, help="Accept a threshold whose FPIR could not be certified.")
@click.option(
    "--gallery-size",
    type=int,
    help="Number of gallery items that the FPIR is promised for.  [default: the number of calibration items]",
)
@click.option("--reject-uncertain", is_flag=True, help="Answer photos of low certainty with a no-match.")
@click.option(
    "--protocol",
    type=click.Choice(["searches", "pairs"]),
    default="searches",
    show_default=True,
    help="What the threshold decides: searches in a gallery (1:N) or pairs of photos (1:1).",
)
@click.option(
    "--far-range",
    type=(float, float),
    default=(0.01, 0.1),
    show_default=True,
    help="Range of false-accept rates that the threshold is chosen in, with --protocol pairs.",
)
@_of_context(
    "--precision",
    type=click.Choice(PRECISIONS),
    default=FP32,
    help="Precision of the exported model. A lower one is faster and less exact.",
)
@_of_context(
    "--provider",
    type=click.Choice(list(PROVIDERS)),
    default=CPU,
    help="Execution provider that runs the model. The bundle works with this provider only.",
)
@click.option("--gallery", type=click.Path(path_type=Path), help="Also index these photos (folder, CSV or parquet).")
@click.option(
    "--gallery-output",
    type=click.Path(path_type=Path),
    help="Directory to write the gallery to, with --gallery.  [default: galleries/BUNDLE]",
)
@_of_context(
    "--sign",
    type=click.Path(path_type=Path),
    help="Sign the bundle with this private key (made by `retrieval keys new-signing`).",
)
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

    Without a target, the threshold is set for an FPIR of 0.05. With another precision or provider than fp32 on the
    CPU, everything is measured again and compared with fp32; such a bundle needs galleries of its own.

    \b
    Example:
      retrieval export runs/shop -o bundles/shop --target-fpir 0.05 --allow-estimate
      retrieval export runs/shop -o bundles/shop-int8 --precision int8 --allow-estimate
    """
    from training.export.export import export as export_run
    from training.export.variants import Variant

    meta = click.get_current_context().meta
    key = read_key(meta["sign"])
    photos = read_catalogue(gallery) if gallery else None
    bundle = export_run(
        open_run(run),
        output,
        target=target,
        allow_estimate=allow_estimate,
        gallery_size=gallery_size,
        reject_uncertain=reject_uncertain,
        pairs_far_range=far_range if protocol == "pairs" else None,
        variant=Variant(meta["precision"], meta["provider"]),
    )
    if bundle.manifest["evidence"]["beside_fp32"]:
        click.echo(_comparison(bundle.manifest["evidence"]))
    say_signed(bundle, key)
    click.echo(f"Wrote {output}: {bundle.operating_point.describe()}")
    for caveat in bundle.operating_point.caveats():
        click.echo(f"Note: {caveat}.")
    if photos is None:
        click.echo(f"Next: {command('index', output, 'PHOTOS', '-o', f'galleries/{output.name}')}")
        return
    gallery_path = gallery_output or Path("galleries") / output.name
    _index(bundle, photos, gallery_path)
    click.echo(f"Next: {command('serve', output, gallery_path)}")


def gather_settings(
    context: click.Context, *, catalogue: str | None, config: Path | None, options: Mapping[str, Any]
) -> Settings:
    """Return the settings of a TOML file, overridden by options and by arguments of the losses."""
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


def _comparison(evidence: Mapping[str, Any]) -> str:
    from training.export.comparison import render_comparison

    cosine = evidence["parity"]["mean_cosine"]
    return f"{render_comparison(evidence['beside_fp32'])}\nMean cosine to fp32: {cosine:.4f}."


def _index(bundle: Any, photos: Sequence[Photo], path: Path) -> None:
    from retrieval.indexing.pipeline import index_catalogue

    report = index_catalogue(bundle, photos, path)
    click.echo(f"Wrote {path}: {report.added} photos added, {len(report.refused)} refused.")
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


__all__ = ["evaluate", "export", "losses", "train"]
