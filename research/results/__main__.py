"""Render the measured figures in the documentation: `python -m research.results`."""

from __future__ import annotations

from .pictures import write_pictures
from .render import DOCS, pages, render, results_page


def main() -> None:
    """Write every page and picture whose figures differ from the records."""
    rendered = {path: render(path.read_text(encoding="utf-8")) for path in pages()}
    rendered[DOCS / "results.md"] = results_page()
    written = write_pictures(DOCS / "pictures")
    for path, new in rendered.items():
        if not path.exists() or path.read_text(encoding="utf-8") != new:
            path.write_text(new, encoding="utf-8")
            written.append(path)
    for path in written:
        print(f"Wrote {path.relative_to(DOCS.parent)}.")


if __name__ == "__main__":
    main()
