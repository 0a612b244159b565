"""Format commands that messages suggest to the user."""

from __future__ import annotations

import shlex


def command(*words: object) -> str:
    """Return a `retrieval` command line with shell quoting.

    Words in capitals, such as PHOTOS, are placeholders for the user.
    """
    return shlex.join(["retrieval", *map(str, words)])
