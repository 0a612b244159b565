"""Evaluation of a run: metrics as data and as text."""

from __future__ import annotations

import json
from typing import Any

from retrieval.errors import InvalidParameter
from retrieval.files import write_file
from retrieval.text import text_table
from training.loop.run import Run, held_out_in, started_from
from training.loop.warm_start import model_before

from .embedding import embed_catalogue
from .evaluate import consistency_metrics, item_labels, make_evaluation_split, rank_metrics
from .mixed import UNFITTED, Comparison, MixedGallery

MIXED = ("R@1", "TPIR", "FPIR")
CONSISTENCY = ("OPIS", "OPIS by chance", "TPIR of the worse half", "never found")


def evaluate_run(run: Run, *, target_fpir: float | None = None) -> dict[str, Any]:
    """Evaluate a run's best model and write `evaluation.json`.

    "mixed" compares it with the model that the run started from, in a mixed gallery of fitted items, test items and
    calibration items, by the item distance. "unseen" has the test items alone, by the nearest photo, as in papers. Of a
    run on all items, which has none, the first fold run is compared on the items that it left out.
    """
    target = run.settings.target_fpir if target_fpir is None else target_fpir
    if not 0 < target < 1:
        raise InvalidParameter("target_fpir", "lie between 0 and 1", target)
    judged = run.folds[0] if run.folds else run
    splits, protocol, photos, model = judged.splits, judged.protocol, judged.photos(), judged.best_model()
    mixed = MixedGallery.of(
        photos,
        held_out=held_out_in(judged, photos),
        unfitted=splits.validation if run.folds else splits.test,
        calibration=splits.calibration,
        protocol=protocol,
    )
    before, after = (
        mixed.search(embed_catalogue(each, mixed.photos, preprocessing))
        for each, preprocessing in (model_before(judged), (model, judged.preprocessing))
    )
    report = {
        "target_fpir": target,
        "protocol": protocol.describe(),
        "before": started_from(run),
        "mixed": mixed.compare(before, after, target),
    }
    if not run.folds:
        chosen = set(splits.test)
        tested = [photo for photo in photos if photo.item_id in chosen]
        unseen, labels = make_evaluation_split("test", tested, splits.test, protocol), item_labels(tested)
        vectors = embed_catalogue(model, tested, run.preprocessing)
        report["unseen"] = rank_metrics(unseen, vectors, labels) | consistency_metrics(unseen, vectors, labels)
    write_file(run.path / "evaluation.json", json.dumps(report, indent=2) + "\n")
    return report


def render(report: dict[str, Any]) -> str:
    """Return the comparison in the mixed gallery as a text table, and the metrics of the test items alone."""
    unseen, alike = report.get("unseen"), report["mixed"][UNFITTED]
    model = "this run" if unseen else "a model fitted on four fifths of the items"
    unknown = "calibration items, each" if unseen else "unfitted items, each"
    lines = [
        f"New photos in a mixed gallery of fitted and unfitted items, by the item distance: {report['before']} → "
        f"{model} [95 % interval of the change].",
        *_mixed_table(report["mixed"]),
        f"The threshold has FPIR {report['target_fpir']:g} on the {unknown} of which is left out and searched for. "
        "FPIR is that of unfitted items. Items count equally; both is the mean of the two.",
        "",
        f"How alike unfitted items fare, where both models find {alike['equal TPIR']['before']:.3f} of their photos:",
        *text_table(CONSISTENCY, [[_change(alike[name]) for name in CONSISTENCY]]),
        "OPIS is the variance of the items' utility; by chance it would be that of items that are all alike.",
    ]
    if unseen:
        lines += [
            "",
            f"Test items alone, by the nearest photo, as in papers: R@1 {unseen['R@1']:.3f}, MAP@R "
            f"{unseen['MAP@R']:.3f}, OPIS of pairs {unseen['OPIS']:.2e} ({report['protocol']}).",
        ]
    return "\n".join(lines)


def _mixed_table(mixed: Comparison) -> list[str]:
    rows = [
        [part, str(found["items"]), str(found["queries"]), *(_change(found.get(name)) for name in MIXED)]
        for part, found in mixed.items()
    ]
    return text_table(["items", "number", "queries", *MIXED], rows)


def _change(values: dict[str, float] | None) -> str:
    if values is None:
        return ""
    if values["before"] == values["after"] and values["low"] == values["high"]:  # such as OPIS by chance
        return f"{values['before']:.3f}"
    return f"{values['before']:.3f} → {values['after']:.3f} [{values['low']:+.3f}, {values['high']:+.3f}]"
