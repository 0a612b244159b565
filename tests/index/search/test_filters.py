import sqlite3

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.errors import InvalidParameter
from index.search.filters import Among, Compare, Missing, Negation, Several, Where, is_column, parse_where, to_sql

COLUMNS = {"brand": "text", "price": "number", "sale": "boolean"}


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("brand = 'x'", Compare("brand", "=", "x")),
        ("brand = 'it''s'", Compare("brand", "=", "it's")),
        (" price>=-1.5e2 ", Compare("price", ">=", -150.0)),
        ("sale != TRUE", Compare("sale", "!=", True)),
        ("brand in ('a', 'b')", Among("brand", ("a", "b"))),
        ("price not in (1)", Negation(Among("price", (1,)))),
        ("brand is null", Missing("brand")),
        ("brand IS NOT NULL", Negation(Missing("brand"))),
        ("not not sale = true", Compare("sale", "=", True)),
        (
            "brand = 'a' or price < 2 and not sale = false",
            Several(
                "or",
                (
                    Compare("brand", "=", "a"),
                    Several("and", (Compare("price", "<", 2), Negation(Compare("sale", "=", False)))),
                ),
            ),
        ),
        (
            "(brand = 'a' or price < 2) and sale = true",
            Several(
                "and",
                (
                    Several("or", (Compare("brand", "=", "a"), Compare("price", "<", 2))),
                    Compare("sale", "=", True),
                ),
            ),
        ),
    ],
)
def test_a_filter_is_a_tree(text: str, tree: Where) -> None:
    assert parse_where(text, COLUMNS) == tree


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "be a filter"),
        ("brand", "a comparison, 'in' or 'is' at character 6"),
        ("brand = ", "a value"),
        ("brand not = 'x'", "'in' at character 11"),
        ("brand = 'x", "character 9 starts no value, name or operator"),
        ("brand = 'x' price = 1", "'and', 'or' or the end at character 13"),
        ("color = 'x'", "name declared columns \\(brand, price, sale\\), got 'color'"),
        ("color = 'x'", "Declare it: `retrieval gallery declare GALLERY color:KIND`"),
        ("brand = 1", "compare brand with a text"),
        ("price = 'x'", "compare price with a number"),
        ("price = true", "compare price with a number"),
        ("brand in ()", "a value"),
        ("(brand = 'x'", "'\\)'"),
        ("brand = 'x'; DROP TABLE photos", "starts no value, name or operator"),
        ("brand = 'x' -- comment", "starts no value, name or operator"),
        ("and = 1", "a column"),
        ("(" * 100 + "brand = 'x'" + ")" * 100, "at most 40 levels deep"),
        ("brand = '" + "x" * 20_000 + "'", "at most 10000 characters"),
    ],
)
def test_what_is_no_filter_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(InvalidParameter, match=words):
        parse_where(text, COLUMNS)


@pytest.mark.parametrize("text", [None, 5, ["brand = 'x'"], b"brand = 'x'"])
def test_what_is_no_text_is_no_filter(text: object) -> None:
    with pytest.raises(InvalidParameter, match="where must be a filter"):
        parse_where(text, COLUMNS)  # type: ignore[arg-type]


def holds(where: Where, row: dict) -> bool | None:
    """Return what SQL would: None where a value is missing."""
    if isinstance(where, Missing):
        return row.get(where.column) is None
    if isinstance(where, Compare):
        value = row.get(where.column)
        if value is None:
            return None
        return {
            "=": value == where.value,
            "!=": value != where.value,
            "<": value < where.value,
            "<=": value <= where.value,
            ">": value > where.value,
            ">=": value >= where.value,
        }[where.operator]
    if isinstance(where, Among):
        return None if row.get(where.column) is None else row[where.column] in where.values
    if isinstance(where, Negation):
        inner = holds(where.inner, row)
        return None if inner is None else not inner
    parts = [holds(part, row) for part in where.parts]
    decisive = where.word == "or"
    return decisive if decisive in parts else None if None in parts else not decisive


tests = st.one_of(
    st.builds(Compare, st.just("brand"), st.sampled_from(["=", "!=", "<", ">="]), st.sampled_from(["a", "b", "it's"])),
    st.builds(Compare, st.just("price"), st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), st.sampled_from([1, 2.5])),
    st.builds(Compare, st.just("sale"), st.sampled_from(["=", "!="]), st.booleans()),
    st.builds(Among, st.just("brand"), st.lists(st.sampled_from(["a", "b"]), min_size=1).map(tuple)),
    st.builds(Missing, st.sampled_from(list(COLUMNS))),
)
trees = st.recursive(
    tests,
    lambda inner: st.one_of(
        st.builds(Negation, inner),
        st.builds(Several, st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)
rows = st.fixed_dictionaries(
    {},
    optional={
        "brand": st.sampled_from(["a", "b", "it's"]),
        "price": st.sampled_from([1, 2, 2.5]),
        "sale": st.booleans(),
    },
)


@given(trees, rows)
def test_sql_means_what_the_tree_means(tree: Where, row: dict) -> None:
    import json

    condition, values = to_sql(tree)
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE photos (metadata TEXT)")
    connection.execute("INSERT INTO photos VALUES (?)", (json.dumps(row),))
    found = connection.execute(f"SELECT count(*) FROM photos WHERE {condition}", values).fetchone()[0]  # noqa: S608
    connection.close()
    assert found == (holds(tree, row) is True)


@given(st.text(max_size=60))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    try:
        parse_where(text, COLUMNS)
    except InvalidParameter:
        assert np.iterable(text)


@pytest.mark.parametrize(
    ("name", "usable"),
    [("price", True), ("_x9", True), ("9x", False), ("a b", False), ("", False), ("AND", False), ("null", False)],
)
def test_columns_have_names_that_filters_can_use(name: str, usable: bool) -> None:
    assert is_column(name) == usable


def test_whole_numbers_are_those_of_64_bits() -> None:
    for number in (-(2**63), 2**63 - 1):
        assert parse_where(f"price = {number}", COLUMNS) == Compare("price", "=", number)
    for number in (-(2**63) - 1, 2**63, 10**30):
        with pytest.raises(InvalidParameter, match="numbers between -2\\^63 and 2\\^63"):
            parse_where(f"price > {number}", COLUMNS)


def test_text_with_half_of_a_character_is_refused() -> None:
    for text in ("brand = 'a\ud800b'", "brand = 'é\udfff'"):
        with pytest.raises(InvalidParameter, match="be valid Unicode"):
            parse_where(text, COLUMNS)
    assert parse_where("brand = 'é\U0001f600'", COLUMNS) == Compare("brand", "=", "é\U0001f600")
