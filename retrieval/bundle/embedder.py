"""The `Embedder`: turns photos into vectors with a bundle's ONNX model, and into local features, without torch.

Shapes: n photos, d = embedding size.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from index.files import load_arrays
from retrieval.errors import BundleError, InvalidParameter, RetrievalError, command
from retrieval.images import Preprocessing, Source, center_crop_resize, open_image, to_tensor

from .providers import (
    BATCH,
    CPU,
    FP32,
    GPU_PROVIDERS,
    Provider,
    engines_of,
    failure,
    find_provider,
    import_onnxruntime,
    missing,
)

if TYPE_CHECKING:
    import onnxruntime

ENERGY = "energy"  # output with the energies of photos (`retrieval.encoders.energy`), of models that pool a feature map
ALONE = "photos_run_alone"  # model metadata: the number of photos of each run, where it matters or is fixed
NO_FOLDER = "/nonexistent"  # forbids external weights in files, which no hash covers
WEIGHTS = "model.onnx.data"  # external weights of a model that has them, as the model names them


@dataclass(frozen=True)
class Embeddings:
    """Unit vectors (n, d) and their certainties (n,), the norms before scaling."""

    vectors: NDArray[np.float32]
    certainties: NDArray[np.float32]
    energies: NDArray[np.float32] | None = None  # (n, g, g) where the model responds, None if it does not tell

    def where(self, rows: slice | Sequence[int]) -> Embeddings:
        """Return the embeddings of some photos."""
        energies = None if self.energies is None else self.energies[rows]
        return Embeddings(self.vectors[rows], self.certainties[rows], energies)


class Describer(Protocol):
    """Finds the local features of photos. Thread-safe."""

    def describe(self, image: Image.Image) -> bytes:
        """Return the local features of an upright RGB image, packed."""


class Embedder:
    """Runs an ONNX model with the input `pixels` (n, 3, size, size) and the outputs `embedding` and `certainty`.

    Thread-safe: several threads may run the same session at once.

    Parameters
    ----------
    provider:
        Execution provider (`providers`).
    precision:
        Precision of the model; some providers need it as an option.
    describer:
        Finds the local features of photos, if the bundle verifies matches.
    weights:
        External weights of the model, if it has them (WEIGHTS).
    """

    def __init__(
        self,
        model: Path | bytes,
        preprocessing: Preprocessing,
        *,
        threads: int = 1,
        provider: str = CPU,
        precision: str = FP32,
        describer: Describer | None = None,
        weights: bytes | None = None,
    ) -> None:
        if threads < 1:
            raise InvalidParameter("threads", "be at least 1", threads)
        self.preprocessing = preprocessing
        self._describer = describer
        options = session_options(threads, weights)
        self._session = _open_session(
            model, options, find_provider(provider), precision=precision, size=preprocessing.size
        )
        outputs = {output.name: output for output in self._session.get_outputs()}
        inputs = [entry.name for entry in self._session.get_inputs()]
        if inputs != ["pixels"] or not {"embedding", "certainty"} <= outputs.keys():
            raise BundleError(
                f"the model maps {', '.join(inputs)} to {', '.join(outputs)}",
                remedy="It needs the input pixels and the outputs embedding and certainty: export it again",
            )
        shape = outputs["embedding"].shape
        if len(shape) != 2 or not isinstance(shape[1], int):
            raise BundleError(f"the model's embedding has the shape {shape}", remedy="It needs (n, d): export it again")
        self.dim = shape[1]
        self._outputs = ["embedding", "certainty", *({ENERGY} & outputs.keys())]
        fixed = self._session.get_modelmeta().custom_metadata_map.get(ALONE, "")
        self._most = max(1, int(fixed[:4])) if fixed[:4].isdecimal() else BATCH
        self._least = self._most if fixed or provider in GPU_PROVIDERS else 1

    @property
    def providers(self) -> list[str]:
        """The execution providers in use, first choice first."""
        return list(self._session.get_providers())

    def embed(self, images: Sequence[Source]) -> Embeddings:
        """Embed images: encoded bytes, paths, PIL images or arrays. Raises ImageRefused if one cannot be used."""
        return self.embed_pixels(self.read(images))

    def read(self, images: Sequence[Source]) -> NDArray[np.uint8]:
        """Decode and preprocess images to uint8 (n, size, size, 3)."""
        size = self.preprocessing.size
        squares = [self.square(self.open(image)) for image in images]
        return np.stack(squares) if squares else np.zeros((0, size, size, 3), np.uint8)

    def open(self, image: Source) -> Image.Image:
        """Decode an image to upright RGB; raise ImageRefused if it cannot be used."""
        return open_image(image, min_side=self.preprocessing.min_side)

    def square(self, image: Image.Image) -> NDArray[np.uint8]:
        """Preprocess an upright RGB image to uint8 (size, size, 3)."""
        return center_crop_resize(image, self.preprocessing)

    def describe(self, image: Image.Image) -> bytes | None:
        """Return the local features of an upright RGB image, None if the bundle does not verify matches."""
        return None if self._describer is None else self._describer.describe(image)

    def embed_pixels(self, pixels: NDArray[np.uint8]) -> Embeddings:
        """Embed preprocessed pixels, uint8 (n, size, size, 3)."""
        if not len(pixels):
            return Embeddings(np.zeros((0, self.dim), np.float32), np.zeros(0, np.float32))
        parts = (pixels[start : start + self._most] for start in range(0, len(pixels), self._most))
        made = [self._run(to_tensor(part, self.preprocessing)) for part in parts]
        vectors, certainties, *energies = (np.concatenate(part) for part in zip(*made, strict=True))
        if not np.isfinite(vectors).all() or np.abs(np.linalg.norm(vectors, axis=1) - 1).max() > 1e-3:
            raise RetrievalError(
                "the model gave a vector that is not finite and of length one",
                remedy=f"`{command('doctor', 'BUNDLE')}` checks the bundle",
            )
        return Embeddings(vectors, certainties, *energies)

    def _run(self, tensor: NDArray[np.float32]) -> Sequence[NDArray[np.float32]]:
        """Return the outputs for a preprocessed tensor (n, 3, size, size), filled up to a run."""
        count = len(tensor)
        if count < self._least:
            tensor = np.concatenate([tensor, np.zeros((self._least - count, *tensor.shape[1:]), tensor.dtype)])
        try:
            return [output[:count] for output in self._session.run(self._outputs, {"pixels": tensor})]
        except Exception as error:  # ONNX Runtime raises many types
            raise RetrievalError(
                f"the model failed: {error}", remedy=f"`{command('doctor', 'BUNDLE')}` checks the bundle"
            ) from error


def session_options(threads: int, weights: bytes | None = None) -> onnxruntime.SessionOptions:
    """Return the options of an ONNX Runtime session: its threads, external weights, no files, no busy waiting."""
    options = import_onnxruntime().SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads sleep instead of spinning
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", NO_FOLDER)
    if weights is not None:
        options.add_external_initializers_from_files_in_memory([WEIGHTS], [weights], [len(weights)])
    return options


def _open_session(
    model: Path | bytes, options: onnxruntime.SessionOptions, provider: Provider, *, precision: str, size: int
) -> onnxruntime.InferenceSession:
    onnxruntime = import_onnxruntime()
    engines = engines_of(provider, precision=precision, size=size, threads=options.intra_op_num_threads)
    try:
        session = onnxruntime.InferenceSession(
            model if isinstance(model, bytes) else str(model),
            options,
            providers=[engine for engine, _ in engines],
            provider_options=[settings for _, settings in engines],
            enable_fallback=0,
        )
    except Exception as error:  # ONNX Runtime raises many types for a bad model
        if failure(provider):
            raise missing(provider) from error
        raise BundleError(f"the model cannot be loaded: {error}", remedy="Export it again") from error
    if session.get_providers()[0] != provider.engine:  # ONNX Runtime fell back silently
        raise missing(provider)
    return session


AGREES = 0.999  # minimum cosine between the expected and the computed vector
PATCHES = 8


def golden_pixels(size: int, *, seed: int = 0) -> NDArray[np.uint8]:
    """Return a synthetic image, a pattern of coloured patches that depends on the seed, uint8 (1, size, size, 3)."""
    patches = np.random.default_rng(seed).integers(0, 256, (PATCHES, PATCHES, 3), dtype=np.uint8)
    places = np.arange(size) * PATCHES // size
    return patches[places][:, places][None]


def pack_golden(embedder: Embedder) -> bytes:
    """Return the golden vector of a model as npz."""
    file = io.BytesIO()
    vectors = embedder.embed_pixels(golden_pixels(embedder.preprocessing.size)).vectors
    np.savez_compressed(file, vector=vectors[0])
    return file.getvalue()


def check_golden(embedder: Embedder, packed: bytes) -> float:
    """Return the cosine between the expected and the computed golden vector; raise BundleError if they differ."""
    expected = load_arrays(packed)["vector"]
    found = embedder.embed_pixels(golden_pixels(embedder.preprocessing.size)).vectors[0]
    cosine = float(found @ expected)
    if not cosine >= AGREES:
        raise BundleError(
            "this machine's vectors differ from those of the machine on which the threshold was measured: the golden "
            f"vector's cosine is {cosine:.4f}, and at least {AGREES:g} is needed",
            remedy="Export the run on a machine like this one, or in fp32",
        )
    return cosine
