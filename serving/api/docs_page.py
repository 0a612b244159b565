"""Render the OpenAPI document as one HTML page without scripts or external resources."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

from retrieval.html import document, table

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2024 }
h2 { margin: 2.5rem 0 .5rem; font-size: 1.1rem } h2 code { font-size: 1.1rem }
h3 { font-size: 1rem; margin: 1rem 0 .3rem }
.method { display: inline-block; min-width: 4.5rem; color: #00635a } table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0; border-top: 1px solid #ddd }
th { font-weight: 600; white-space: nowrap }
pre { background: #f4f5f5; padding: .8rem; overflow-x: auto; margin: .3rem 0 }
summary { cursor: pointer }
@media (prefers-color-scheme: dark) {
  body { background: #15181a; color: #e4e6e7 } .method { color: #5fd0c5 } pre { background: #22272a }
  th, td { border-color: #3a4044 } a { color: #8ab8ff }
}
"""
Schema = Mapping[str, Any]


def docs_page(api: Schema) -> str:
    """Return an OpenAPI document as an HTML page."""
    info = api["info"]
    head = (
        f"<h1>{_text(info['title'])}, version {_text(info['version'])}</h1><p>{_text(info.get('summary', ''))}</p>"
        f"<p>{_text(info.get('description', ''))}</p><p>For programs: <a href='openapi.json'>openapi.json</a>.</p>"
    )
    routes = "".join(
        _operation(method.upper(), path, operation)
        for path, operations in api["paths"].items()
        for method, operation in operations.items()
    )
    schemas = "".join(_schema(name, schema) for name, schema in sorted(api["components"]["schemas"].items()))
    return document(
        f"{info['title']} API",
        style=STYLE,
        body=f"<main>{head}{routes}<h1>Requests and responses</h1>{schemas}</main>",
    )


def _operation(method: str, path: str, operation: Schema) -> str:
    rows = [
        (f"<code>{_text(p['name'])}</code>", f"{_text(p['in'])}, {_type(p['schema'])}", p.get("description", ""))
        for p in operation.get("parameters", ())
    ]
    bodies = operation.get("requestBody", {}).get("content", {})
    rows += [("body", f"<code>{_text(kind)}</code>, {_type(body['schema'])}", "") for kind, body in bodies.items()]
    answers = "".join(_answer(status, answer) for status, answer in sorted(operation["responses"].items()))
    return (
        f"<section><h2><code><span class='method'>{method}</span> {_text(path)}</code></h2>"
        f"<p>{_text(operation.get('description', ''))}</p>"
        + (f"<h3>Parameters</h3>{_table(rows)}" if rows else "")
        + f"<h3>Answers</h3>{answers}</section>"
    )


def _answer(status: str, answer: Schema) -> str:
    heading = f"<b>{_text(status)}</b> {_text(answer['description'])}"
    kinds = answer.get("content", {})
    shown = "".join(
        f", <code>{_text(kind)}</code>" + (f" {_type(body['schema'])}" if "schema" in body else "")
        for kind, body in kinds.items()
    )
    examples = [body["example"] for body in kinds.values() if "example" in body]
    if not examples:
        return f"<p>{heading}{shown}</p>"
    return f"<details><summary>{heading}</summary>{''.join(map(_json, examples))}</details>"


def _schema(name: str, schema: Schema) -> str:
    required = schema.get("required", ())
    rows = [
        (
            f"<code>{_text(field)}</code>",
            _type(facts) + ("" if field in required else ", optional"),
            facts.get("description", ""),
        )
        for field, facts in schema.get("properties", {}).items()
    ]
    examples = "".join(map(_json, schema.get("examples", ())))
    return (
        f"<section><h2 id='{_text(name)}'>{_text(name)}</h2><p>{_text(schema.get('description', ''))}</p>"
        f"{_table(rows)}{examples}</section>"
    )


def _type(schema: Schema) -> str:
    """Return a schema's type as HTML."""
    if "$ref" in schema:
        name = _text(schema["$ref"].rpartition("/")[2])
        return f"<a href='#{name}'>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " or ".join(
            f"<code>{_text(json.dumps(value))}</code>" for value in schema.get("enum", [schema.get("const")])
        )
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}{_limits(schema)}"
    if "properties" in schema:
        return ", ".join(f"<code>{_text(name)}</code>: {_type(inner)}" for name, inner in schema["properties"].items())
    kind = "file" if schema.get("format") == "binary" else schema.get("type", "any value")
    return f"{_text(kind)}{_limits(schema)}"


def _limits(schema: Schema) -> str:
    names = {
        "minimum": "from",
        "maximum": "up to",
        "minLength": "characters from",
        "maxLength": "characters up to",
        "minItems": "entries from",
        "maxItems": "entries up to",
        "default": "by default",
    }
    limits = [
        f"{words} {_text(json.dumps(schema[name]))}" for name, words in names.items() if schema.get(name) is not None
    ]
    return f" ({', '.join(limits)})" if limits else ""


def _table(rows: list[tuple[str, str, str]]) -> str:
    return table((), [(name, kind, _text(description)) for name, kind, description in rows]) if rows else ""


def _json(value: object) -> str:
    return f"<pre>{_text(json.dumps(value, indent=2, ensure_ascii=False))}</pre>"


def _text(value: object) -> str:
    return html.escape(str(value))
