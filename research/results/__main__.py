"""Render the measured figures in the documentation: `python -m research.results`.

It ends by naming the paragraphs that were last read before their record changed. `python -m research.results PAGE ...`
says that the paragraphs of these pages (or of a template of one) were compared with their records.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .pictures import write_pictures
from .render import DOCS, documents, pages, render, results_page
from .sentences import mark_as_read, stale


def main() -> None:
    """Write every page and picture whose figures differ from the records, and name the paragraphs to read again."""
    for name in sys.argv[1:]:
        mark_as_read(Path(name))
    rendered = {path: render(path.read_text(encoding="utf-8")) for path in pages()}
    rendered[DOCS / "results.md"] = results_page()
    written = write_pictures(DOCS / "pictures")
    for path, new in rendered.items():
        if not path.exists() or path.read_text(encoding="utf-8") != new:
            path.write_text(new, encoding="utf-8")
            written.append(path)
    for path in written:
        print(f"Wrote {path.relative_to(DOCS.parent)}.")
    for path in documents():
        for place in stale(path):
            print(f"Read again: {place}.")


if __name__ == "__main__":
    main()
