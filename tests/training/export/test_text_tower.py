"""Text towers: parity with torch, their tokenizers, and the ways in which a bundle gets one."""

from __future__ import annotations

import json
import shutil
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as t
from click.testing import CliRunner
from tokenizers import Tokenizer

from retrieval.bundle.bundle import Bundle
from retrieval.bundle.text_embedder import MOST_CHARACTERS, TextEmbedder, text_files
from retrieval.cli.main import group
from retrieval.encoders.adapt import Projection
from retrieval.encoders.export import Fit
from retrieval.errors import BundleError, DataError, InvalidParameter
from training.export.pretrained import Pretrained, export_pretrained

from ..two_towers import LENGTHS, write_two_towers

pytestmark = pytest.mark.usefixtures("onnx_written_once")
TEXTS = [
    "red kettle with a bird",
    "A Small BRASS Lamp",
    "чайник с птицей",
    "红色的水壶上有一只鸟",
    "إبريق أحمر عليه طائر",
    "קומקום אדום",
    "लाल केतली",
    "🫖 café",
    "kettle " * 100,
    "a",
]
HOSTILE = [
    "'; DROP TABLE photos; --",
    '{"where": {"$gt": ""}}',
    "\u202eelttek der\u202c",
    "a\x00b\x1b[31m\r\n",
    "<|endoftext|> <end> <start>",
    "\ud800 half",
    "${jndi:ldap://x}",
    "\u200d\ufeff\u0301",
]


@pytest.fixture(scope="module")
def exported(onnx_written_once: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[str, Bundle]]:
    """Return a function that returns the tiny model of a family and its bundle, which is written once."""
    folder, known = tmp_path_factory.mktemp("towers"), dict[str, tuple[str, Bundle]]()

    def made(family: str) -> tuple[str, Bundle]:
        if family not in known:
            name = write_two_towers(folder / family, family)
            known[family] = name, export_pretrained(Pretrained.load(name), folder / f"{family}-bundle")
        return known[family]

    return made


@torch.no_grad()
def by_transformers(name: str, family: str, texts: list[str]) -> np.ndarray:
    """Return unit vectors (n, d) as the model itself computes them from the output of its own tokenizer."""
    model, tokenizer = t.AutoModel.from_pretrained(name).eval(), t.AutoTokenizer.from_pretrained(name)
    tokens = tokenizer(
        texts,
        padding="max_length" if family == "siglip" else True,
        truncation=True,
        max_length=LENGTHS[family],
        return_tensors="pt",
    )
    given = {"input_ids": tokens.input_ids}
    vectors = model.get_text_features(
        **given if family == "siglip" else {**given, "attention_mask": tokens.attention_mask}
    )
    return F.normalize(getattr(vectors, "pooler_output", vectors), dim=1).numpy()


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_texts_of_many_scripts_get_the_vectors_of_the_model_itself(
    exported: Callable[[str], tuple[str, Bundle]], family: str
) -> None:
    name, bundle = exported(family)
    texts = [unicodedata.normalize("NFC", text).strip() for text in TEXTS]
    made = bundle.text_embedder().embed(texts)
    assert made.vectors.shape == (len(texts), bundle.dim)
    assert np.abs(made.vectors - by_transformers(name, family, texts)).max() <= 1e-5
    assert np.abs(np.linalg.norm(made.vectors, axis=1) - 1).max() <= 1e-6
    assert np.array_equal(bundle.text_embedder().embed(texts[3:4]).vectors[0], made.vectors[3])


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_a_text_may_hold_anything_but_no_characters_or_too_many(
    exported: Callable[[str], tuple[str, Bundle]], family: str
) -> None:
    embedder = exported(family)[1].text_embedder()
    assert np.isfinite(embedder.embed(HOSTILE).vectors).all()
    first, second = embedder.embed(["cafe\u0301 a\x00b", "café a b"]).vectors
    assert np.array_equal(first, second)
    plain, marked = embedder.embed(["lamp", "lamp<end>"]).vectors  # a mark of the tokenizer is text like any other
    assert not np.allclose(plain, marked)
    embedder.embed(["a" * MOST_CHARACTERS])
    for text in ("", " \t\n", "\x00\x07", "a" * (MOST_CHARACTERS + 1), "a" * 10**6, None, 7, b"lamp"):
        with pytest.raises(InvalidParameter, match="text must be a text of 1 to 1,000 characters"):
            embedder.embed([text])  # type: ignore[list-item]


def test_the_tower_is_part_of_the_answers_and_not_of_the_vectors_of_photos(
    exported: Callable[[str], tuple[str, Bundle]], tmp_path: Path
) -> None:
    name, bundle = exported("clip")
    plain = export_pretrained(replace(Pretrained.load(name), text=None), tmp_path / "plain")
    assert set(bundle.manifest["files"]) - set(plain.manifest["files"]) == {"text.onnx", "tokenizer.json"}
    assert bundle.embedding_id == plain.embedding_id
    assert bundle.bundle_id != plain.bundle_id
    assert bundle.draws_id != plain.draws_id
    with pytest.raises(InvalidParameter, match="bundle must have a text tower") as raised:
        plain.text_embedder()
    assert "retrieval export --pretrained" in raised.value.remedy
    tokenizer = Tokenizer.from_file(str(bundle.path / "tokenizer.json"))
    assert tokenizer.truncation["max_length"] == LENGTHS["clip"]


