"""Reports over HTTP are made from data by our templates, and no page has an unsafe policy."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from retrieval.bundle.bundle import CALIBRATION, REPORT, Bundle
from retrieval.metrics.identification import SearchScores
from retrieval.retriever import Retriever
from serving.app import create_app

from ..retrieval.measuring.simulated import point_of, searches, simulated
from ..world import make_bundle, pack_calibration


def bundle_with_report(folder: Path) -> Bundle:
    """Write a bundle with a calibration, in which an item is named like a script, and with a report of its author."""
    vectors, labels = simulated(300, 4, seed=0)
    found = searches(vectors, labels, np.arange(300), 4)
    names = np.array([f"<script>item {label}" for label in found.labels])
    scores = SearchScores(names, found.own, found.impostor, found.gallery_items)
    files = {CALIBRATION: pack_calibration(scores, np.ones(len(names), np.float32))}
    files[REPORT] = b"<!doctype html><script>alert('of the author')</script>"
    return make_bundle(folder, name="reported", point=point_of(scores), files=files)


def test_the_report_of_a_bundle_is_made_from_its_data_and_not_the_html_in_it(world: Path, tmp_path: Path) -> None:
    bundle = bundle_with_report(tmp_path)
    with TestClient(create_app(Retriever.open(bundle.path, world / "gallery"), page=False)) as client:
        page, gallery = client.get("/v1/report/bundle"), client.get("/v1/report")
    assert page.status_code == 200
    assert "of the author" not in page.text
    assert f"at most <b>{bundle.threshold:.4f}</b>" in page.text
    assert "&lt;script&gt;item" in page.text
    assert "<script" not in page.text
    assert 'href="report/bundle"' in gallery.text


@pytest.mark.parametrize("path", ["/v1/report", "/v1/report/bundle", "/docs", "/v1/info", "/healthz", "/v1/nothing"])
def test_a_policy_allows_the_style_of_the_page_by_its_hash_and_nothing_unsafe(
    world: Path, tmp_path: Path, path: str
) -> None:
    bundle = bundle_with_report(tmp_path)
    with TestClient(create_app(Retriever.open(bundle.path, world / "gallery"), page=False)) as client:
        answer = client.get(path)
    (policy,) = answer.headers.get_list("content-security-policy")
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in policy
    styles = re.findall("<style>(.*?)</style>", answer.text, re.DOTALL)
    assert len(styles) == (1 if answer.headers["content-type"].startswith("text/html") else 0)
    for style in styles:
        assert f"'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'" in policy
    assert not re.search(r"<[^>]+\sstyle=|<script(?! src)|<link", answer.text)  # the policy would stop them
