"""Import paths that users rely on, wherever the modules behind them are."""

from importlib import import_module

import pytest

PUBLIC = {
    "index.gallery": ("Gallery",),
    "retrieval": ("Bundle", "Embedder", "Match", "Retriever", "SearchResult"),
    "retrieval.client": ("ApiError", "RetrievalClient", "Unreachable"),
    "retrieval.metrics": ("map_at_r", "r_precision", "recall_at_k"),
    "training.losses": (
        "LOSSES",
        "RecallAtK",
        "SmoothAP",
        "ThresholdConsistentMargin",
        "VonMisesFisherNCA",
        "make_loss",
    ),
    "training.losses.vmf": ("log_normalizer", "mean_resultant_length"),
}


def test_public_names_can_be_imported() -> None:
    for module, names in PUBLIC.items():
        for name in names:
            assert callable(getattr(import_module(module), name)) or name == "LOSSES"


def test_exported_names_exist_and_others_do_not() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        import_module("retrieval").Nothing  # noqa: B018
    for module in PUBLIC:
        package = import_module(module)
        names = getattr(package, "__all__", ())
        assert len(names) == len(set(names))
        assert all(hasattr(package, name) for name in names), module
