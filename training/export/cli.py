"""The command `retrieval export`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click
from click.core import ParameterSource

from retrieval.bundle.providers import CPU, FP32, PRECISIONS, PROVIDERS
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.cli.index import show_expectations
from retrieval.cli.lines import show_next
from retrieval.cli.options import GroupedCommand
from retrieval.errors import InvalidParameter, command
from training.cli import named_backbone, open_run
from training.config import AUTO, HARDWARE, MODEL, OUTPUT
from training.export.options import CHOICES, OFF

if TYPE_CHECKING:
    from retrieval.bundle.bundle import Bundle
    from training.export.variants import Variant

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT_FPIR = 0.05
OF_RUNS = ("run", "allow_estimate", "reject_uncertain")  # parameters


class ExportCommand(GroupedCommand):
    """`retrieval export`, with its options in groups."""

    option_groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "Threshold": ["target_fpir", "allow_estimate", "reject_uncertain"],
        HARDWARE: ["precision", "provider"],
        MODEL: ["pretrained", "fit", "size", "verify"],
        OUTPUT: ["output", "gallery", "gallery_output"],
    }


def _of_context(flag: str, **options: Any) -> Callable[[Command], Command]:
    """Add an option whose value is stored in the `meta` of click's context, under its name."""

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        context.meta[str(parameter.name)] = value

    return click.option(flag, callback=keep, expose_value=False, show_default=True, **options)


