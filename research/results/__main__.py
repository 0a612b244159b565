"""Render the measured figures in the documentation: `python -m research.results`."""

from __future__ import annotations

from .render import DOCS, pages, render


def main() -> None:
    """Write every page whose figures differ from the records."""
    for path in pages():
        text = path.read_text(encoding="utf-8")
        new = render(text)
        if new != text:
            path.write_text(new, encoding="utf-8")
            print(f"Wrote {path.relative_to(DOCS.parent)}.")


if __name__ == "__main__":
    main()
