"""Searches in this process and over HTTP refuse the same input."""

from __future__ import annotations

from typing import Any

import pytest

from retrieval.search.looks import MOST_IMAGES, MOST_MATCHES, MOST_WHERE
from serving.api import query_parameters, schemas


def schema_of(model: type[Any], name: str) -> dict[str, Any]:
    field = model.model_json_schema()["properties"][name]
    return {**field, **next((part for part in field.get("anyOf", ()) if part.get("type") == "string"), {})}


@pytest.mark.parametrize("model", [schemas.SearchRequest, schemas.BatchRequest, schemas.PhotosRequest])
def test_a_search_has_the_same_limits_as_json(model: type[Any]) -> None:
    top_k, where = schema_of(model, "top_k"), schema_of(model, "where")
    assert (top_k["minimum"], top_k["maximum"]) == (1, MOST_MATCHES)
    assert where["maxLength"] == MOST_WHERE


def test_a_search_has_the_same_limits_as_a_query() -> None:
    (top_k,), (where,) = query_parameters.TopK.__metadata__, query_parameters.Where.__metadata__
    assert [rule.le for rule in top_k.metadata if hasattr(rule, "le")] == [MOST_MATCHES]
    assert [rule.ge for rule in top_k.metadata if hasattr(rule, "ge")] == [1]
    assert [rule.max_length for rule in where.metadata if hasattr(rule, "max_length")] == [MOST_WHERE]


def test_a_batch_has_the_same_number_of_images() -> None:
    assert schemas.MOST_IMAGES == MOST_IMAGES
    assert schema_of(schemas.BatchRequest, "images")["maxItems"] == MOST_IMAGES
