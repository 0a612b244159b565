"""Searches in this process and over HTTP refuse the same input."""

from __future__ import annotations

from typing import Any

import pytest

from retrieval.search.looks import MOST_MATCHES, MOST_WHERE
from serving.api import bodies


def schema_of(model: type[Any], name: str) -> dict[str, Any]:
    field = model.model_json_schema()["properties"][name]
    return {**field, **next((part for part in field.get("anyOf", ()) if part.get("type") == "string"), {})}


@pytest.mark.parametrize("model", [bodies.PhotoQuery, bodies.SearchRequest, bodies.Options, bodies.BoxesQuery])
def test_a_search_over_http_has_the_limits_of_one_in_process(model: type[Any]) -> None:
    top_k, where = schema_of(model, "top_k"), schema_of(model, "where")
    assert (top_k["minimum"], top_k["maximum"]) == (1, MOST_MATCHES)
    assert where["maxLength"] == MOST_WHERE
