"""Self-contained HTML pages: templates without scripts or external resources, and their data."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader(__name__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"jpeg": jpeg_uri, "percent": percent, "number": number}
    return made


def render(name: str, **data: Any) -> str:
    """Render the template `name` of `retrieval/reports/templates`; all values are escaped."""
    return _environment().get_template(name).render(**data)


def jpeg_uri(data: bytes) -> str:
    """Return a JPEG as a data URI."""
    return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share in percent, "not measured" for None."""
    return "not measured" if share is None else f"{share:.{digits}%}"


def number(value: object) -> str:
    """Return a value as text, floats with four digits."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {number(each)}" for name, each in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
