"""The other tables of arXiv 2210.01908: ablations, In-Shop, hierarchy, re-ranking. Numbers in %."""

from __future__ import annotations

from .configuration import Configuration, Variant
from .contextual_recipes import (
    ABLATIONS,
    AT_256,
    BY_DATASET,
    COMMON,
    INAT,
    LARGE,
    LARGE_BASELINES,
    LARGE_OURS,
    MAIN,
    RATES,
    context,
    mixed,
    towards,
)

STUDIES = (
    Configuration(
        name="contextual-table-1",
        items=("Table 1",),
        shows="The contextual loss with gradients against the labels cut off (Eq. 10).",
        datasets=("cub",),
        settings=COMMON,
        by_dataset=BY_DATASET,
        variants={"contextual": Variant(context()), "corrected gradient": Variant({"loss": "contextual_corrected"})},
        metrics=("train R@1", "R@1"),
        published={("cub", "contextual"): (87.0, 71.4), ("cub", "corrected gradient"): (92.9, 65.4)},
    ),
    Configuration(
        name="contextual-table-5",
        items=("Table 5",),
        shows="The contextual loss without each of its steps, alone and with a fifth of contrastive.",
        datasets=("sop",),
        settings=LARGE,
        by_dataset=BY_DATASET,
        variants={
            f"{name}, lambda {weight:g}": Variant(mixed(weight, settings))
            for name, settings in ABLATIONS.items()
            for weight in (0.8, 1.0)
        },
        metrics=("R@1",),
        published={
            ("sop", f"{name}, lambda {weight:g}"): (value,)
            for name, values in (
                ("step 1 only", (83.13, 41.99)),
                ("step 1 only, sigmoid", (79.20, 75.61)),
                ("no step 3", (82.39, 81.05)),
                ("no step 2", (82.74, 81.74)),
                ("min for and", (66.57, None)),
                ("sigmoid", (82.39, 77.84)),
                ("no M-", (82.31, 80.72)),
                ("no stop gradient", (73.03, None)),
                ("contextual", (83.20, 82.04)),
            )
            for weight, value in zip((0.8, 1.0), values, strict=True)
        },
        note=RATES,
    ),
    Configuration(
        name="contextual-table-6",
        items=("Table 6",),
        shows="The similarity regularizer beside six other losses.",
        datasets=("cars", "sop", "inat"),
        settings=LARGE,
        by_dataset={name: {k: v for k, v in rows.items() if k != "projector"} for name, rows in BY_DATASET.items()}
        | {"cars": {"learning_rate": 1.6e-4, "epoch_steps": 30}},
        variants={
            f"{name}{suffix}": Variant({**settings, **regularizer})
            for name, settings in LARGE_BASELINES.items()
            if name != "Fast-AP"
            for suffix, regularizer in (("", {}), (" + 0.25", towards(0.25)), (" + 0.3", towards(0.3)))
        }
        | {"Contextual": Variant(LARGE_OURS)},
        metrics=("mAP", "MAP@R", "R@1"),
        published={
            ("cars", f"{name}{suffix}"): values
            for name, rows in (
                ("Contrastive", ((38.2, 28.8, 85.4), (40.6, 31.2, 88.0), (39.4, 30.0, 87.1))),
                ("Triplet", ((34.9, 24.7, 77.6), (39.2, 29.9, 87.8), (38.5, 29.2, 86.7))),
                ("NtXent", ((36.2, 26.3, 79.0), (37.0, 27.0, 79.9), (35.8, 26.0, 78.7))),
                ("MS", ((43.1, 33.7, 88.7), (42.7, 33.3, 88.8), (43.6, 34.1, 89.3))),
                ("Smooth-AP", ((37.5, 27.5, 81.1), (38.9, 28.8, 82.1), (38.1, 28.2, 82.4))),
                ("ROADMAP", ((38.3, 28.7, 84.5), (39.2, 29.6, 85.7), (39.6, 30.0, 85.7))),
            )
            for suffix, values in zip(("", " + 0.25", " + 0.3"), rows, strict=True)
        }
        | {
            ("sop", f"{name}{suffix}"): values
            for name, rows in (
                ("Contrastive", ((62.9, 57.0, 82.4), (62.8, 56.9, 82.3), (62.7, 56.8, 82.3))),
                ("Triplet", ((63.1, 56.4, 82.0), (64.4, 57.8, 83.1), (64.6, 58.0, 83.3))),
                ("NtXent", ((60.1, 53.4, 79.7), (60.3, 53.7, 80.0), (60.0, 53.4, 79.7))),
                ("MS", ((62.5, 56.2, 81.4), (62.4, 56.1, 81.4), (62.6, 56.3, 81.8))),
                ("Smooth-AP", ((63.1, 56.4, 82.0), (63.2, 56.5, 82.1), (63.5, 56.8, 82.3))),
                ("ROADMAP", ((64.4, 58.2, 83.1), (64.4, 58.2, 83.1), (64.4, 58.2, 83.1))),
            )
            for suffix, values in zip(("", " + 0.25", " + 0.3"), rows, strict=True)
        },
        note=RATES + INAT,
    ),
    Configuration(
        name="contextual-table-8",
        items=("Table 8",),
        shows="In-Shop, with its queries and gallery.",
        datasets=("inshop",),
        settings=LARGE,
        by_dataset=BY_DATASET,
        variants=AT_256,
        metrics=("R@1", "R@10", "R@20", "R@30", "R@40", "R@50"),
        published={
            ("inshop", "Contrastive"): (90.1, 97.4, 98.3, 98.6, 98.8, 98.9),
            ("inshop", "Triplet"): (90.2, 98.0, 98.7, 99.0, 99.2, 99.3),
            ("inshop", "NtXent"): (89.3, 97.6, 98.3, 98.7, 98.9, 99.0),
            ("inshop", "MS"): (86.9, 96.1, 97.3, 97.9, 98.1, 98.3),
            ("inshop", "Fast-AP"): (89.7, 97.5, 98.3, 98.6, 98.8, 98.9),
            ("inshop", "Smooth-AP"): (90.2, 97.9, 98.7, 99.0, 99.2, 99.2),
            ("inshop", "ROADMAP"): (90.4, 97.6, 98.3, 98.6, 98.8, 99.0),
            ("inshop", "Contextual"): (90.7, 97.8, 98.5, 98.9, 99.1, 99.2),
        },
        note=RATES,
        missing="N-Softmax and Proxy NCA++, which the paper copies from other papers.",
    ),
    Configuration(
        name="contextual-table-9",
        items=("Table 9",),
        shows="Average precision of the class and of its super-label.",
        datasets=("cub", "cars", "sop"),
        settings=COMMON,
        by_dataset=BY_DATASET,
        variants={name: variant for name, variant in MAIN.items() if name != "MS"},
        metrics=("R@1", "mAP", "coarse AP"),
        published={
            ("cub", "Contrastive"): (66.2, 35.9, None),
            ("cub", "ROADMAP"): (66.2, 36.0, None),
            ("cub", "Triplet"): (65.0, 34.5, None),
            ("cub", "MS + miner"): (69.4, 37.4, None),
            ("cub", "Proxy Anchor"): (68.0, 36.6, None),
            ("cub", "Proxy NCA"): (65.7, 34.9, None),
            ("cub", "Contextual"): (72.7, 40.3, None),
            ("cars", "Contrastive"): (81.1, 33.4, 39.8),
            ("cars", "ROADMAP"): (83.5, 37.3, 41.9),
            ("cars", "Triplet"): (89.3, 43.3, 42.7),
            ("cars", "MS + miner"): (90.7, 42.7, 39.4),
            ("cars", "Proxy Anchor"): (88.8, 39.0, 38.6),
            ("cars", "Proxy NCA"): (88.0, 37.6, 38.5),
            ("cars", "Contextual"): (91.0, 43.4, 39.1),
            ("sop", "Contrastive"): (80.7, 60.1, 13.0),
            ("sop", "ROADMAP"): (82.1, 62.6, 13.9),
            ("sop", "Triplet"): (81.8, 62.5, 15.0),
            ("sop", "MS + miner"): (82.1, 63.2, 13.5),
            ("sop", "Proxy Anchor"): (79.8, 59.4, 16.2),
            ("sop", "Proxy NCA"): (78.9, 58.6, 16.8),
            ("sop", "Contextual"): (82.7, 63.7, 13.5),
        },
        note=RATES,
        missing="CUB's family and order (mid, coarse): they come with another paper's lists, not with CUB; "
        "here its coarse label is the last word of a bird's name.",
    ),
    Configuration(
        name="contextual-table-10",
        items=("Table 10",),
        shows="R@1 before and after contextual re-ranking, beta = 0.1.",
        datasets=("cub", "cars", "sop"),
        settings=COMMON,
        by_dataset=BY_DATASET,
        variants={name: variant for name, variant in MAIN.items() if name != "MS"},
        metrics=("R@1", "re-ranked R@1, k 4", "re-ranked R@1, k 16", "re-ranked R@1, k 32"),
        published={
            ("cub", "Contrastive"): (66.2, None, 66.6, 66.8),
            ("cub", "ROADMAP"): (66.2, None, 67.4, 66.9),
            ("cub", "Triplet"): (65.0, None, 66.6, 65.8),
            ("cub", "MS + miner"): (69.4, None, 71.1, 70.7),
            ("cub", "Proxy Anchor"): (68.0, None, 69.1, 69.0),
            ("cub", "Proxy NCA"): (65.7, None, 67.2, 66.9),
            ("cub", "Contextual"): (72.7, None, 74.3, 73.9),
            ("cars", "Contrastive"): (81.1, None, 81.2, 80.8),
            ("cars", "ROADMAP"): (83.5, None, 83.5, 83.3),
            ("cars", "Triplet"): (89.3, None, 90.0, 89.9),
            ("cars", "MS + miner"): (90.7, None, 91.2, 91.0),
            ("cars", "Proxy Anchor"): (88.8, None, 89.3, 89.1),
            ("cars", "Proxy NCA"): (88.0, None, 88.5, 88.5),
            ("cars", "Contextual"): (91.0, None, 91.4, 91.1),
            ("sop", "Contrastive"): (80.7, 81.0, None, None),
            ("sop", "ROADMAP"): (82.1, 82.3, None, None),
            ("sop", "Triplet"): (81.8, 82.2, None, None),
            ("sop", "MS + miner"): (82.1, 82.4, None, None),
            ("sop", "Proxy Anchor"): (79.8, 80.1, None, None),
            ("sop", "Proxy NCA"): (78.9, 79.1, None, None),
            ("sop", "Contextual"): (82.7, 82.9, None, None),
        },
        note=RATES,
    ),
)
