"""Fail when a test was skipped for want of data or a browser that this machine has."""

import os
import shutil
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

report = ET.parse(sys.argv[1])  # noqa: S314 - written by the line before
data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
has = {
    "RETRIEVAL_TEST_DATA": (data / "golden").is_dir(),
    "Chromium": shutil.which("chromium") is not None,
    "package index": True,  # what runs here was installed from one
    "Postgres": True,  # the extra dev brings one with pgvector
}
wrong = [
    f"{case.get('classname')}::{case.get('name')}: {skipped.get('message')}"
    for case in report.iter("testcase")
    for skipped in case.iter("skipped")
    if any(word in (skipped.get("message") or "") for word, there in has.items() if there)
]
for line in wrong:
    print(f"skipped although this machine has what it needs: {line}")
sys.exit(1 if wrong else 0)
