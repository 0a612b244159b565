"""`python -m retrieval` is the command `retrieval`, for launchers that want a module."""

from .cli import main

main()
