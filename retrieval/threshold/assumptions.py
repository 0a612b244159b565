"""The assumptions of a threshold, in words."""

from __future__ import annotations

from .drawn_distances import LABELLED, PROBE, UNKNOWN


def assumptions(source: str, *, shift_items: int = 0) -> list[str]:
    """Return what a threshold assumes, in plain sentences.

    `source` is that of the draws that set it, PROBE for the threshold of a bundle. The query shift was measured on
    `shift_items` items, 0 if it was not measured.
    """
    if source in (LABELLED, UNKNOWN):
        photos = "Users take photos like the labelled queries."
    elif source == PROBE:
        photos = "Users take photos like the calibration photos of the bundle."
    elif shift_items:
        photos = f"Users' photos differ from catalogue photos as measured on {shift_items} items."
    else:
        photos = "Users' photos look like catalogue photos; this was not measured."
    drawn = {PROBE: "the calibration items of the bundle", UNKNOWN: "those of the labelled queries"}.get(
        source, "the items of this catalogue"
    )
    return [
        f"Unknown items are like {drawn}: of the same families, in similar shares. Other items are not covered.",
        photos,
        "No item is in the catalogue under two ids, unless both have a copy of the same photo.",
        "The bundle's list of items that the model was fitted on is complete.",
    ]
