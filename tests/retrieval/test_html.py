import base64
import re

from retrieval.html import data_uri, document, picture


def test_a_page_is_whole_and_its_title_text() -> None:
    page = document("<i>shop</i>", style="p { color: red }", body="<p>hello</p>", script="go()")
    assert page.startswith("<!doctype html>")
    assert "<title>&lt;i&gt;shop&lt;/i&gt;</title>" in page
    assert "<body><p>hello</p><script>go()</script></body></html>" in page
    assert "<script" not in document("x", style="", body="")


def test_a_picture_travels_inside_the_page() -> None:
    shown = picture(b"\xff\xd8 bytes", alt='"><script>')
    assert base64.b64decode(re.findall(r'base64,([^"]*)"', shown)[0]) == b"\xff\xd8 bytes"
    assert 'alt="&quot;&gt;&lt;script&gt;"' in shown
    assert data_uri(b"") == "data:image/jpeg;base64,"
