"""The same search served by LitServe with one worker and no batching, for comparison in `endpoint.py`.

python -m research.benchmarks.litserve_peer BUNDLE GALLERY PORT
"""

import sys
from typing import Annotated, Any

import litserve
from fastapi import Body


class Search(litserve.LitAPI):  # type: ignore[misc]
    """LitServe API that takes the raw image as the body, as `retrieval serve` does."""

    def setup(self, device: str) -> None:  # noqa: ARG002
        from retrieval.retriever import Retriever

        self.retriever = Retriever.open(*sys.argv[1:3])

    def decode_request(self, request: Annotated[bytes, Body()]) -> bytes:
        return request

    def predict(self, image: bytes) -> dict[str, Any]:
        return self.retriever.search(image).to_dict()

    def encode_response(self, output: dict[str, Any]) -> dict[str, Any]:
        return output


if __name__ == "__main__":
    server = litserve.LitServer(Search(api_path="/v1/search"), accelerator="cpu", devices=1, workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[3]), generate_client_file=False, log_level="warning")
