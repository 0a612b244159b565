"""Query parameters of the search routes, read by one model."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from retrieval.errors import InvalidParameter
from serving.api.query_parameters import BoxesQuery, CommonQuery, PhotoQuery, query_of


def request(query: bytes) -> Request:
    return Request({"type": "http", "query_string": query, "headers": []})


def test_a_repeated_parameter_is_a_list_or_its_last_value_counts() -> None:
    found = query_of(request(b"top_k=3&top_k=4&fields=a&fields=b%20c&explain=true&other=1"), PhotoQuery)
    assert found == PhotoQuery(top_k=4, fields=["a", "b c"], explain=True)
    boxes = query_of(request(b"bbox=1,2,3,4&bbox=5,6,7,8"), BoxesQuery)
    assert (boxes.bbox, boxes.fields, "find" in boxes.model_fields_set) == (["1,2,3,4", "5,6,7,8"], None, False)
    assert query_of(request(b""), PhotoQuery) == query_of(request(b"other=1"), PhotoQuery) == PhotoQuery()


@pytest.mark.parametrize(
    ("query", "model", "message"),
    [
        (b"top_k=0", PhotoQuery, "top_k must be greater than or equal to 1, got '0'"),
        (b"top_k=many&bbox=1", PhotoQuery, "top_k must be a valid integer"),
        (b"explain=perhaps", PhotoQuery, "explain must be a valid boolean"),
        (b"bbox=1,2,3", PhotoQuery, "bbox must match pattern"),
        (b"fields=a&fields=" + b"b" * 201, BoxesQuery, "fields.1 must have at most 200 characters"),
        (b"find=none", BoxesQuery, "find must be 'windows' or 'detector', got 'none'"),
    ],
)
def test_a_broken_rule_is_named(query: bytes, model: type[CommonQuery], message: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        query_of(request(query), model)
    assert str(refused.value).startswith(message)
