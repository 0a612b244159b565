"""`python -m retrieval` is the command `retrieval`, for launchers that want a module."""

from retrieval.cli.main import main

main()