def test_without_a_tokenizer_or_after_a_fit_there_is_no_tower_and_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write_two_towers(tmp_path / "model", "clip", tokenizer=False)
    words = ["export", "--pretrained", name, "-o", str(tmp_path / "b")]
    told = CliRunner().invoke(group, words, catch_exceptions=False).output
    assert "no text tower for searches by words: the checkpoint has no tokenizer.json." in told
    assert not Bundle.open(tmp_path / "b").text_key

    name = write_two_towers(tmp_path / "whole", "clip")
    loaded, reason = Pretrained.load(name), "the fit moves the vectors of photos, and not those of texts"
    fitted = loaded.with_fit(Fit(Projection(1.0, np.zeros(16), np.eye(16))))
    assert fitted.model.projection is not None
    assert (fitted.text, fitted.no_text) == (None, reason)
    assert loaded.with_fit(Fit(evidence={"fit": 1})).text is not None
    pair = Pretrained.load_pair(name, write_two_towers(tmp_path / "second", "siglip"))
    assert (pair.text, pair.no_text) == (None, "a text tower belongs to one model alone, and these are two")


@pytest.fixture
def foreign(exported: Callable[[str], tuple[str, Bundle]], tmp_path: Path) -> Path:
    """Return a text tower as another maker lays it out: onnx/text_model.onnx, and the tokenizer in the folder above."""
    name, bundle = exported("clip")
    (tmp_path / "layout" / "onnx").mkdir(parents=True)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(name) / file, tmp_path / "layout" / file)
    config = json.loads((tmp_path / "layout" / "tokenizer_config.json").read_text())
    config |= {"model_max_length": LENGTHS["clip"], "pad_token": {"content": "<end>"}}
    (tmp_path / "layout" / "tokenizer_config.json").write_text(json.dumps(config))
    shutil.copy(bundle.path / "text.onnx", tmp_path / "layout" / "onnx" / "text_model.onnx")
    return tmp_path / "layout" / "onnx" / "text_model.onnx"


def test_a_tower_from_elsewhere_is_taken_as_it_is(
    exported: Callable[[str], tuple[str, Bundle]], foreign: Path, tmp_path: Path
) -> None:
    name, bundle = exported("clip")
    assert json.loads((foreign.parents[1] / "tokenizer.json").read_text())["truncation"] is None
    words = ["export", "--pretrained", name, "--text-onnx", str(foreign), "-o", str(tmp_path / "b")]
    CliRunner().invoke(group, words, catch_exceptions=False)
    made = Bundle.open(tmp_path / "b")
    assert made.text_key != bundle.text_key
    texts = [text for text in TEXTS if len(text) < MOST_CHARACTERS]
    apart = made.text_embedder().embed(texts).vectors - bundle.text_embedder().embed(texts).vectors
    assert np.abs(apart).max() <= 1e-5  # filled up to 20 tokens
    scale = ["--mean", "0.5", "0.5", "0.5", "--std", "0.5", "0.5", "0.5"]
    words = ["export", "--onnx", str(bundle.path / "model.onnx"), *scale, "--text-onnx", str(foreign)]
    CliRunner().invoke(group, [*words, "-o", str(tmp_path / "both")], catch_exceptions=False)
    assert Bundle.open(tmp_path / "both").text_key == made.text_key


def test_towers_that_do_not_fit_are_refused(
    exported: Callable[[str], tuple[str, Bundle]], foreign: Path, tmp_path: Path
) -> None:
    name, bundle = exported("siglip")
    of_other_model = replace(Pretrained.load(name), text=text_files(foreign))
    with pytest.raises(InvalidParameter, match=r"text\.onnx must give vectors of 32 numbers.* got 16"):
        export_pretrained(of_other_model, tmp_path / "b")
    assert not (tmp_path / "b").exists()
    with pytest.raises(BundleError, match="cannot be used"):
        TextEmbedder((bundle.path / "model.onnx").read_bytes(), (bundle.path / "tokenizer.json").read_bytes())
    with pytest.raises(BundleError, match="cannot be used"):
        TextEmbedder(b"none", (bundle.path / "tokenizer.json").read_bytes())
    with pytest.raises(BundleError, match="tokenizer cannot be read"):
        TextEmbedder((bundle.path / "text.onnx").read_bytes(), b"{}")
    endless = json.loads((bundle.path / "tokenizer.json").read_text())
    endless["padding"] |= {"strategy": {"Fixed": 2 * 10**9}}
    with pytest.raises(BundleError, match="more than 10,000 tokens"):
        TextEmbedder((bundle.path / "text.onnx").read_bytes(), json.dumps(endless).encode())
    config = foreign.parents[1] / "tokenizer_config.json"
    for text, told in {
        "{": "cannot be read",
        "[1]": "holds no values by name",
        '{"model_max_length": 8, "pad_token": "<none>"}': "has no token '<none>' to fill texts up",
        '{"model_max_length": 8, "pad_token": 7}': "has no token 7 to fill texts up",
    }.items():
        config.write_text(text)
        with pytest.raises(DataError, match=told):
            text_files(foreign)
    config.unlink()
    with pytest.raises(DataError, match="does not say how many tokens"):
        text_files(foreign)
    (foreign.parents[1] / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"no tokenizer\.json beside"):
        text_files(foreign)
    words = ["export", str(tmp_path), "--text-onnx", str(foreign), "-o", str(tmp_path / "b")]
    assert "RUN must be used without --text-onnx" in str(CliRunner().invoke(group, words).exception)
