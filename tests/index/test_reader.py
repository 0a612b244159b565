from pathlib import Path

import pytest

from index.database import Database, Segment
from index.gallery import Gallery

from .vectors import filled


def test_a_gallery_is_verified_while_another_process_replaces_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rebuild comes between reading the list of segments and opening them."""
    listed = Database.segments
    with filled(tmp_path / "g") as writer, Gallery.open(tmp_path / "g", read_only=True) as reader:
        writer.remove(photo_ids=["p3"])
        calls = 0

        def segments(store: Database) -> list[Segment]:
            nonlocal calls
            found = listed(store)
            if store is reader._database:
                calls += 1
                if calls == 2:
                    writer.rebuild(kind="flat")
            return found

        monkeypatch.setattr(Database, "segments", segments)
        assert reader.verify() == []
        assert calls == 4
