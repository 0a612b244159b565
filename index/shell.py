"""Commands that are printed for the user to run next."""

from __future__ import annotations

import shlex


def command(*words: object) -> str:
    """Return a `retrieval` command as a shell takes it: words with spaces and quotes in them are quoted.

    Words in capitals, such as PHOTOS, stand for what the user fills in.
    """
    return shlex.join(["retrieval", *map(str, words)])
