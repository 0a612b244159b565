"""Photos in, unit vectors out: the ONNX model of a bundle, without torch.

Shapes: n photos, d = embedding size.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import BundleError, InvalidParameter, MissingDependency, RetrievalError
from .images import Preprocessing, Source, open_image, see, to_tensor

if TYPE_CHECKING:
    import onnxruntime

NO_FOLDER = "/nonexistent"  # where weights outside of a model would lie: its hash says nothing of them


@dataclass(frozen=True)
class Embeddings:
    """Unit vectors (n, d), and how certain the model is of each: the norm before scaling (n,)."""

    vectors: NDArray[np.float32]
    certainties: NDArray[np.float32]


class Embedder:
    """Runs a model with the input `pixels` (n, 3, size, size) and the outputs `embedding` and `certainty`.

    Safe for any number of threads: a session may be run by several at once.
    """

    def __init__(
        self,
        model: Path | bytes,
        preprocessing: Preprocessing,
        *,
        threads: int = 1,
        providers: Sequence[str] | None = None,
    ) -> None:
        if threads < 1:
            raise InvalidParameter("threads", "be at least 1", threads)
        self.preprocessing = preprocessing
        self._session = _open_session(model, threads, providers)
        outputs = {output.name: output for output in self._session.get_outputs()}
        inputs = [entry.name for entry in self._session.get_inputs()]
        if inputs != ["pixels"] or not {"embedding", "certainty"} <= outputs.keys():
            raise BundleError(
                f"the model maps {', '.join(inputs)} to {', '.join(outputs)}",
                remedy="It needs the input pixels and the outputs embedding and certainty: export it again",
            )
        self.dim = int(outputs["embedding"].shape[1])

    @property
    def providers(self) -> list[str]:
        """The execution providers in use, first choice first."""
        return list(self._session.get_providers())

    def embed(self, images: Sequence[Source]) -> Embeddings:
        """Return the embeddings of encoded images, paths or PIL images; an ImageRefused names what is wrong."""
        return self.embed_pixels(self.read(images))

    def read(self, images: Sequence[Source]) -> NDArray[np.uint8]:
        """Return what the model sees of the images, uint8 (n, size, size, 3)."""
        size = self.preprocessing.size
        squares = [see(open_image(image, min_side=self.preprocessing.min_side), self.preprocessing) for image in images]
        return np.stack(squares) if squares else np.zeros((0, size, size, 3), np.uint8)

    def embed_pixels(self, pixels: NDArray[np.uint8]) -> Embeddings:
        """Return the embeddings of squares uint8 (n, size, size, 3)."""
        if not len(pixels):
            return Embeddings(np.zeros((0, self.dim), np.float32), np.zeros(0, np.float32))
        inputs = {"pixels": to_tensor(pixels, self.preprocessing)}
        vectors, certainties = self._session.run(["embedding", "certainty"], inputs)
        if not np.isfinite(vectors).all() or np.abs(np.linalg.norm(vectors, axis=1) - 1).max() > 1e-3:
            raise RetrievalError(
                "the model gave a vector that is not finite and of length one",
                remedy="`retrieval doctor` verifies the bundle",
            )
        return Embeddings(vectors, certainties)


def import_onnxruntime() -> Any:
    """Import ONNX Runtime without its telemetry, which would write files and tell its makers."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependency("onnxruntime is not installed", remedy="pip install 'retrieval[serve]'") from error
    return onnxruntime


def _open_session(model: Path | bytes, threads: int, providers: Sequence[str] | None) -> onnxruntime.InferenceSession:
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # leave idle cores to others
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", NO_FOLDER)
    available = onnxruntime.get_available_providers()
    preferred = providers or [p for p in ("CUDAExecutionProvider", "CPUExecutionProvider") if p in available]
    for provider in preferred:
        if provider not in available:
            raise InvalidParameter("providers", f"be among {', '.join(available)}", provider)
    try:
        return onnxruntime.InferenceSession(
            model if isinstance(model, bytes) else str(model), options, providers=list(preferred)
        )
    except Exception as error:  # ONNX Runtime raises many types, all of them for a bad model
        raise BundleError(f"the model cannot be loaded: {error}", remedy="Export it again") from error
