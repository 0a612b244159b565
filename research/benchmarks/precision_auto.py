"""The precisions and providers that `retrieval export --precision auto` tries on runs, and the one that it chooses.

    python -m research.benchmarks.precision_auto RUN [RUN ...]

Each form is timed on one thread, with one photo and with a batch. A faster form is kept if the interval of its TPIR
on the validation items minus that of fp32 lies above LOSS. Install `onnxruntime-openvino` to try OpenVINO too.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from training.export.export import export
from training.export.precision import TriedForm, forms_here
from training.export.variants import Variant
from training.loop.run import Run

from .tables import NONE, Recorder, parser_of

COLUMNS = (
    *("run and form", "ms per photo", "in batches", "speed of fp32", "change of TPIR on validation items"),
    *("verdict", "chosen"),
)


def cells(form: TriedForm, *, chosen: bool) -> tuple[str, ...]:
    """Return the cells of a tried form after its name."""
    change = NONE
    if form.tpir_change is not None and form.interval is not None:
        change = f"{form.tpir_change:+.3f} [{form.interval[0]:+.3f}, {form.interval[1]:+.3f}]"
    times = (f"{form.ms_per_photo:.2f}", f"{form.batch_ms_per_photo:.2f}", f"{form.speedup:.2f} ×")
    return (*times, change, form.verdict, "yes" if chosen else "")


def main() -> None:
    """Export each run and print the forms that were tried."""
    parser = parser_of(__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    arguments = parser.parse_args()
    with Recorder("precision_auto", arguments) as record, tempfile.TemporaryDirectory() as folder:
        record.table("forms", COLUMNS)
        for path in arguments.runs:
            bundle = export(Run.open(path), Path(folder) / path.name, allow_estimate=True, variant=forms_here())
            evidence = bundle.manifest["evidence"]
            made = Variant(evidence["form"]["precision"], evidence["form"]["provider"]).describe()
            for form in [TriedForm(**each) for each in evidence["forms_tried"]]:
                record.add(f"{path.name}, {form.form}", *cells(form, chosen=form.form == made))


if __name__ == "__main__":
    main()
