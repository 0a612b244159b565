"""A bundle: the directory that decides. Model, preprocessing, threshold and evidence, with a hash of everything.

bundle/
  manifest.json   format version, ids, preprocessing, operating point, evidence, sha256 of every file
  model.onnx      pixels (n, 3, size, size) to embedding (n, d) and certainty (n,)
  cohort.npz      where the distance is corrected by local density: what it is measured against
  calibration.npz the searches that the threshold was chosen on
  golden.npz      what the model made of a picture of numbers where it was exported
  report.html     pictures of what the threshold does, and how far to believe it
  signature.json  where it is signed: by which key, and the signature of bundle_id

Two ids. `embedding_id` is the hash of what decides a vector (model, preprocessing, precision, dimension, and the
provider that runs it, where that is not the CPU): galleries carry it. `bundle_id` is the hash of all: it decides an
answer. A bundle is immutable: written aside, synced, then renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from index.distance import PLAIN, Measure
from index.shell import command
from retrieval.errors import BundleCorrupt, BundleError
from retrieval.images import Preprocessing
from retrieval.threshold.calibrate import OperatingPoint

from .embedder import Embedder
from .golden import check_golden
from .local_density import LocalDensity, pack_cohort, unpack_measure
from .providers import CPU, FP32
from .signing import SIGNATURE, check_signature

FORMAT = 2
MANIFEST, MODEL, COHORT = "manifest.json", "model.onnx", "cohort.npz"
CALIBRATION, REPORT, GOLDEN = "calibration.npz", "report.html", "golden.npz"


class Bundle:
    """An opened bundle. `Bundle.open` checks it; nothing of it can be changed."""

    def __init__(
        self,
        path: Path,
        manifest: Mapping[str, Any],
        *,
        trust: Sequence[str | Path] = (),
        signed_by: str | None = None,
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.trust = tuple(trust)  # files of public keys
        self.signed_by = signed_by  # fingerprint of the trusted key; None where no key was asked for
        self.bundle_id = str(manifest["bundle_id"])
        self.embedding_id = str(manifest["embedding_id"])
        self.dim = int(manifest["dim"])
        self.precision = str(manifest.get("precision", FP32))
        self.provider: str | None = manifest.get("provider")  # None: written before bundles named one
        self.preprocessing = Preprocessing.from_dict(manifest["preprocessing"])
        self.operating_point = OperatingPoint.from_dict(manifest["operating_point"])
        self.threshold = self.operating_point.threshold
        cohort = self.read(COHORT) if COHORT in manifest["files"] else None
        self.measure = unpack_measure(manifest["distance"], cohort)

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = True, trust: Sequence[str | Path] = ()) -> Bundle:
        """Open a bundle and check the manifest, and with `verify` every file, against their hashes.

        With files of public keys as `trust` one of the keys must have signed it, too, and every file is checked.
        Raises BundleError where there is none or it has another format, BundleCorrupt where something changed,
        BundleUntrusted where none of the keys signed it.
        """
        path = Path(path).resolve()  # a link may lead elsewhere tomorrow
        manifest = _read_manifest(path)
        signer = check_signature(path, str(manifest["bundle_id"]), trust) if trust else None
        bundle = cls(path, manifest, trust=trust, signed_by=None if signer is None else signer.fingerprint)
        for name in manifest["files"] if verify or trust else ():
            bundle.read(name)
        return bundle

    def read(self, name: str) -> bytes:
        """Return a file of the bundle; BundleCorrupt where it is not the one that was written."""
        try:
            data = (self.path / name).read_bytes()
        except OSError as error:
            raise BundleCorrupt(
                f"{self.path / name} cannot be read: {error.strerror}", remedy="Export it again"
            ) from error
        if _hash(data) != self.manifest["files"][name]:
            raise BundleCorrupt(
                f"{self.path / name} is not the file that was written", remedy="Export the bundle again"
            )
        return data

    @property
    def further_files(self) -> list[str]:
        """The names of the files beside manifest, model and cohort."""
        return [name for name in self.manifest["files"] if name not in (MODEL, COHORT)]

    def embedder(self, *, threads: int = 1) -> Embedder:
        """Return the model, ready to run.

        Raises MissingDependency where its provider is not installed here, BundleError where this machine makes other
        vectors than the one that exported it.
        """
        embedder = Embedder(
            self.read(MODEL),
            self.preprocessing,
            threads=threads,
            provider=self.provider,
            precision=self.precision,
        )
        if GOLDEN in self.manifest["files"]:
            check_golden(embedder, self.read(GOLDEN))
        return embedder


def write_bundle(
    path: str | Path,
    *,
    model: Path,
    preprocessing: Preprocessing,
    dim: int,
    operating_point: OperatingPoint,
    measure: Measure = PLAIN,
    precision: str = FP32,
    provider: str | None = CPU,
    evidence: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Bundle:
    """Write a new bundle and open it; an existing path is refused.

    Parameters
    ----------
    precision, provider:
        What the threshold was measured with; None as provider is that of a bundle that names none.
    """
    path = Path(path)
    if path.exists():
        raise BundleError(f"{path} exists and bundles are immutable", remedy="Choose a new name")
    for name in files or {}:
        if Path(name).name != name or name in (MANIFEST, MODEL, COHORT, SIGNATURE):
            raise BundleError(f"{name!r} is no name for a further file of a bundle")
    contents = {MODEL: model.read_bytes(), **(files or {})}
    if isinstance(measure, LocalDensity):
        contents[COHORT] = pack_cohort(measure.cohort)
    deciding = {"preprocessing": preprocessing.to_dict(), "precision": precision, "dim": dim}
    named = {} if provider is None else {"provider": provider}
    beyond = {} if provider == CPU else named  # galleries made before providers were named are the CPU's
    manifest: dict[str, Any] = {
        "format_version": FORMAT,
        "embedding_id": _hash(_canonical({"model": _hash(contents[MODEL]), **deciding, **beyond})),
        **deciding,
        **named,
        "distance": measure.to_dict() if isinstance(measure, LocalDensity) else {"form": PLAIN.key},
        "operating_point": operating_point.to_dict(),
        "evidence": dict(evidence or {}),
        "files": {name: _hash(data) for name, data in sorted(contents.items())},
    }
    manifest["bundle_id"] = _hash(_canonical(manifest))
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        aside.mkdir(parents=True)
        text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
        for name, data in {**contents, MANIFEST: text.encode()}.items():
            with (aside / name).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        aside.rename(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Bundle.open(path)


def _read_manifest(path: Path) -> dict[str, Any]:
    if not (path / MANIFEST).is_file():
        raise BundleError(
            f"{path} is not a bundle", remedy=f"`{command('export', 'RUN', '-o', path, '--allow-estimate')}` makes one"
        )
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_bytes())
        version, claimed = manifest["format_version"], manifest["bundle_id"]
    except (ValueError, KeyError, TypeError) as error:
        raise BundleCorrupt(f"{path / MANIFEST} is damaged: {error!r}", remedy="Export the bundle again") from error
    if version != FORMAT:
        raise BundleError(f"{path} has format {version}, this program reads {FORMAT}", remedy="Export it again")
    rest = {key: value for key, value in manifest.items() if key != "bundle_id"}
    if _hash(_canonical(rest)) != claimed:
        raise BundleCorrupt(
            f"{path / MANIFEST} was changed after it was written",
            remedy="Export the bundle again: a threshold is measured, never edited",
        )
    return manifest


def _canonical(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
