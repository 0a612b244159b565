"""The text towers of checkpoints with two towers (CLIP, SigLIP), and their tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from .hub import is_local
from .transformers_backbone import errors_only, vector_of

TOWERS = {
    "clip": "CLIPTextModelWithProjection",
    "metaclip_2": "MetaClip2TextModelWithProjection",
    "siglip": "SiglipTextModel",
}
FILLED = "siglip"  # the family whose towers read texts of full length, in lower case


class TextTower(nn.Module):
    """Embeds token ids (n, t) as raw vectors (n, d); with the tokenizer of the checkpoint.

    Parameters
    ----------
    tokenizer:
        A tokenizer of `transformers`.
    length:
        Largest number of tokens of a text.
    is_filled:
        Whether shorter texts are filled up to this length.
    """

    def __init__(self, network: nn.Module, tokenizer: Any, *, length: int, is_filled: bool) -> None:
        super().__init__()
        self.network = network
        self.tokenizer, self.length, self.is_filled = tokenizer, length, is_filled

    def forward(self, ids: Tensor) -> Tensor:
        """Return the raw vectors."""
        return vector_of(self.network(input_ids=ids))

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the unit vectors (n, d) of texts, whose tokens `transformers` makes."""
        padding = "max_length" if self.is_filled else False
        texts = [text.lower() for text in texts] if self.is_filled else texts
        made = (
            self.tokenizer([text], truncation=True, max_length=self.length, padding=padding, return_tensors="pt")
            for text in texts
        )
        return np.asarray(F.normalize(torch.cat([self(tokens.input_ids) for tokens in made]), dim=1))

    def pack_tokenizer(self) -> bytes:
        """Return tokenizer.json with the length of texts, and with lower case and filling where the tower needs it."""
        from tokenizers import Tokenizer, normalizers

        known, packed = self.tokenizer, Tokenizer.from_str(self.tokenizer.backend_tokenizer.to_str())
        packed.enable_truncation(self.length)
        packed.no_padding()
        if self.is_filled:
            packed.enable_padding(
                direction=known.padding_side, length=self.length, pad_id=known.pad_token_id, pad_token=known.pad_token
            )
            packed.normalizer = normalizers.Sequence([normalizers.Lowercase(), *filter(None, [packed.normalizer])])
        return packed.to_str().encode()


def load_text_tower(name: str) -> tuple[TextTower | None, str]:
    """Return the text tower of a checkpoint, or None and why it cannot be used, "" for a model of photos alone."""
    import transformers

    local = {"local_files_only": is_local(name)}
    config = transformers.AutoConfig.from_pretrained(name, **local)
    own = getattr(config, "text_config", None)
    if config.model_type not in TOWERS or own is None:
        return None, ""
    own.projection_dim = getattr(config, "projection_dim", None)  # of both towers
    loader = getattr(transformers, TOWERS[config.model_type])
    with errors_only():
        try:
            tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(name, **local)
        except (OSError, ValueError):
            return None, "the checkpoint has no tokenizer.json"
        network, loaded = loader.from_pretrained(name, config=own, output_loading_info=True, **local)
    if loaded["missing_keys"]:
        return None, "the checkpoint lacks some of its weights"
    is_filled = config.model_type == FILLED
    return TextTower(network.eval(), tokenizer, length=own.max_position_embeddings, is_filled=is_filled), ""
