"""Which extra of the distribution brings a module."""

from __future__ import annotations

SERVE, TRAIN, CLIENT, COMPARE, MILVUS, RAY, SIGN = "serve", "train", "client", "compare", "milvus", "ray", "sign"
MODULES = {
    SERVE: (
        "faiss", "fastapi", "gradio", "httptools", "onnxruntime", "prometheus_client", "starlette", "uvicorn",
    ),
    TRAIN: (
        "accelerate", "matplotlib", "onnx", "onnxscript", "optuna", "safetensors", "scipy", "sklearn", "tensorboard",
        "torch", "transformers",
    ),
    CLIENT: ("httpx",),
    COMPARE: ("pytorch_metric_learning",),
    MILVUS: ("pymilvus",),
    RAY: ("pandas", "ray"),
    SIGN: ("cryptography",),
}  # fmt: skip


def extra_of(module: str) -> str:
    """Return the extra that brings a module; `serve` for those that others need in turn."""
    return next((extra for extra, modules in MODULES.items() if module in modules), SERVE)
