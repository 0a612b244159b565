"""Entry point of `python -m retrieval`, for launchers that require a module."""

from retrieval.cli.main import main

if __name__ == "__main__":  # processes that this one starts import it too
    main()
