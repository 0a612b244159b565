"""Tiny models with two towers and random weights, as `transformers` writes them, with a tiny tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers as t
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

SIDE = 32
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
VISION = SIZES | {"image_size": SIDE, "patch_size": 8}
START, END = 0, 1
LENGTHS = {"clip": 20, "siglip": 16}  # tokens
KNOWN = ["red kettle with a bird", "blue mug", "teapot of glass", "a small brass lamp"]
PROCESSOR = {"size": {"height": SIDE, "width": SIDE}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def write_two_towers(folder: Path, family: str, *, tokenizer: bool = True) -> str:
    """Write a tiny CLIP or SigLIP and return its folder as a name."""
    torch.manual_seed(0)
    ends = {"bos_token_id": START, "eos_token_id": END, "pad_token_id": END}
    text = SIZES | ends | {"vocab_size": 400, "max_position_embeddings": LENGTHS[family]}
    if family == "clip":
        model: Any = t.CLIPModel(t.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=16))
    else:
        model = t.SiglipModel(t.SiglipConfig(text_config=text, vision_config=VISION))
    model.eval().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    if tokenizer:
        made = tiny_tokenizer(starts=family == "clip")
        fast = t.PreTrainedTokenizerFast(tokenizer_object=made, **dict.fromkeys(("eos_token", "pad_token"), "<end>"))
        fast.save_pretrained(folder)
    return str(folder)


def tiny_tokenizer(*, starts: bool) -> Tokenizer:
    """Return a byte-level tokenizer, which reads every script, with an end after each text and perhaps a start."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    ends = ["<start>", "<end>"]
    made.train_from_iterator(
        KNOWN, trainers.BpeTrainer(vocab_size=400, special_tokens=ends, initial_alphabet=alphabet, show_progress=False)
    )
    around = "<start> $A <end>" if starts else "$A <end>"
    made.post_processor = processors.TemplateProcessing(single=around, special_tokens=[("<start>", 0), ("<end>", 1)])
    return made
