"""The command `retrieval export`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click
from click.core import ParameterSource

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
    from retrieval.catalogue.read import Photo

    from .fit import Model

DEFAULT_FPIR = 0.05
ENCODER = "An ONNX file of another maker"
CHANNELS = click.Tuple([float, float, float])
OF_ENCODER = ["onnx", "preprocessor", "size", "mean", "std", "resize", "crop", "bgr", "output", "photos"]
TAKES = {  # the options of what is exported alone
    "onnx": {*OF_ENCODER, "text_onnx", "fit"},
    "pretrained": {"pretrained", "second", "text_onnx", "fit", "precision", "provider"},
    "run": {"run", "certify", "even_if_worse", "precision", "provider"},
}
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
        help="Image processor of the encoder (JSON).  [default: preprocessor_config.json beside it]",
    ),
    click.option(
        "--size", type=click.IntRange(8, 4096), help="Side of the input in pixels.  [default: as in the file]"
    ),
    click.option("--mean", type=CHANNELS, help="Mean of red, green and blue, for values from 0 to 1."),
    click.option("--std", type=CHANNELS, help="Standard deviation of red, green and blue, for values from 0 to 1."),
    click.option("--resize", type=click.IntRange(8), help="Pixels to resize the shorter side of a photo to."),
    click.option("--crop", type=click.IntRange(8, 4096), help="Side of the centre to cut out after --resize."),
    click.option("--bgr", is_flag=True, help="The encoder takes blue, green and red."),
    click.option("--output", metavar="NAME", help="Output to take as the vector.  [default: by name and shape]"),
    click.option(
        "--photos", type=FOLDER_OR_TABLE, help="Photos to compare the bundle with the file on, besides drawn ones."
    ),
]


class ExportCommand(GroupedCommand):
    """`retrieval export`, with its options in groups."""

    option_groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "Threshold": ["target_fpir", "certify"],
        HARDWARE: ["precision", "provider"],
        MODEL: ["pretrained", "second", "text_onnx", "fit", "verify", "item_distance", "even_if_worse"],
        ENCODER: OF_ENCODER,
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
    "--and",
    "second",
    metavar="MODEL",
    help="A second pretrained model for the same file: both see the same input and count equally, in the time of both.",
)
@click.option(
    "--text-onnx",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The text tower of the same model as an ONNX file, with its tokenizer.json beside it, for searches by words. "
    "Pretrained models of the families CLIP and SigLIP bring their own.",
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
    help="Precision of the exported model. A lower one is less exact, and faster on some processors.",
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
    """Write a model as a bundle: the ONNX model and one threshold with its evidence.

    With another precision or provider than fp32 on the CPU, everything is measured again and compared with fp32; such a
    bundle needs galleries of its own.

    The threshold of a pretrained model or an ONNX file is set by `retrieval index` in a gallery of 20 items or more.
    MODEL is efficientnet-lite0, a local folder, timm/NAME, open_clip/NAME, a model of the Hugging Face hub, or auto.

    \b
    Example:
      retrieval export runs/shop -o bundles/shop-int8 --precision int8
      retrieval export --pretrained auto -o bundles/shop
      retrieval export --pretrained auto --fit photos.csv --verify -o bundles/shop
      retrieval export --onnx encoder.onnx --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5 -o bundles/shop
    """
    from retrieval.bundle.bundle import check_new

    source, distance = _source(), _distance(item_distance, verify=verify)
    if verify and fit is None and source != "run":
        remedy = "Pass --fit PHOTOS"
        raise InvalidParameter("--verify", "be used with photos to fit its visual words to", None, remedy=remedy)
    check_new(bundle)  # before a model is loaded
    chosen: dict[str, Any] = {"target_fpir": target_fpir, "item_distance": distance}
    if source == "onnx":
        made = _export_onnx(encoder, bundle, text_onnx, fit, verify=verify, **chosen)
    else:
        from .variants import Variant

        chosen["variant"] = Variant(precision, provider)
        if pretrained is not None:
            models = [named_backbone(name) for name in (pretrained, second) if name is not None]
            made = _export_pretrained(models, bundle, text_onnx, fit, verify=verify, **chosen)
        elif run is not None:
            from .export import export as export_run

            chosen |= {"certify": certify, "even_if_worse": even_if_worse}
            made = export_run(open_run(run), bundle, verify=verify, **chosen)
            _show_evidence(made.manifest["evidence"])
        else:
            raise InvalidParameter("RUN", "be given, or --pretrained MODEL, or --onnx FILE", run)
    click.echo(f"Wrote {bundle}: {describe_briefly(made.operating_point)}")
    for caveat in caveats(made.operating_point):
        click.echo(f"Note: {caveat}.")
    show_next(command("index", bundle, "PHOTOS", "-o", f"galleries/{bundle.name}"))


def _source() -> str:
    """Return what is exported, a key of TAKES, or ""; raise InvalidParameter for options that do not go with it."""
    context = click.get_current_context()
    given = {
        str(parameter.name): parameter.opts[0] if isinstance(parameter, click.Option) else "RUN"
        for parameter in context.command.params
        if context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    }
    source = next((source for source in TAKES if source in given), "")
    others = set().union(*TAKES.values()) - TAKES.get(source, set())
    if source and (wrong := [words for name, words in given.items() if name in others]):
        rule = f"be used without {' and '.join(wrong)}"
        raise InvalidParameter(given[source], rule, context.params[source], remedy="Leave them out")
    return source


def _distance(name: str, *, verify: bool) -> ItemDistance:
    """Return the constants of the item distance; raise InvalidParameter if they leave no room for verification."""
    if verify and name == "nearest":
        raise InvalidParameter("--item-distance", "be default with --verify, which lowers the item distance", name)
    return NEAREST_PHOTO if name == "nearest" else ItemDistance.default(verified=verify)


def _export_onnx(
    options: EncoderOptions, bundle: Path, text_onnx: Path | None, fit: Path | None, *, verify: bool, **chosen: Any
) -> Bundle:
    """Write an ONNX encoder as a bundle, and print what was understood of it."""
    from index.files import working_folder
    from retrieval.encoders.export import Encoder, export_encoder

    shown, fitted = (() if place is None else read_catalogue(place) for place in (options.photos, fit))
    with working_folder() as folder:
        encoder = _prepared(Encoder.read(options, folder), text_onnx, fitted, verify=verify)
        made = export_encoder(encoder, bundle, photos=[*shown, *fitted], **chosen)
    file, parity = made.manifest["evidence"]["onnx"], made.manifest["evidence"]["parity"]
    click.echo(
        f"{file['file']}: {file['input']}, {file['channels']}; the vector is {file['vector']}.\n"
        f"On {parity['photos']} photos, the bundle's vectors differ from the file's by at most "
        f"{parity['largest_difference']:.1e}."
    )
    return made


def _export_pretrained(
    models: Sequence[str], bundle: Path, text_onnx: Path | None, fit: Path | None, *, verify: bool, **chosen: Any
) -> Bundle:
    """Write a pretrained model, or two as one, as a bundle."""
    from .pretrained import Pretrained, export_pretrained

    photos = () if fit is None else read_catalogue(fit)
    loaded = Pretrained.load(*models) if len(models) == 1 else Pretrained.load_pair(*models)
    return export_pretrained(_prepared(loaded, text_onnx, photos, verify=verify), bundle, photos=photos, **chosen)


def _prepared(model: Model, text_onnx: Path | None, photos: Sequence[Photo], *, verify: bool) -> Model:
    """Return a model with a text tower of its own, fitted to photos if that finds more items; print what came of it."""
    if text_onnx is not None:
        from retrieval.bundle.text_embedder import text_files

        model = replace(model, text=text_files(text_onnx), no_text="")
    if photos:
        from .fit import fit_to_catalogue

        model, told = fit_to_catalogue(model, photos, verify=verify)
        click.echo(told)
    if model.no_text:
        click.echo(f"The bundle gets no text tower for searches by words: {model.no_text}.")
    return model


def _show_evidence(evidence: Mapping[str, Any]) -> None:
    """Print the comparison with fp32 if there is one."""
    from training.export.calibration_items import render_comparison

    if evidence.get("beside_fp32"):
        cosine = evidence["parity"]["mean_cosine"]
        click.echo(f"{render_comparison(evidence['beside_fp32'])}\nMean cosine to fp32: {cosine:.4f}.")


__all__ = ["export"]
