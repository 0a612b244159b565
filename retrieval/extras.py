"""Which extra of the distribution brings a module."""

from __future__ import annotations

MODULES = {
    "serve": ("anyio", "faiss", "fastapi", "gradio", "httptools", "prometheus_client", "pydantic", "python_multipart"),
    "train": (
        "accelerate", "matplotlib", "onnx", "onnxruntime", "onnxscript", "optuna", "safetensors", "scipy", "sklearn",
        "sqlalchemy", "tensorboard", "torch", "transformers",
    ),
    "client": ("httpx",),
    "compare": ("pytorch_metric_learning",),
    "milvus": ("pymilvus",),
    "ray": ("pandas", "ray"),
    "sign": ("cryptography",),
}  # fmt: skip


def extra_of(module: str) -> str:
    """Return the extra that brings a module; `serve`, the usual one, for those that it needs in turn."""
    return next((extra for extra, modules in MODULES.items() if module in modules), "serve")
