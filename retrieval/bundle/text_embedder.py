"""The `TextEmbedder`: turns texts into vectors with the text tower of a bundle, beside the photos' vectors.

Shapes: n texts, t tokens, d = embedding size.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import BundleError, DataError, InvalidParameter, RetrievalError, importing
from retrieval.files import naming

from .embedder import Embeddings, session_options
from .providers import CPU, PROVIDERS, import_onnxruntime

TEXT, TOKENIZER = "text.onnx", "tokenizer.json"  # files of a bundle
MOST_CHARACTERS = 1000  # in a text
MOST_TOKENS = 10_000  # of a text, with those that fill it up
OUTPUTS = ("embedding", "text_embeds", "pooler_output")  # names of the vector, the best first
AGAIN = "Export the model with its text tower again"


class TextEmbedder:
    """Runs a text tower: an ONNX model of token ids, int64 (n, t), and the tokenizer that makes them.

    Thread-safe. Each text runs alone, so its vector does not depend on other texts. Texts of more tokens than the tower
    takes are cut off, as they were when it was trained.

    Parameters
    ----------
    model:
        ONNX model with the input `input_ids` and, optionally, `attention_mask`, and a vector (n, d) of any length.
    tokenizer:
        The tokenizer as the `tokenizers` library writes it, with the number of tokens (`truncation`), and `padding`
        where the tower needs texts of equal length.

    Raises
    ------
    MissingDependency
        If the extra `text` is not installed.
    BundleError
        If the model or the tokenizer cannot be used.
    """

    def __init__(self, model: bytes, tokenizer: bytes, *, threads: int = 1) -> None:
        self._tokenizer = _tokenizer(tokenizer)
        self._tokenizer.encode_special_tokens = True  # "<end>" in a text is a text
        try:
            self._session = import_onnxruntime().InferenceSession(
                model, session_options(threads), providers=[PROVIDERS[CPU].engine]
            )
            self._inputs, outputs = (
                [entry.name for entry in entries]
                for entries in (self._session.get_inputs(), self._session.get_outputs())
            )
            self._output = next(name for name in OUTPUTS if name in outputs)
            self.dim = self._vector("a").shape[-1]
        except Exception as error:  # ONNX Runtime raises many types
            needed = f"It needs a limit of tokens, input_ids, perhaps attention_mask, and one of {', '.join(OUTPUTS)}"
            raise BundleError(f"the text tower cannot be used: {error!r}", remedy=f"{needed}. {AGAIN}") from error

    def embed(self, texts: Sequence[str]) -> Embeddings:
        """Return the vectors of texts; raise InvalidParameter for one that cannot be used (`checked_text`)."""
        vectors = np.array([self._vector(checked_text(text)) for text in texts], np.float32).reshape(-1, self.dim)
        lengths = np.linalg.norm(vectors, axis=1)
        if not ((lengths > 0) & np.isfinite(lengths)).all():
            raise RetrievalError("the text tower gave a vector without a direction", remedy=AGAIN)
        return Embeddings(vectors / lengths[:, None], lengths)

    def _vector(self, text: str) -> NDArray[np.float32]:
        """Return the vector (d,) of a text, of any length."""
        encoded = self._tokenizer.encode(text)
        if not encoded.ids:
            raise InvalidParameter("text", "have words that the model knows", text)
        values = {"input_ids": encoded.ids, "attention_mask": encoded.attention_mask}
        feed = {name: np.array([values[name]], dtype=np.int64) for name in self._inputs}
        ((vector,),) = self._session.run([self._output], feed)
        return np.asarray(vector, dtype=np.float32)


def checked_text(text: str) -> str:
    """Return a text in Unicode's composed form (NFC), with a space for each control character.

    Raises InvalidParameter for anything but a text of 1 to MOST_CHARACTERS characters.
    """
    plain = ""
    if isinstance(text, str) and len(text) <= MOST_CHARACTERS:
        signs = (" " if unicodedata.category(sign) in ("Cc", "Cs") else sign for sign in text)
        plain = unicodedata.normalize("NFC", "".join(signs)).strip()
    if not plain:
        raise InvalidParameter("text", f"be a text of 1 to {MOST_CHARACTERS:,} characters", text)
    return plain


def text_files(path: Path) -> dict[str, bytes]:
    """Return the files of a bundle for an existing text tower, by name.

    The tokenizer.json lies beside the ONNX file or in the folder above. Where it does not say how many tokens the tower
    takes, and how shorter texts are filled up, the tokenizer_config.json beside it does.

    Raises
    ------
    DataError
        If there is no tokenizer, or nothing says how many tokens the tower takes.
    BundleError, MissingDependency
        If the tower cannot be used (`TextEmbedder`).
    """
    file = next((file for folder in path.parents[:2] if (file := folder / TOKENIZER).is_file()), None)
    if file is None:
        raise DataError(f"there is no {TOKENIZER} beside {path}", remedy="Put the one of the model there")
    with naming(path):
        model, made = path.read_bytes(), _tokenizer(file.read_bytes())
    beside = file.with_name("tokenizer_config.json")
    config = _config(beside) if beside.is_file() else {}
    length, pad = (made.truncation or {}).get("max_length", config.get("model_max_length")), config.get("pad_token")
    if not isinstance(length, int) or not 0 < length <= MOST_TOKENS:  # `transformers` writes 1e30 for an unknown one
        remedy = f"Put the model's {beside.name} with model_max_length beside it"
        raise DataError(f"{file} does not say how many tokens the text tower takes", remedy=remedy)
    made.enable_truncation(length)
    pad = pad.get("content") if isinstance(pad, dict) else pad
    if made.padding is None and pad is not None:
        number = made.token_to_id(pad) if isinstance(pad, str) else None
        if number is None:
            raise DataError(f"{file} has no token {pad!r} to fill texts up", remedy=f"Correct pad_token in {beside}")
        made.enable_padding(length=length, pad_id=number, pad_token=pad)
    contents = {TEXT: model, TOKENIZER: made.to_str().encode()}
    TextEmbedder(contents[TEXT], contents[TOKENIZER])
    return contents


def _config(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}", remedy="Put the one of the model there") from error
    if not isinstance(values, dict):
        raise DataError(f"{path} holds no values by name", remedy="Put the one of the model there")
    return values


def _tokenizer(content: bytes) -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # texts come one by one
    with importing("tokenizers", "text", called="tokenizers, which splits texts into tokens,"):
        import tokenizers
    try:
        made = tokenizers.Tokenizer.from_str(content.decode())
        padding = made.padding or {}
        if max(padding.get("length") or 0, padding.get("pad_to_multiple_of") or 0) > MOST_TOKENS:
            raise ValueError(f"it fills texts up to more than {MOST_TOKENS:,} tokens")
        return made
    except Exception as error:  # the library raises Exception itself
        raise BundleError(f"the tokenizer cannot be read: {error}", remedy=AGAIN) from error
