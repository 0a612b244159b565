"""The command `retrieval quickstart`, which runs the commands from photos to a served search."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from click.core import ParameterSource

from index.files import working_folder
from retrieval.catalogue.check import can_train, describe_catalogue
from retrieval.catalogue.folders import FolderRules
from retrieval.catalogue.photos import QUERIES
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.errors import DataError, InvalidParameter, command, counted, photos_of_items
from retrieval.process import check_port

from .lines import show_box, train_command
from .options import BUNDLE, FOLDER_OPTIONS, FOLDER_OR_TABLE, NEW_FOLDER, options_as

CHECKED_WITH = 50  # labelled photos of users that the output suggests
STEPS = 3  # commands that come next
PATIENT = 10  # niceness of work beside a server


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
    _run("index", bundle, photos, "-o", gallery)
    target_now = _target(bundle, gallery)
    options = [] if queries is None else ["--queries", queries]
    if target_now != target_fpir and _is_given("target_fpir"):
        options += ["--target-fpir", f"{target_fpir:g}"]  # the model and the gallery of an earlier run have another one
    if options:
        _run("calibrate", bundle, gallery, *options)
    trains = model is None and can_train(catalogue) and not (output / "run").exists() and not _is_onnx(bundle)
    training = train_command(photos, output / "run", backbone=backbone) if trains else ""
    judged = output / "judged" if serve and keep_photos else None
    serving = ("", "") if serve else (command("serve", output), "open the search page")
    judging = "" if judged is None else _exported(gallery, judged)
    _show_end(photos, bundle, gallery, serving, training, judging, labelled=queries is not None)
    if serve:
        with _windows_meanwhile(bundle, photos, gallery):
            _run("serve", output, "--port", port, *([] if judged is None else ["--feedback-photos", judged]))


def _show_end(
    photos: Path,
    bundle: Path,
    gallery: Path,
    serving: tuple[str, str],
    training: str,
    judging: str,
    *,
    labelled: bool,
) -> None:
    """Print what works, what does not or was not measured, and the three commands that come next, as measured.

    `training` and `judging` are the commands that train and that write a table of judged photos, "" where they are of
    no use. With `labelled`, the search was measured on labelled photos.
    """
    from retrieval.galleries.kept import Kept
    from retrieval.measuring.fpir import LEAST_ITEMS
    from retrieval.measuring.sides import in_words, sides_of
    from retrieval.retriever import Retriever

    with Retriever.open(bundle, gallery) as retriever:
        point, rates = retriever.gallery_point.measured()
        size = photos_of_items(len(retriever.gallery), retriever.gallery.items)
        has_windows = retriever.gallery.kept(Kept.WINDOWS) is not None
    sides, pairs, decides = sides_of(point, rates), len(point.basis.twins or ()), point.decides
    lacks = {
        f"it cannot say that it does not have a thing: that needs a threshold, of {LEAST_ITEMS} items": not decides,
        "how many photos it finds was not measured, because no item has two photos": sides and sides.known_sure is None,
        f"{counted(pairs, 'pair of items looks', 'pairs of items look')} like one, which hides both": pairs,
        "users' photos were not measured": decides and not labelled,
        "of several things in one photo, the closest items are only listed": not has_windows,
    }
    audit = command("audit", bundle, gallery, "--report", gallery.with_name("audit.html"))
    label = command("calibrate", bundle, gallery, "--queries", "LABELLED.csv")
    steps = [
        serving,
        (audit if pairs else "", "see the pairs, and what to do"),
        (training, "train on these items; it is compared with the model as it is"),
        (label if decides and not labelled else "", f"measure it on {CHECKED_WITH} labelled photos of users"),
        ("" if decides else command("index", bundle, photos, "-o", gallery), "after adding items"),
        (command("search", bundle, gallery, "FOLDER", "--report", "answers.html"), "see the answers to your photos"),
        (judging, "a table of the photos that people judge on the page"),
        (audit if decides else "", "see what to correct in the catalogue"),
    ]
    works = (sides and in_words(sides)) or "the closest items are listed for each photo"
    rows = [("Works", works), ("Not yet", "; ".join(text for text, holds in lacks.items() if holds) or "–")]
    chosen = [f"{line}  # {why}" for line, why in steps if line][:STEPS]
    show_box(f"{size} can be searched", [*rows, *zip(["Next", "", ""], chosen, strict=False)])


@contextmanager
def _windows_meanwhile(bundle: Path, photos: Path, gallery: Path) -> Iterator[None]:
    """Embed the windows of photos in a process of its own while something else runs, unless the gallery has them."""
    from index.gallery import Gallery
    from retrieval.galleries.kept import Kept

    with Gallery.open(gallery, read_only=True) as opened:
        known = opened.kept(Kept.WINDOWS) is not None
    if known:
        yield
        return
    words = ["index", str(bundle), str(photos), "-o", str(gallery), "--windows"]
    log = gallery.with_name("windows.log")
    click.secho(f"\n$ {shlex.join(['retrieval', *words])} > {shlex.quote(str(log))} &", bold=True)
    click.echo("This embeds parts of photos, to search photos of several things. The page works meanwhile.")
    with log.open("wb") as file:
        program = [sys.executable, "-m", "retrieval", *words]
        process = subprocess.Popen(program, stdout=file, stderr=subprocess.STDOUT)  # noqa: S603 - this program
        os.setpriority(os.PRIO_PROCESS, process.pid, PATIENT)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


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


def _exported(gallery: Path, judged: Path) -> str:
    """Return the command that writes a table of judged photos."""
    return command("feedback", "export", f"{gallery}.feedback.jsonl", "--photos", judged, "-o", "judged.csv")


def _is_onnx(bundle: Path) -> bool:
    """Return whether the model of a bundle was an ONNX file, which does not train."""
    from retrieval.bundle.bundle import Bundle

    return "onnx" in Bundle.open(bundle).manifest["evidence"]


def _target(bundle: Path, gallery: Path) -> float:
    """Return the target FPIR of the threshold that serves in a gallery."""
    from retrieval.retriever import Retriever

    with Retriever.open(bundle, gallery) as retriever:
        return retriever.point.target_fpir


def _is_given(name: str) -> bool:
    """Return whether an option was given on the command line."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE
