"""Bundles: immutable directories with the model, preprocessing, threshold, evidence and a hash of every file.

bundle/
  manifest.json   format version, ids, preprocessing, item distance, operating point, evidence, sha256 of every file
  model.onnx      pixels (n, 3, size, size) to embedding (n, d) and certainty (n,)
  model.onnx.data   weights of the model, if it keeps them in a file of their own
  calibration.npz the searches that the threshold was chosen on
  fitted.npz      hashes of the items and photos that the model was fitted on
  verification.npz   settings and vocabulary of the geometric verification, if the bundle verifies matches
  calibration_features.npz   local features of the calibration photos, if the bundle verifies matches
  golden.npz      the model's output for a synthetic image on the machine that exported it
  text.onnx       token ids (n, t) to a vector (n, d), if the model has a text tower (`text_embedder`)
  tokenizer.json  makes the token ids
  folds.onnx      the fold models of a model that was fitted on a whole catalogue, if it was
  report.html     plots of the threshold's behaviour and the strength of its evidence

A bundle has two ids. `embedding_id` is the hash of everything that determines a vector (model, preprocessing,
precision, dimension, and the provider unless it is the CPU); galleries store it. `bundle_id` is the hash of everything
that determines an answer: these, the item distance, the threshold, and the files that draws depend on. Evidence with
timings and facts about a machine is no part of it, so exporting a model again gives the same id. `manifest_sha256`
covers the whole manifest. Bundles are written to a temporary directory, synced, then renamed.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from index.files import load_arrays, naming, sync_folder, working_folder
from index.search.item_distance import ItemDistance
from retrieval.errors import BundleCorrupt, BundleError, BundleMismatch, InvalidParameter, check_format, command
from retrieval.files import check_place
from retrieval.images import Preprocessing
from retrieval.measuring.draws import TWICE, Probes
from retrieval.measuring.point import Point
from retrieval.metrics.identification import SearchScores
from retrieval.verification.features import PackedFeatures

from .embedder import WEIGHTS, Embedder, check_golden
from .fitted import Fitted
from .providers import CPU, FP32
from .text_embedder import TEXT, TOKENIZER, TextEmbedder

if TYPE_CHECKING:
    from index.location import AnyGallery
    from retrieval.verification.verifier import GeometricVerifier

FORMAT = 8  # of what a bundle's files hold
MANIFEST, MODEL = "manifest.json", "model.onnx"
CALIBRATION, REPORT, GOLDEN, FITTED = "calibration.npz", "report.html", "golden.npz", "fitted.npz"
SEAL = "manifest_sha256"  # key of the hash of the rest of the manifest
VERIFICATION, CALIBRATION_FEATURES = "verification.npz", "calibration_features.npz"
FOLDS = "folds.onnx"
VMF_NCA = "vmf_nca"  # loss or regularizer


class Bundle:
    """An opened, read-only bundle. Use `Bundle.open`, which checks its integrity."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        if not isinstance(manifest["files"], dict):
            raise TypeError("`files` is not an object")
        self.bundle_id = str(manifest["bundle_id"])
        self.embedding_id = str(manifest["embedding_id"])
        self.dim = int(manifest["dim"])
        self.precision = str(manifest["precision"])
        self.provider = str(manifest["provider"])
        self.preprocessing = Preprocessing.from_dict(manifest["preprocessing"])
        self.operating_point = Point.from_dict(manifest["operating_point"])
        self.threshold = self.operating_point.threshold
        self.item_distance = ItemDistance.from_dict(manifest["item_distance"])
        self.looks_twice = manifest.get("looks", 1) == TWICE  # at a photo that does not match at first
        self.verifier = self._verifier()
        settings = manifest["evidence"].get("settings", {})
        self.tells_norms = VMF_NCA in (settings.get("loss"), settings.get("regularizer"))  # a norm is a concentration

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = True) -> Bundle:
        """Open a bundle and check the hash of its manifest and, with `verify`, of every file.

        Raises BundleError if the path is not a bundle or has another format, BundleCorrupt if a file was changed, and
        MissingDependency if the bundle verifies matches and the extra `verify` is not installed.
        """
        path = Path(path).resolve()  # a symbolic link may be redirected later
        manifest = _read_manifest(path)
        with _intact(path / MANIFEST):
            bundle = cls(path, manifest)
        for name in manifest["files"] if verify else ():
            bundle.read(name)
        return bundle

    def read(self, name: str) -> bytes:
        """Return the content of a file in the bundle; raise BundleCorrupt if it was changed or is not a plain file."""
        try:
            if Path(name).name != name or not stat.S_ISREG((self.path / name).lstat().st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file in the bundle")
            data = (self.path / name).read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = getattr(error, "strerror", None) or error
            raise BundleCorrupt(f"{self.path / name} cannot be read: {reason}", remedy="Export it again") from error
        if _hash(data) != self.manifest["files"].get(name):
            raise BundleCorrupt(
                f"{self.path / name} is not the file that was written", remedy="Export the bundle again"
            )
        return data

    def _verifier(self) -> GeometricVerifier | None:
        """Return the geometric verifier, None if the bundle does not verify matches."""
        if VERIFICATION not in self.manifest["files"]:
            return None
        from retrieval.verification.detector import import_opencv
        from retrieval.verification.verifier import GeometricVerifier

        import_opencv()
        return GeometricVerifier.unpack(self.read(VERIFICATION))

    @property
    def features_key(self) -> str:
        """Return a key of the settings that determine local features, "" if the bundle does not verify matches."""
        return "" if self.verifier is None else self.verifier.features_key

    @property
    def feature_format(self) -> PackedFeatures | None:
        """The format of the local features that the model computes, None if it computes none."""
        return None if self.verifier is None else PackedFeatures(len(self.verifier.vocabulary.weights))

    @cached_property
    def calibration_features(self) -> dict[str, bytes]:
        """The local features of the calibration photos by photo id, empty if the bundle does not verify matches."""
        stored = CALIBRATION_FEATURES in self.manifest["files"]
        with _intact(self.path / CALIBRATION_FEATURES):
            return unpack_features(self.read(CALIBRATION_FEATURES)) if stored else {}

    @cached_property
    def calibration(self) -> CalibrationSet | None:
        """The searches that the threshold was chosen on, None if the bundle stores none."""
        with _intact(self.path / CALIBRATION):
            return CalibrationSet.unpack(self.read(CALIBRATION)) if CALIBRATION in self.manifest["files"] else None

    @cached_property
    def fitted(self) -> Fitted | None:
        """Return what the model was fitted on, None if the bundle does not record it."""
        with _intact(self.path / FITTED):
            return Fitted.unpack(self.read(FITTED)) if FITTED in self.manifest["files"] else None

    @cached_property
    def draws_id(self) -> str:
        """An identifier of everything that draws depend on. Bundles that differ only in the threshold share it."""
        names = (CALIBRATION, FITTED, CALIBRATION_FEATURES, FOLDS)
        files = [self.manifest["files"].get(name, "") for name in names] + ([self.text_key] if self.text_key else [])
        distance = [self.item_distance.key, "" if self.verifier is None else self.verifier.key]
        return _hash(json.dumps([self.embedding_id, *distance, *files]).encode())

    @property
    def folds_key(self) -> str:
        """The hash of the fold models, "" if the model was not cross-fitted."""
        return str(self.manifest["files"].get(FOLDS, ""))

    @property
    def text_key(self) -> str:
        """A key of the text tower and its tokenizer, "" if the bundle has no text tower."""
        files = self.manifest["files"]
        return files[TEXT] + files.get(TOKENIZER, "") if TEXT in files else ""

    def text_embedder(self, *, threads: int = 1) -> TextEmbedder:
        """Return an embedder that runs the bundle's text tower, in fp32 on the CPU.

        Raises InvalidParameter if the bundle has none, and MissingDependency without the extra `text`.
        """
        if not self.text_key:
            again = command("export", "--pretrained", "openai/clip-vit-base-patch32", "-o", "BUNDLE")
            raise InvalidParameter(
                "bundle",
                "have a text tower for searches by words",
                "a model of photos alone",
                remedy=f"Export a model that has one, such as CLIP or SigLIP (`{again}`), and index the photos with it",
            )
        return TextEmbedder(self.read(TEXT), self.read(TOKENIZER), threads=threads)

    def folds_embedder(self, *, threads: int = 1) -> Embedder:
        """Return an embedder that runs the fold models, in fp32 on the CPU.

        A vector is that of all fold models one after the other, scaled to length one.
        """
        return Embedder(self.read(FOLDS), self.preprocessing, threads=threads)

    def embedder(self, *, threads: int = 1) -> Embedder:
        """Return an embedder that runs the bundle's model.

        Raises MissingDependency if the model's execution provider is not installed, and BundleError if this machine
        computes different vectors from the one that exported the bundle.
        """
        embedder = Embedder(
            self.read(MODEL),
            self.preprocessing,
            threads=threads,
            provider=self.provider,
            precision=self.precision,
            describer=self.verifier,
            weights=self.read(WEIGHTS) if WEIGHTS in self.manifest["files"] else None,
        )
        if embedder.dim != self.dim:
            raise BundleCorrupt(
                f"the model of {self.path} gives {embedder.dim} numbers, its manifest says {self.dim}",
                remedy="Export the bundle again",
            )
        if GOLDEN in self.manifest["files"]:
            with _intact(self.path / GOLDEN):
                check_golden(embedder, self.read(GOLDEN))
        return embedder


@contextmanager
def _intact(file: Path) -> Iterator[None]:
    """Turn the errors of reading what a file of a bundle holds into BundleCorrupt."""
    try:
        yield
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise BundleCorrupt(f"{file} is damaged: {error!r}", remedy="Export the bundle again") from error


def write_bundle(
    path: str | Path,
    *,
    model: Path,
    preprocessing: Preprocessing,
    dim: int,
    operating_point: Point,
    item_distance: ItemDistance | None = None,
    precision: str = FP32,
    provider: str = CPU,
    evidence: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Bundle:
    """Write a new bundle and open it.

    Raise BundleError if the path exists, and InvalidParameter for a text tower of another dimension.

    Parameters
    ----------
    item_distance:
        Constants of the item distance. The default constants compare details if `files` has a verifier.
    precision, provider:
        Precision and execution provider that the threshold was measured with.
    """
    path = Path(path)
    check_new(path)
    contents = {MODEL: model.read_bytes(), **(files or {})}
    if TEXT in contents and (own := TextEmbedder(contents[TEXT], contents[TOKENIZER]).dim) != dim:
        rule = f"give vectors of {dim} numbers, as the model of photos does: both towers are trained together"
        raise InvalidParameter(TEXT, rule, own, remedy="Take the text tower of the same model, or leave it out")
    distance = item_distance or ItemDistance.default(verified=VERIFICATION in contents)
    deciding = {"preprocessing": preprocessing.to_dict(), "precision": precision, "provider": provider, "dim": dim}
    made_of = {
        name: _hash(contents[file]) for name, file in (("model", MODEL), ("weights", WEIGHTS)) if file in contents
    }
    manifest: dict[str, Any] = {
        "format_version": FORMAT,
        "embedding_id": _hash(_canonical({**made_of, **deciding})),
        **deciding,
        "item_distance": distance.to_dict(),
        "looks": TWICE,
        "operating_point": operating_point.to_dict(),
        "evidence": dict(evidence or {}),
        "files": {name: _hash(data) for name, data in sorted(contents.items())},
    }
    manifest["bundle_id"] = _bundle_id(manifest)
    manifest[SEAL] = _hash(_canonical(manifest))
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    _write_folder(path, {**contents, MANIFEST: text.encode()})
    return Bundle.open(path)


def _bundle_id(manifest: Mapping[str, Any]) -> str:
    """Return the hash of what determines the answers of a bundle."""
    deciding = {name: value for name, value in manifest.items() if name != "evidence"}
    deciding["files"] = {name: value for name, value in manifest["files"].items() if name not in (GOLDEN, REPORT)}
    return _hash(_canonical(deciding))


def _write_folder(path: Path, contents: Mapping[str, bytes]) -> None:
    """Write files to a temporary directory, sync them and rename it."""
    with naming(path), working_folder(path) as folder:
        aside = folder / "bundle"
        aside.mkdir()
        for name, data in contents.items():
            with (aside / name).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        aside.rename(path)
        sync_folder(path.parent)


def check_new(path: Path) -> None:
    """Raise BundleError if a path exists, and OSError if it cannot be written."""
    if path.exists():
        raise BundleError(f"{path} exists and bundles are immutable", remedy="Choose a new name")
    check_place(path)


def require_match(bundle: Bundle, gallery: AnyGallery, *, to_add: bool = False) -> None:
    """Raise BundleMismatch if a bundle cannot search a gallery or, with `to_add`, cannot add photos to it.

    A bundle that does not verify matches can search a gallery with local features, but cannot add photos, because they
    would have none.
    """
    if gallery.embedding_id != bundle.embedding_id:
        raise _mismatch(bundle, f"the gallery {gallery.path} was made by another model than the bundle {bundle.path}")
    if gallery.features_key != bundle.features_key and (bundle.features_key or to_add):
        raise _mismatch(
            bundle, f"the gallery {gallery.path} keeps other local features than {bundle.path} finds, or none"
        )


def _mismatch(bundle: Bundle, message: str) -> BundleMismatch:
    again = f"{command('index', bundle.path, 'PHOTOS', '-o', 'NEW_GALLERY')}"
    return BundleMismatch(message, remedy=f"Index the photos again: {again}")


def _read_manifest(path: Path) -> dict[str, Any]:
    if not (path / MANIFEST).is_file():
        new = "BUNDLE" if path.exists() else path  # never the name of something else
        made = command("export", "RUN", "-o", new)
        raise BundleError(f"{path} is not a bundle", remedy=f"`{made}` makes one")
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_bytes())
        version = manifest["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BundleCorrupt(f"{path / MANIFEST} is damaged: {error!r}", remedy="Export the bundle again") from error
    check_format(version, FORMAT, path, BundleError, remedy="Export it again")
    rest = {key: value for key, value in manifest.items() if key != SEAL}
    if _hash(_canonical(rest)) != manifest.get(SEAL):
        raise BundleCorrupt(
            f"{path / MANIFEST} was changed after it was written",
            remedy="Export the bundle again: a threshold is measured, never edited",
        )
    return manifest


def _canonical(values: Mapping[str, Any]) -> bytes:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode(errors="surrogatepass")  # JSON may hold halves of characters


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class CalibrationSet:
    """The searches that a bundle was calibrated on."""

    scores: SearchScores
    photo_ids: NDArray[np.str_]  # (n,)
    certainties: NDArray[np.float32]  # (n,)
    vectors: NDArray[np.float32]  # (n, d) of the query photos
    appearances: NDArray[np.float32]  # (n, 3) brightness, contrast, sharpness
    gallery: Probes  # the photos that were searched
    looks: NDArray[np.float32] | None = None  # (n, d) of the second looks, zeros where there is none

    def pack(self) -> bytes:
        """Serialize as npz."""
        scores, gallery, file = self.scores, self.gallery, io.BytesIO()
        looks: dict[str, Any] = {} if self.looks is None else {"look": self.looks, "gallery_look": gallery.looks}
        groups: dict[str, Any] = {"gallery_group": np.array(gallery.groups, dtype=str)} if any(gallery.groups) else {}
        np.savez_compressed(
            file,
            own=scores.own,
            impostor=scores.impostor,
            wrong=scores.misled,
            item_id=scores.labels.astype(str),
            photo_id=self.photo_ids.astype(str),
            certainty=self.certainties,
            vector=self.vectors,
            appearance=self.appearances,
            gallery_items=np.array(scores.gallery_items),
            gallery_vector=gallery.vectors,
            gallery_item=np.array(gallery.items, dtype=str),
            gallery_photo=np.array(gallery.ids, dtype=str),
            **groups,
            **looks,
        )
        return file.getvalue()

    @classmethod
    def unpack(cls, data: bytes) -> CalibrationSet:
        """Read the output of `pack`."""
        file = load_arrays(data)
        scores = SearchScores(
            file["item_id"], file["own"], file["impostor"], int(file["gallery_items"]), wrong=file["wrong"]
        )
        items = file["gallery_item"]
        groups = file.get("gallery_group", np.full(len(items), ""))
        gallery = Probes(
            file["gallery_vector"],
            file["gallery_photo"].tolist(),
            items.tolist(),
            groups=groups.tolist(),
            looks=file.get("gallery_look"),
        )
        queries = (scores.own, scores.impostor, scores.misled, file["photo_id"], file["certainty"], file["vector"])
        lengths = {len(scores.labels), *map(len, queries), len(file["appearance"])}
        if len(lengths) > 1 or len({len(gallery.vectors), len(gallery.ids), len(gallery.items), len(groups)}) > 1:
            raise ValueError("its arrays differ in length")
        numbers = (scores.own, scores.impostor, scores.misled, file["certainty"], file["vector"], gallery.vectors)
        if any(array.dtype.kind != "f" or np.isnan(array).any() for array in numbers):
            raise ValueError("it has values that are not numbers")
        texts = (scores.labels, file["photo_id"], items, file["gallery_photo"], groups)
        if any(array.dtype.kind != "U" or array.ndim != 1 for array in texts):
            raise ValueError("it has ids that are not texts")
        if file["vector"].ndim != 2 or file["vector"].shape[1:] != gallery.vectors.shape[1:]:
            raise ValueError("its vectors differ in size")
        looks = file.get("look")
        pairs = () if looks is None else ((looks, file["vector"]), (file["gallery_look"], gallery.vectors))
        if any(look.shape != vector.shape for look, vector in pairs):
            raise ValueError("its second looks differ in size")
        return cls(scores, file["photo_id"], file["certainty"], file["vector"], file["appearance"], gallery, looks)


def pack_features(features: Mapping[str, bytes]) -> bytes:
    """Return the features of photos, by photo id, as npz."""
    file = io.BytesIO()
    np.savez(
        file,
        photo_id=np.array(list(features), dtype=str),
        size=np.array([len(content) for content in features.values()], dtype=np.int64),
        content=np.frombuffer(b"".join(features.values()), dtype=np.uint8),
    )
    return file.getvalue()


def unpack_features(data: bytes) -> dict[str, bytes]:
    """Return the features of photos from the output of `pack_features`."""
    arrays = load_arrays(data)
    stops = np.cumsum(arrays["size"])
    parts = np.split(arrays["content"], stops[:-1]) if len(stops) else []
    return {photo_id: part.tobytes() for photo_id, part in zip(arrays["photo_id"].tolist(), parts, strict=True)}
