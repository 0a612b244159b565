"""Import paths that users rely on, wherever the modules behind them are."""

from importlib import import_module

import pytest

PUBLIC = {
    "index.gallery": ("Gallery",),
    "retrieval": ("Bundle", "Embedder", "Match", "Retriever", "SearchResult"),
    "retrieval.client": ("AsyncRetrievalClient", "RetrievalClient"),
    "retrieval.consistency": ("opis", "search_opis", "utility_curves"),
    "retrieval.identification": ("SearchScores", "identification_rates", "search_scores", "threshold_at_fpir"),
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


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in PUBLIC.items() for name in names])
def test_a_public_name_can_be_imported(module: str, name: str) -> None:
    assert callable(getattr(import_module(module), name)) or name == "LOSSES"


@pytest.mark.parametrize("module", [module for module in PUBLIC if module != "training.losses.vmf"])
def test_exported_names_exist(module: str) -> None:
    package = import_module(module)
    names = getattr(package, "__all__", ())
    assert len(names) == len(set(names))
    assert all(hasattr(package, name) for name in names)
