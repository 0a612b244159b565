"""SigLIP 2 with flexible resolution ("NaFlex"), whose network reads any number of patches; here, those of a square."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

MODEL = "siglip2_vision_model"


def applies(network: nn.Module) -> bool:
    """Return whether a network reads patches instead of an image."""
    config: Any = network.config
    return bool(config.model_type == MODEL)


def outputs(network: Any, pixels: Tensor) -> Any:
    """Return the last hidden state and the pooled output of normalised pixels (n, 3, h, w)."""
    side = network.config.patch_size
    rows, columns = pixels.shape[-2] // side, pixels.shape[-1] // side
    patches = pixels[:, :, : rows * side, : columns * side]
    patches = patches.reshape(-1, 3, rows, side, columns, side).permute(0, 2, 4, 3, 5, 1)
    embedded = network.embeddings.patch_embedding(patches.reshape(-1, rows * columns, 3 * side * side))
    hidden = network.encoder(inputs_embeds=embedded + _positions(network.embeddings, rows, columns)).last_hidden_state
    hidden = network.post_layernorm(hidden)
    return SimpleNamespace(
        last_hidden_state=hidden, pooler_output=network.head(hidden, None) if network.use_head else None
    )


def _positions(embeddings: Any, rows: int, columns: int) -> Tensor:
    """Return the position embeddings (rows · columns, c), resized as the network does."""
    table: Tensor = embeddings.position_embedding.weight
    side = embeddings.position_embedding_size
    if (rows, columns) == (side, side):
        return table
    grid = table.T.reshape(1, -1, side, side)
    resized = F.interpolate(grid, size=(rows, columns), mode="bilinear", align_corners=False, antialias=True)
    return resized.flatten(2)[0].T
