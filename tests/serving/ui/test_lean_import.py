from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from serving.ui import lean_import
from serving.ui.lean_import import lean_imports, leave_stub


def test_stubs_are_left_alone_and_heavy_modules_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toolkit").mkdir()
    (tmp_path / "toolkit" / "__init__.py").write_text("import heavy_tables\nfrom .meta import made\n")
    (tmp_path / "toolkit" / "meta.py").write_text(
        "def create_or_modify_pyi(*_):\n    raise OSError\nmade = lambda: create_or_modify_pyi(1, 2)\n"
    )
    (tmp_path / "heavy_tables.py").write_text("import os\nos.environ['HEAVY'] = 'imported'\nFrame = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HEAVY", "")
    monkeypatch.setattr(lean_import, "STUBS", "toolkit.meta")
    monkeypatch.setattr(lean_import, "DEFERRED", {"heavy_tables"})
    before = list(sys.meta_path)
    with lean_imports():
        import toolkit  # type: ignore[import-not-found]
    assert sys.meta_path == before
    assert toolkit.made() is None
    assert toolkit.meta.create_or_modify_pyi is leave_stub
    import os

    assert os.environ["HEAVY"] == ""
    assert toolkit.heavy_tables.Frame == 3
    assert os.environ["HEAVY"] == "imported"


@pytest.mark.slow
def test_gradio_is_imported_without_pandas() -> None:
    code = (
        "import sys\n"
        "from serving.ui.page_gradio import load_gradio\n"
        "gradio = load_gradio()\n"
        "from gradio import component_meta\n"
        "from serving.ui.lean_import import leave_stub\n"
        "assert component_meta.create_or_modify_pyi is leave_stub\n"
        "with gradio.Blocks():\n"
        "    gradio.Image()\n"
        "print('\\n'.join(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "gradio" in done.stdout.split()
    assert not {"pandas.core", "pyarrow", "scipy", "torch", "transformers", "matplotlib"} & set(done.stdout.split())
