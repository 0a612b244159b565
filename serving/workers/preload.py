"""Import modules in the process that workers are forked from; they share its memory until they change it."""

import gc
import importlib

for name in ("faiss", "onnxruntime", "serving.app", "serving.workers.worker"):
    importlib.import_module(name)
gc.collect()
gc.freeze()  # a collection would write to shared pages, which copies them
