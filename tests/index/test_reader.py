from pathlib import Path

from index.gallery import Gallery

from .vectors import filled


def test_files_are_checked_beside_searches(tmp_path: Path) -> None:
    filled(tmp_path / "g").close()
    with Gallery.open(tmp_path / "g", read_only=True) as good:
        good.check_in_background().join()
        assert good.damage == []
    file = next((tmp_path / "g" / "segments").glob("*.npy"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with Gallery.open(tmp_path / "g", read_only=True) as bad:
        bad.check_in_background().join()
        assert "sha256 differs" in bad.damage[0]


def test_a_missing_file_is_damage(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g")
    for file in (tmp_path / "g" / "segments").iterdir():
        file.unlink()
    gallery._check()
    assert "missing" in gallery.damage[0]
    gallery.close()
