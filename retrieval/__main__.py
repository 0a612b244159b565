"""Entry point of `python -m retrieval`, for launchers that require a module."""

from retrieval.cli.main import main

main()
