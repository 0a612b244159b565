"""A real server of Milvus, which the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.milvus_server import Server, running


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    pytest.importorskip("milvus", reason="milvus, the server, is not installed")
    with running() as server:
        yield server
