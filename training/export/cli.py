"""The command `retrieval export`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.bundle.providers import CPU, FP32, PRECISIONS, PROVIDERS
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.lines import show_next
from retrieval.cli.options import FOLDER_OR_TABLE, NEW_FOLDER, RUN, GroupedCommand
from retrieval.errors import InvalidParameter, command
from retrieval.measuring.sentences import caveats, describe_briefly
from training.cli import named_backbone, open_run
from training.config import HARDWARE, MODEL, OUTPUT

if TYPE_CHECKING:
    from retrieval.bundle.bundle import Bundle
    from training.export.variants import Variant

DEFAULT_FPIR = 0.05


class ExportCommand(GroupedCommand):
    """`retrieval export`, with its options in groups."""

    option_groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "Threshold": ["target_fpir", "certify"],
        HARDWARE: ["precision", "provider"],
        MODEL: ["pretrained", "second", "text_onnx", "fit", "verify", "item_distance", "even_if_worse"],
        OUTPUT: ["output"],
    }


@click.command(cls=ExportCommand)
@click.argument("run", type=RUN, required=False)
@click.option(
    "--pretrained",
    metavar="MODEL",
    help="Instead of RUN: a pretrained model. A gallery sets its threshold.",
)
@click.option(
    "--and",
    "second",
    metavar="MODEL",
    help="A second pretrained model for the same file: both see the same input and count equally, in the time of both.",
)
@click.option(
    "--text-onnx",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The text tower of the same model as an ONNX file, with its tokenizer.json beside it, for searches by words. "
    "Models of the families CLIP and SigLIP bring their own.",
)
@click.option(
    "--fit",
    type=FOLDER_OR_TABLE,
    help="Fit the pretrained model to part of these photos (folder, CSV or parquet) if that finds more items.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Compare local features as well, which finds printed items such as covers and boxes. With --pretrained, it "
    "needs --fit.",
)
@click.option(
    "--item-distance",
    type=click.Choice(["default", "nearest"]),
    default="default",
    show_default=True,
    help="What decides: the nearest photo, the mean photo and the rivals of an item, or its nearest photo alone.",
)
@click.option(
    "--even-if-worse", is_flag=True, help="Accept a run that finds less than the model that its training started from."
)
@click.option("-o", "--output", required=True, type=NEW_FOLDER, help="Directory to write the bundle to.")
@click.option(
    "--target-fpir",
    type=float,
    default=DEFAULT_FPIR,
    show_default=True,
    help="Maximum share of searches for unknown items that return a match (FPIR).",
)
@click.option(
    "--certify",
    is_flag=True,
    help="Certify the target FPIR with 95 % confidence, or fail. A certified threshold finds far fewer items.",
)
@click.option(
    "--precision",
    type=click.Choice(list(PRECISIONS)),
    default=FP32,
    show_default=True,
    help="Precision of the exported model. A lower one is faster and less exact.",
)
@click.option(
    "--provider",
    type=click.Choice(list(PROVIDERS)),
    default=CPU,
    show_default=True,
    help="Execution provider that runs the model. The bundle works with this provider only.",
)
def export(  # noqa: PLR0913, PLR0917, one an option
    run: Path | None,
    output: Path,
    pretrained: str | None,
    second: str | None,
    text_onnx: Path | None,
    fit: Path | None,
    verify: bool,
    item_distance: str,
    even_if_worse: bool,
    target_fpir: float,
    certify: bool,
    precision: str,
    provider: str,
) -> None:
    """Write a run or a pretrained model as a bundle: the ONNX model and one threshold with its evidence.

    With another precision or provider than fp32 on the CPU, everything is measured again and compared with fp32; such a
    bundle needs galleries of its own.

    The threshold of a pretrained model is set by `retrieval index` in a gallery of 20 items or more. MODEL is
    efficientnet-lite0, a local folder, a model of the Hugging Face hub, timm/NAME, open_clip/NAME:WEIGHTS, or auto.

    \b
    Example:
      retrieval export runs/shop -o bundles/shop --target-fpir 0.05
      retrieval export runs/shop -o bundles/shop-int8 --precision int8
      retrieval export --pretrained auto --fit photos.csv --verify -o bundles/shop
      retrieval export --pretrained facebook/dinov2-small --and efficientnet-lite0 -o bundles/both
    """
    from training.export.variants import Variant

    variant, distance = Variant(precision, provider), _distance(item_distance, verify=verify)
    if pretrained is not None:
        if run is not None or certify or even_if_worse:
            rule = "be used without RUN, --certify and --even-if-worse"
            raise InvalidParameter("--pretrained", rule, pretrained, remedy="Leave them out")
        models = [pretrained] if second is None else [pretrained, second]
        bundle = _export_pretrained(
            models, output, text_onnx, fit=fit, verify=verify, distance=distance, fpir=target_fpir, variant=variant
        )
    else:
        from training.export.export import export as export_run

        if run is None or fit is not None or second is not None or text_onnx is not None:
            rule = "be given, or --pretrained MODEL, which alone takes --fit, --and and --text-onnx"
            raise InvalidParameter("RUN", rule, run)
        bundle = export_run(
            open_run(run),
            output,
            target_fpir=target_fpir,
            certify=certify,
            variant=variant,
            item_distance=distance,
            verify=verify,
            even_if_worse=even_if_worse,
        )
        _show_evidence(bundle.manifest["evidence"])
    click.echo(f"Wrote {output}: {describe_briefly(bundle.operating_point)}")
    for caveat in caveats(bundle.operating_point):
        click.echo(f"Note: {caveat}.")
    show_next(command("index", output, "PHOTOS", "-o", f"galleries/{output.name}"))


def _distance(name: str, *, verify: bool) -> ItemDistance:
    """Return the constants of the item distance; raise InvalidParameter if they leave no room for verification."""
    if verify and name == "nearest":
        raise InvalidParameter("--item-distance", "be default with --verify, which lowers the item distance", name)
    return NEAREST_PHOTO if name == "nearest" else ItemDistance.default(verified=verify)


def _export_pretrained(
    models: Sequence[str],
    output: Path,
    text_onnx: Path | None,
    *,
    fit: Path | None,
    verify: bool,
    distance: ItemDistance,
    fpir: float,
    variant: Variant,
) -> Bundle:
    """Write a pretrained model, or two as one, as a bundle, fitted to the photos of `fit` if that finds more items."""
    from retrieval.bundle.bundle import check_new
    from retrieval.bundle.text_embedder import text_files
    from training.export.pretrained import Pretrained, export_pretrained

    photos = read_catalogue(fit) if fit is not None else []
    if fit is None and verify:
        remedy = "Pass --fit PHOTOS"
        raise InvalidParameter("--verify", "be used with photos to fit its visual words to", None, remedy=remedy)
    check_new(output)  # before the model is loaded and fitted
    names = [named_backbone(model) for model in models]
    pretrained = Pretrained.load(*names) if len(names) == 1 else Pretrained.load_pair(*names)
    if text_onnx is not None:
        pretrained = replace(pretrained, text=text_files(text_onnx), no_text="")
    if fit is not None:
        from training.export.fit import fit_to_catalogue

        pretrained, told = fit_to_catalogue(pretrained, photos, verify=verify)
        click.echo(told)
    if pretrained.no_text:
        click.echo(f"The bundle gets no text tower for searches by words: {pretrained.no_text}.")
    return export_pretrained(
        pretrained, output, photos=photos, variant=variant, target_fpir=fpir, item_distance=distance
    )


def _show_evidence(evidence: Mapping[str, Any]) -> None:
    """Print the comparison with fp32 if there is one."""
    from training.export.calibration_items import render_comparison

    if evidence.get("beside_fp32"):
        cosine = evidence["parity"]["mean_cosine"]
        click.echo(f"{render_comparison(evidence['beside_fp32'])}\nMean cosine to fp32: {cosine:.4f}.")


__all__ = ["export"]
