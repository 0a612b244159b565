"""A Gradio Space: the server and its demo, over the bundle, the gallery and the examples beside this file."""

import os
import sys
from pathlib import Path

from retrieval.cli.main import main

if __name__ == "__main__":  # the demo runs in a process of its own, which imports this file
    os.environ.setdefault("GRADIO_SERVER_NAME", "0.0.0.0")  # noqa: S104 - a Space is a container
    here, port = Path(__file__).parent, os.environ.get("GRADIO_SERVER_PORT", "7860")
    examples = ["--examples", str(here / "examples")] if (here / "examples").exists() else []
    places = [str(here / "bundle"), str(here / "gallery")]
    sys.argv[1:] = ["serve", *places, "--port", "0", "--gradio-port", port, *examples]
    main()
