"""The command `retrieval export`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.bundle.providers import CPU, FP32, PRECISIONS, PROVIDERS
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.lines import show_next
from retrieval.cli.options import FOLDER_OR_TABLE, NEW_FOLDER, RUN, GroupedCommand, options_as
from retrieval.encoders.processor import EncoderOptions
from retrieval.errors import InvalidParameter, command
from retrieval.measuring.sentences import caveats, describe_briefly
from training.cli import named_backbone, open_run
from training.config import HARDWARE, MODEL, OUTPUT

if TYPE_CHECKING:
    from retrieval.bundle.bundle import Bundle
    from retrieval.measuring.point import Point
    from training.export.variants import Variant

DEFAULT_FPIR = 0.05
ENCODER = "An ONNX file of another maker"
CHANNELS = click.Tuple([float, float, float])


ENCODER_OPTIONS = [
    click.option(
        "--onnx",
        metavar="FILE",
        help="Instead of RUN: an image encoder as ONNX file, a folder of Optimum or Transformers.js, or hf://ORG/NAME. "
        "A gallery sets its threshold.",
    ),
    click.option(
        "--preprocessor",
        type=click.Path(path_type=Path),
        help="Values of its image processor (JSON).  [default: preprocessor_config.json beside it]",
    ),
    click.option(
        "--size", type=click.IntRange(8, 4096), help="Side of its input in pixels.  [default: as in the file]"
    ),
    click.option("--mean", type=CHANNELS, help="Mean of red, green and blue, for values from 0 to 1."),
    click.option("--std", type=CHANNELS, help="Standard deviation of red, green and blue, for values from 0 to 1."),
    click.option("--resize", type=click.IntRange(8), help="Pixels that the shorter side of a photo is resized to."),
    click.option("--crop", type=click.IntRange(8, 4096), help="Side of the centre that is taken then."),
    click.option("--bgr", is_flag=True, help="It takes blue, green and red."),
    click.option("--output", metavar="NAME", help="Its output that is the vector.  [default: by name and shape]"),
    click.option(
        "--photos", type=FOLDER_OR_TABLE, help="Photos to compare the bundle with the file on, besides drawn ones."
    ),
]


class ExportCommand(GroupedCommand):
    """`retrieval export`, with its options in groups."""

    option_groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "Threshold": ["target_fpir", "certify"],
        HARDWARE: ["precision", "provider"],
        MODEL: ["pretrained", "fit", "verify", "item_distance", "even_if_worse"],
        ENCODER: ["onnx", "preprocessor", "size", "mean", "std", "resize", "crop", "bgr", "output", "photos"],
        OUTPUT: ["bundle"],
    }


@click.command(cls=ExportCommand)
@click.argument("run", type=RUN, required=False)
@click.option(
    "--pretrained",
    metavar="MODEL",
    help="Instead of RUN: a pretrained model. A gallery sets its threshold.",
)
@click.option(
    "--fit",
    type=FOLDER_OR_TABLE,
    help="Fit the model of --pretrained or --onnx to part of these photos (folder, CSV or parquet) if that finds more "
    "items.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Compare local features as well, which finds printed items such as covers and boxes. With --pretrained and "
    "--onnx, it needs --fit.",
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
@options_as("encoder", EncoderOptions, ENCODER_OPTIONS)
@click.option("-o", "bundle", required=True, type=NEW_FOLDER, help="Directory to write the bundle to.")
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
    bundle: Path,
    encoder: EncoderOptions,
    pretrained: str | None,
    fit: Path | None,
    verify: bool,
    item_distance: str,
    even_if_worse: bool,
    target_fpir: float,
    certify: bool,
    precision: str,
    provider: str,
) -> None:
    """Write a model as a bundle: the ONNX model and one threshold with its evidence.

    With another precision or provider than fp32 on the CPU, everything is measured again and compared with fp32; such a
    bundle needs galleries of its own.

    The threshold of a pretrained model or an ONNX file is set by `retrieval index` in a gallery of 20 items or more.
    MODEL is efficientnet-lite0, a local folder, a model of the Hugging Face hub, or auto.

    \b
    Example:
      retrieval export runs/shop -o bundles/shop --target-fpir 0.05
      retrieval export runs/shop -o bundles/shop-int8 --precision int8
      retrieval export --pretrained auto -o bundles/shop
      retrieval export --pretrained auto --fit photos.csv --verify -o bundles/shop
      retrieval export --onnx encoder.onnx --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5 -o bundles/shop
    """
    distance = _distance(item_distance, verify=verify)
    of_run: dict[str, object] = {"RUN": run, "--certify": certify, "--even-if-worse": even_if_worse}
    if encoder.onnx is not None:
        of_torch = {"--pretrained": pretrained, "--precision": precision != FP32, "--provider": provider != CPU}
        _check_alone("--onnx", encoder.onnx, of_run | of_torch)
        made = _export_onnx(encoder, bundle, fit=fit, verify=verify, distance=distance, target_fpir=target_fpir)
    else:
        from .variants import Variant

        variant, of_onnx = Variant(precision, provider), {f"--{name}": given for name, given in vars(encoder).items()}
        _check_alone("--pretrained" if pretrained else "RUN", pretrained or run, of_onnx)
        if pretrained is not None:
            _check_alone("--pretrained", pretrained, of_run)
            made = _export_pretrained(
                pretrained, bundle, fit=fit, verify=verify, distance=distance, target_fpir=target_fpir, variant=variant
            )
        else:
            made = _export_run(
                run,
                bundle,
                fit=fit,
                verify=verify,
                distance=distance,
                target_fpir=target_fpir,
                variant=variant,
                certify=certify,
                even_if_worse=even_if_worse,
            )
    _show_written(bundle, made.operating_point)


def _show_written(bundle: Path, point: Point) -> None:
    """Print what was written, and the command that comes next."""
    click.echo(f"Wrote {bundle}: {describe_briefly(point)}")
    for caveat in caveats(point):
        click.echo(f"Note: {caveat}.")
    show_next(command("index", bundle, "PHOTOS", "-o", f"galleries/{bundle.name}"))


def _check_alone(name: str, value: object, others: Mapping[str, object]) -> None:
    """Raise InvalidParameter if an argument comes with another one that does not go with it."""
    if given := [other for other, value in others.items() if value]:
        raise InvalidParameter(name, f"be used without {' and '.join(given)}", value, remedy="Leave them out")


def _distance(name: str, *, verify: bool) -> ItemDistance:
    """Return the constants of the item distance; raise InvalidParameter if they leave no room for verification."""
    if verify and name == "nearest":
        raise InvalidParameter("--item-distance", "be default with --verify, which lowers the item distance", name)
    return NEAREST_PHOTO if name == "nearest" else ItemDistance.default(verified=verify)


def _export_onnx(
    options: EncoderOptions, bundle: Path, *, fit: Path | None, verify: bool, distance: ItemDistance, target_fpir: float
) -> Bundle:
    """Write an ONNX encoder as a bundle, fitted to the photos of `fit` if that finds more items."""
    from index.files import working_folder
    from retrieval.bundle.bundle import check_new
    from retrieval.encoders.export import Encoder, export_encoder

    _require_photos(fit, verify=verify)
    check_new(bundle)
    photos = [photo for place in (options.photos, fit) if place is not None for photo in read_catalogue(place)]
    with working_folder() as folder:
        encoder = Encoder.read(options, folder)
        if fit is not None:
            from .fit import fit_to_catalogue

            encoder, told = fit_to_catalogue(encoder, read_catalogue(fit), verify=verify)
            click.echo(told)
        made = export_encoder(encoder, bundle, photos=photos, target_fpir=target_fpir, item_distance=distance)
    file, parity = made.manifest["evidence"]["onnx"], made.manifest["evidence"]["parity"]
    click.echo(f"{file['file']}: {file['input']}, {file['channels']}; the vector is {file['vector']}.")
    click.echo(
        f"On {parity['photos']} photos, the bundle's vectors differ from the file's by at most "
        f"{parity['largest_difference']:.1e}."
    )
    return made


def _export_run(
    run: Path | None,
    output: Path,
    *,
    fit: Path | None,
    verify: bool,
    distance: ItemDistance,
    target_fpir: float,
    variant: Variant,
    certify: bool,
    even_if_worse: bool,
) -> Bundle:
    """Write a run as a bundle, and print the comparison with fp32 if there is one."""
    from .export import export as export_run

    if run is None or fit is not None:
        raise InvalidParameter("RUN", "be given, or --pretrained MODEL or --onnx FILE, which alone take --fit", run)
    made = export_run(
        open_run(run),
        output,
        target_fpir=target_fpir,
        certify=certify,
        variant=variant,
        item_distance=distance,
        verify=verify,
        even_if_worse=even_if_worse,
    )
    _show_evidence(made.manifest["evidence"])
    return made


def _export_pretrained(
    model: str,
    output: Path,
    *,
    fit: Path | None,
    verify: bool,
    distance: ItemDistance,
    target_fpir: float,
    variant: Variant,
) -> Bundle:
    """Write a pretrained model as a bundle, fitted to the photos of `fit` if that finds more items."""
    from retrieval.bundle.bundle import check_new

    from .pretrained import Pretrained, export_pretrained

    photos = read_catalogue(fit) if fit is not None else []
    _require_photos(fit, verify=verify)
    check_new(output)  # before the model is loaded and fitted
    pretrained = Pretrained.load(named_backbone(model))
    if fit is not None:
        from .fit import fit_to_catalogue

        pretrained, told = fit_to_catalogue(pretrained, photos, verify=verify)
        click.echo(told)
    return export_pretrained(
        pretrained, output, photos=photos, variant=variant, target_fpir=target_fpir, item_distance=distance
    )


def _require_photos(fit: Path | None, *, verify: bool) -> None:
    """Raise InvalidParameter if matches are to be verified and there are no photos to fit to."""
    if fit is None and verify:
        remedy = "Pass --fit PHOTOS"
        raise InvalidParameter("--verify", "be used with photos to fit its visual words to", None, remedy=remedy)


def _show_evidence(evidence: Mapping[str, Any]) -> None:
    """Print the comparison with fp32 if there is one."""
    from training.export.calibration_items import render_comparison

    if evidence.get("beside_fp32"):
        cosine = evidence["parity"]["mean_cosine"]
        click.echo(f"{render_comparison(evidence['beside_fp32'])}\nMean cosine to fp32: {cosine:.4f}.")


__all__ = ["export"]