@click.command(cls=ExportCommand)
@click.argument("run", type=click.Path(path_type=Path), required=False)
@_of_context(
    "--pretrained",
    metavar="MODEL",
    help="Instead of RUN: a pretrained model. Its bundle has no threshold until a gallery sets one.",
)
@_of_context(
    "--fit",
    type=click.Path(path_type=Path),
    help="Fit the pretrained model to part of these photos (folder, CSV or parquet) if that finds more items.",
)
@_of_context(
    "--size", type=int, help="Side of a pretrained model's square input, in pixels.  [default: the model's own]"
)
@_of_context(
    "--verify",
    type=click.Choice(CHOICES),
    default=OFF,
    help="Verify matches by local features, which finds printed items such as covers and boxes. auto keeps the "
    "verification if it finds more validation items; it needs photos to choose by.",
)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory to write the bundle to."
)
@click.option(
    "--target-fpir",
    type=float,
    default=DEFAULT_FPIR,
    show_default=True,
    help="Maximum share of searches for unknown items that return a match (FPIR).",
)
@click.option("--allow-estimate", is_flag=True, help="Accept a threshold whose FPIR could not be certified.")
@click.option("--reject-uncertain", is_flag=True, help="Answer photos of low certainty with a no-match.")
@_of_context(
    "--precision",
    type=click.Choice([AUTO, *PRECISIONS]),
    default=FP32,
    help="Precision of the exported model. A lower one is faster and less exact. auto takes the fastest one on this "
    "machine that finds as many validation items of RUN as fp32.",
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
def export(
    run: Path | None,
    output: Path,
    target_fpir: float,
    allow_estimate: bool,
    reject_uncertain: bool,
    gallery: Path | None,
    gallery_output: Path | None,
) -> None:
    """Write a run or a pretrained model as a bundle: the ONNX model and one threshold with its evidence.

    With another precision or provider than fp32 on the
    CPU, everything is measured again and compared with fp32; such a bundle needs galleries of its own.

    The bundle of a pretrained model has no threshold. Searches only rank items until `retrieval index` sets one in a
    gallery of 20 items. MODEL is efficientnet-lite0, a local folder, a model of the Hugging Face hub, or auto.

    \b
    Example:
      retrieval export runs/shop -o bundles/shop --target-fpir 0.05 --allow-estimate
      retrieval export runs/shop -o bundles/shop-int8 --precision int8 --allow-estimate
      retrieval export --pretrained auto -o bundles/shop
      retrieval export --pretrained auto --fit photos.csv --verify auto -o bundles/shop
    """
    context = click.get_current_context()
    meta = context.meta
    photos = read_catalogue(gallery) if gallery else None
    if meta["pretrained"] is not None:
        bundle = _export_pretrained(context, output, target_fpir, photos or ())
    else:
        from training.export.export import export as export_run

        if run is None or meta["size"] is not None or meta["fit"] is not None:
            raise InvalidParameter("RUN", "be given, or --pretrained MODEL, which alone takes --size and --fit", run)
        bundle = export_run(
            open_run(run),
            output,
            target_fpir=target_fpir,
            allow_estimate=allow_estimate,
            reject_uncertain=reject_uncertain,
            variant=_variant(context),
            verify=meta["verify"],
        )
        _show_evidence(bundle.manifest["evidence"])
    click.echo(f"Wrote {output}: {bundle.operating_point.describe()}")
    for caveat in bundle.operating_point.caveats():
        click.echo(f"Note: {caveat}.")
    if photos is None:
        show_next(command("index", output, "PHOTOS", "-o", f"galleries/{output.name}"))
        return
    _index(output, bundle, photos, gallery_output or Path("galleries") / output.name)


def _export_pretrained(context: click.Context, output: Path, target_fpir: float, photos: Sequence[Photo]) -> Bundle:
    """Write a pretrained model as a bundle; refuse options for the threshold, which the bundle does not have."""
    from retrieval.bundle.bundle import check_new
    from training.export.pretrained import Pretrained, export_pretrained
    from training.export.variants import Variant

    if context.meta["precision"] == AUTO:
        rule = f"be one of {', '.join(PRECISIONS)} with --pretrained, which has no validation items to choose on"
        raise InvalidParameter("--precision", rule, AUTO)
    given = [name for name in OF_RUNS if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given:
        flags = ", ".join("RUN" if name == "run" else f"--{name.replace('_', '-')}" for name in given)
        raise InvalidParameter(
            "--pretrained",
            "be used without a run and without threshold options other than --target-fpir",
            flags,
            remedy="The threshold is set in a gallery: leave them out",
        )
    from training.export.verification import not_verified

    meta = context.meta
    catalogue, verify = read_catalogue(meta["fit"]) if meta["fit"] else None, meta["verify"]
    if catalogue is None:
        not_verified(verify, "there are no photos to choose it by", "Pass --fit PHOTOS")
    check_new(output)  # before the model is loaded and fitted
    pretrained = Pretrained.load(named_backbone(meta["pretrained"]), size=meta["size"])
    if catalogue is not None:
        from training.export.fit import fit_to_catalogue

        pretrained, told = fit_to_catalogue(pretrained, catalogue, verify=verify, target_fpir=target_fpir)
        click.echo(told)
    variant = Variant(meta["precision"], meta["provider"])
    photos = photos or catalogue or ()
    return export_pretrained(pretrained, output, photos=photos, variant=variant, target_fpir=target_fpir)


def _variant(context: click.Context) -> Variant | list[Variant]:
    """Return the variant of the options, or with --precision auto all that this machine can run."""
    from training.export.precision import forms_here
    from training.export.variants import Variant

    if context.meta["precision"] != AUTO:
        return Variant(context.meta["precision"], context.meta["provider"])
    given = context.get_parameter_source("provider") is ParameterSource.COMMANDLINE
    return forms_here(context.meta["provider"] if given else None)


def _show_evidence(evidence: Mapping[str, Any]) -> None:
    """Print what the verification gains and costs, and the comparison with fp32 if there is one."""
    from training.export.comparison import render_comparison
    from training.export.precision import describe_forms

    for line in describe_forms(evidence["forms_tried"]):
        click.echo(line)
    if evidence["verification"]["told"]:
        click.echo(evidence["verification"]["told"])
    if evidence["beside_fp32"]:
        cosine = evidence["parity"]["mean_cosine"]
        click.echo(f"{render_comparison(evidence['beside_fp32'])}\nMean cosine to fp32: {cosine:.4f}.")


def _index(output: Path, bundle: Bundle, photos: Sequence[Photo], gallery: Path) -> None:
    from retrieval.indexing.pipeline import index_catalogue

    report = index_catalogue(bundle, photos, gallery)
    click.echo(f"Wrote {gallery}: {report.added} photos added, {len(report.refused)} refused.")
    if report.refused and not report.added and not report.skipped:
        click.echo("Nothing was added: every photo was refused.", err=True)
        sys.exit(1)
    show_expectations(report, output, gallery, bundle_decides=bundle.operating_point.decides)
    show_next(command("serve", output, gallery))


__all__ = ["export"]
