"""Evaluation of a run: metrics as data and as text."""

from __future__ import annotations

import json
from typing import Any

from retrieval.files import write_file
from retrieval.text import text_table
from training.loop.run import Run
from training.loop.warm_start import model_before

from .embedding import embed_catalogue
from .evaluate import consistency_metrics, item_labels, make_evaluation_split, rank_metrics
from .mixed import Comparison, MixedGallery

MIXED = ("R@1", "TPIR", "FPIR", "OPIS")


def evaluate_run(run: Run, *, target_fpir: float | None = None) -> dict[str, Any]:
    """Evaluate a run's best model and write `evaluation.json`.

    "mixed" compares it with the model that the run started from, in a mixed gallery of fitted items, test items and
    calibration items, by the item distance. "unseen" has the test items alone, by the nearest photo, as in papers. A
    run on all items has no test items: its first fold run was compared when it was trained.
    """
    if run.folds:
        return {"target_fpir": run.settings.target_fpir, "before": run.started_from, "mixed": run.comparison}
    splits, protocol, photos = run.splits, run.protocol, run.photos()
    target = run.settings.target_fpir if target_fpir is None else target_fpir
    chosen = set(splits.test)
    tested = [photo for photo in photos if photo.item_id in chosen]
    unseen, labels = make_evaluation_split("test", tested, splits.test, protocol), item_labels(tested)
    mixed = MixedGallery.of(
        photos, held_out=run.held_out, unfitted=splits.test, calibration=splits.calibration, protocol=protocol
    )
    model = run.best_model()
    before, after = (
        mixed.search(embed_catalogue(each, mixed.photos, preprocessing))
        for each, preprocessing in (model_before(run), (model, run.preprocessing))
    )
    vectors = embed_catalogue(model, tested, run.preprocessing)
    report = {
        "target_fpir": target,
        "protocol": protocol.describe(),
        "before": run.started_from,
        "mixed": mixed.compare(before, after, target),
        "unseen": rank_metrics(unseen, vectors, labels) | consistency_metrics(unseen, vectors, labels),
    }
    write_file(run.path / "evaluation.json", json.dumps(report, indent=2) + "\n")
    return report


def render(report: dict[str, Any]) -> str:
    """Return the comparison in the mixed gallery as a text table, and the metrics of the test items alone."""
    if "unseen" not in report:
        return "\n".join(
            [
                "New photos in a mixed gallery, by the item distance, with a model that was fitted on four fifths of "
                f"the items: {report['before']} → this model [95 % interval of the change].",
                *_mixed_table(report["mixed"]),
                f"The threshold has FPIR {report['target_fpir']:g} on the unfitted items. Items count equally.",
            ]
        )
    unseen = report["unseen"]
    return "\n".join(
        [
            f"New photos in a mixed gallery of fitted and unfitted items, by the item distance: {report['before']} → "
            "this run [95 % interval of the change].",
            *_mixed_table(report["mixed"]),
            f"The threshold has FPIR {report['target_fpir']:g} on the calibration items, each of which is left out and "
            "searched for. FPIR and OPIS are those of the test items, the unfitted ones. Items count equally; both is "
            "the mean of the two.",
            "",
            f"Test items alone, by the nearest photo, as in papers: R@1 {unseen['R@1']:.3f}, MAP@R "
            f"{unseen['MAP@R']:.3f}, OPIS of pairs {unseen['OPIS']:.2e} ({report['protocol']}).",
        ]
    )


def _mixed_table(mixed: Comparison) -> list[str]:
    head = ["items", "number", "queries", *MIXED]
    rows = [
        [part, str(found["items"]), str(found["queries"]), *(_change(found.get(name)) for name in MIXED)]
        for part, found in mixed.items()
    ]
    return text_table(head, rows)


def _change(values: dict[str, float] | None) -> str:
    if values is None:
        return ""
    return f"{values['before']:.3f} → {values['after']:.3f} [{values['low']:+.3f}, {values['high']:+.3f}]"
