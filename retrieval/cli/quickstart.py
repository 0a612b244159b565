"""The command `retrieval quickstart`, which runs the commands from photos to a served search."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from index.files import working_folder
from retrieval.catalogue.check import can_train, describe_catalogue
from retrieval.catalogue.folders import FolderRules
from retrieval.catalogue.photos import QUERIES
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.errors import DataError, InvalidParameter, command
from retrieval.process import check_port

from .options import BUNDLE, FOLDER_OPTIONS, FOLDER_OR_TABLE, NEW_FOLDER, options_as

CHECKED_WITH = 50  # labelled photos of users that the output suggests


@click.command()
@click.argument("photos", type=FOLDER_OR_TABLE)
@click.option(
    "-o",
    "--output",
    type=NEW_FOLDER,
    default=Path("quickstart"),
    show_default=True,
    help="Directory for the bundle and the gallery.",
)
@click.option(
    "--backbone",
    default="auto",
    show_default=True,
    help="Pretrained model: efficientnet-lite0, a local folder, a model of the Hugging Face hub, timm/NAME or "
    "open_clip/NAME:WEIGHTS where these packages are installed, or auto.",
)
@click.option("--model", type=BUNDLE, help="Bundle to use in place of a pretrained model, such as of `export --onnx`.")
@click.option(
    "--fit/--no-fit",
    default=True,
    show_default=True,
    help="Fit the model's features to the catalogue if that finds more items. This needs 60 items with several "
    "photos. Items that it uses (at most half) do not count for the threshold.",
)
@click.option(
    "--target-fpir",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="Target FPIR of the threshold.",
)
@click.option(
    "--queries",
    type=FOLDER_OR_TABLE,
    help="Labelled photos of users (CSV), to measure the search on them (`calibrate`).",
)
@click.option("--serve/--no-serve", default=True, show_default=True, help="Serve the search page at the end.")
@click.option("--port", type=click.IntRange(0, 65535), default=7860, show_default=True, help="Port of the page.")
@click.option(
    "--keep-photos/--no-keep-photos",
    default=True,
    show_default=True,
    help="Keep the photos that people judge on the page, for `retrieval feedback export`. The page is on this machine "
    "only.",
)
@options_as("folders", FolderRules, FOLDER_OPTIONS)
def quickstart(  # noqa: PLR0913, one an option
    photos: Path,
    *,
    output: Path,
    backbone: str,
    model: Path | None,
    fit: bool,
    target_fpir: float,
    queries: Path | None,
    serve: bool,
    port: int,
    keep_photos: bool,
    folders: FolderRules,
) -> None:
    """Build a search from a folder, CSV or parquet file of photos, without training, and serve it.

    Each folder with photos is an item; without sub-folders, each photo is one. Each step is printed as a command before
    it runs, so you can repeat or change it.

    \b
    Example:
      retrieval quickstart photos/
    """
    if serve:
        check_port(port)
    catalogue = read_catalogue(photos, folders=folders)
    if queries is not None:
        read_catalogue(queries, labels=QUERIES)  # a mistake in it is found before anything is written
    click.echo(f"{photos}: {describe_catalogue(photos, catalogue)}.")
    bundle, gallery = output / "bundle", output / "gallery"
    _check_same_photos(photos, catalogue, bundle, gallery)
    photos = photos if folders == FolderRules() else _as_table(photos, folders, output / "photos.csv")
    if model is not None:
        _take(model, bundle)
    elif bundle.exists():
        click.echo(f"Keeping the model in {bundle} and the photos in {gallery}. For a new search, choose another -o.")
    else:
        options = ["--fit", photos] if fit else []
        _run("export", "--pretrained", backbone, *options, "--target-fpir", f"{target_fpir:g}", "-o", bundle)
    _run("index", bundle, photos, "-o", gallery, "--windows")
    decides, target_now = _threshold(bundle, gallery)
    options = [] if queries is None else ["--queries", queries]
    if target_now != target_fpir and _is_given("target_fpir"):
        options += ["--target-fpir", f"{target_fpir:g}"]  # the model and the gallery of an earlier run have another one
    if options:
        _run("calibrate", bundle, gallery, *options)
    elif decides:
        click.echo(_about_labels(bundle, gallery))
    if can_train(catalogue) and _fit_gains(bundle) and not (output / "run").exists():
        click.echo(_about_training(photos, backbone, output))
    if serve:
        judged = output / "judged"
        if keep_photos:
            table = command("feedback", "export", f"{gallery}.feedback.jsonl", "--photos", judged, "-o", "judged.csv")
            click.echo(f"Photos judged on the page are kept in {judged}. To write a labelled table of them: {table}")
        _run("serve", output, "--port", port, *(["--feedback-photos", judged] if keep_photos else []))
    else:
        click.echo(f"Next: {command('serve', output)}")


def _as_table(photos: Path, folders: FolderRules, table: Path) -> Path:
    """Write a table of the photos that the rules for folders leave, for the commands that follow; return its path."""
    words = [word for pattern in folders.ignore for word in ("--ignore", pattern)]
    _run("data", "table", photos, *words, *(["--splits", folders.splits] if folders.splits else []), "-o", table)
    return table


def _take(model: Path, bundle: Path) -> None:
    """Copy the bundle `model` to `bundle`; raise InvalidParameter if another one is there, or options do not fit."""
    from retrieval.bundle.bundle import Bundle

    if names := [f"--{name}" for name in ("backbone", "fit") if _is_given(name)]:
        raise InvalidParameter("--model", f"be used without {' and '.join(names)}", str(model), remedy="Leave them out")
    if not bundle.exists():
        with working_folder(bundle) as folder:
            shutil.copytree(Bundle.open(model).path, folder / "bundle")
            (folder / "bundle").rename(bundle)
    if Bundle.open(bundle).bundle_id != Bundle.open(model).bundle_id:
        remedy = "Choose another directory with -o"
        raise InvalidParameter("--model", f"be the bundle in {bundle}", str(model), remedy=remedy)


def _run(verb: str, *arguments: object) -> None:
    """Print a command and run it."""
    context = click.get_current_context()
    root = context.find_root().command
    words = [verb, *map(str, arguments)]
    click.secho(f"\n$ {shlex.join(['retrieval', *words])}", bold=True)
    root.main(words, prog_name="retrieval", standalone_mode=False, parent=context)


def _check_same_photos(place: Path, photos: Sequence[Photo], bundle: Path, gallery: Path) -> None:
    """Raise DataError if the gallery of an earlier run has none of the photos: they are probably another catalogue."""
    from index.gallery import Gallery
    from retrieval.indexing.worker import FILE

    if not gallery.exists():
        return
    with Gallery.open(gallery, read_only=True) as opened:
        sizes = {photo_id: state.partition(" ")[0] for photo_id, _, state in opened.values(FILE) if state}
    if sizes and not any(photo.state().partition(" ")[0] == sizes.get(photo.photo_id) for photo in photos):
        raise DataError(
            f"{gallery} has the photos of another catalogue, and none of {place}",
            remedy="Choose another directory with -o, or add these photos to the gallery: "
            f"`{command('index', bundle, place, '-o', gallery)}`",
        )


def _about_labels(bundle: Path, gallery: Path) -> str:
    """Return the command that measures the search on labelled photos."""
    return (
        f"To measure the search on your users' photos, label {CHECKED_WITH} of them in a CSV with `path` and "
        f"`item_id` (empty where a photo shows nothing of this catalogue): "
        f"{command('calibrate', bundle, gallery, '--queries', 'LABELLED.csv')}"
    )


def _about_training(photos: Path, backbone: str, output: Path) -> str:
    """Return the command that trains a head on the model."""
    train = command("train", photos, "--backbone", backbone, "--all-items", "--precompute", "8", "-o", output / "run")
    return (
        "Fitting the model to this catalogue found more items, beyond chance. A trained head may find still more; "
        f"training compares it with the pretrained model. Train it with: {train}"
    )


def _fit_gains(bundle: Path) -> bool:
    """Return whether the model of a bundle was fitted, because a cross-validation showed a gain beyond chance."""
    from retrieval.bundle.bundle import Bundle

    evidence = Bundle.open(bundle).manifest["evidence"]
    return "fit" in evidence and "onnx" not in evidence  # what trains is no ONNX file


def _threshold(bundle: Path, gallery: Path) -> tuple[bool, float]:
    """Return whether a gallery has a threshold, and its target FPIR."""
    from retrieval.retriever import Retriever

    with Retriever.open(bundle, gallery) as retriever:
        return retriever.point.decides, retriever.point.target_fpir


def _is_given(name: str) -> bool:
    """Return whether an option was given on the command line."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE
