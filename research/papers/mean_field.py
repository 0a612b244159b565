"""Configurations of "Mean Field Theory in Deep Metric Learning" (Furusawa, ICLR 2024). Numbers in %."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .configuration import Configuration, Variant
from .mean_field_modern import TABLE
from .mean_field_recipes import BACKBONE, DELTA, MFCONT, MFCWMS, THREE, TRADITIONAL, batches, with_arguments


def over_batch_size(
    number: int, sets: str, published: Mapping[str, Sequence[float]], *, sizes: Sequence[int]
) -> Configuration:
    """Return the table with this number: MAP@R of MFCWMS by batch size, with the paper's values per data set."""
    return Configuration(
        name=f"mean-field-table-{number}",
        items=(f"Table {number}",),
        shows=f"MAP@R of MFCWMS over the batch size, on {sets}.",
        datasets=tuple(published),
        settings={**TRADITIONAL, **MFCWMS},
        variants={str(size): Variant({"items_per_batch": size}, series="MFCWMS", x=size) for size in sizes},
        metrics=("MAP@R",),
        seeds=10,
        published={
            (dataset, str(size)): (value,)
            for dataset, values in published.items()
            for size, value in zip(sizes, values, strict=True)
        },
        note=BACKBONE,
    )


def on_inshop(
    number: int, shows: str, published: Mapping[str, Sequence[float]], *, photos: tuple[str, float] | None = None
) -> Configuration:
    """Return the table with this number: MAP@R of two losses by batch size on In-Shop, with the paper's values."""
    sizes = (30, 60, 90, 120, 150, 300, 500)
    return Configuration(
        name=f"mean-field-table-{number}",
        items=(f"Table {number}",),
        shows=shows,
        datasets=("inshop",),
        settings=TRADITIONAL,
        variants={name: replace(variant, photos=photos) for name, variant in batches(*sizes).items()},
        metrics=("MAP@R",),
        seeds=10,
        published={
            ("inshop", f"{name}, {size}"): (value,)
            for name, values in published.items()
            for size, value in zip(sizes, values, strict=True)
        },
        note=BACKBONE,
    )


CONFIGURATIONS = (
    TABLE,
    Configuration(
        name="mean-field-table-2",
        items=("Table 2", "Table 3", "Figure 4"),
        shows="Three losses by the traditional protocol: the best test MAP@R of 60 epochs, the epoch it comes in, and "
        "the learning curves.",
        datasets=("cub", "cars", "sop", "inshop"),
        settings=TRADITIONAL,
        variants=THREE,
        metrics=("MAP@R", "best epoch"),
        seeds=10,
        published={
            ("cub", "ProxyAnchor"): (25.1, 11.5),
            ("cub", "MFCont"): (25.3, 4.4),
            ("cub", "MFCWMS"): (25.3, 4.7),
            ("cars", "ProxyAnchor"): (26.3, 23.6),
            ("cars", "MFCont"): (24.7, 10.1),
            ("cars", "MFCWMS"): (24.0, 8.5),
            ("sop", "ProxyAnchor"): (51.5, 40.5),
            ("sop", "MFCont"): (52.9, 25.1),
            ("sop", "MFCWMS"): (52.7, 23.0),
            ("inshop", "ProxyAnchor"): (65.5, 31.3),
            ("inshop", "MFCont"): (67.7, 24.1),
            ("inshop", "MFCWMS"): (67.5, 20.6),
        },
        note=BACKBONE,
    ),
    Configuration(
        name="mean-field-figure-2",
        items=("Figure 2",),
        shows="MAP@R over the length of an embedding.",
        datasets=("cub",),
        settings=TRADITIONAL,
        variants={
            f"{name}, {dim}": Variant({**variant.settings, "dim": dim}, series=name, x=dim)
            for name, variant in THREE.items()
            for dim in (32, 64, 128, 256, 512, 1024)
        },
        metrics=("MAP@R",),
        seeds=10,
        note=BACKBONE + " The paper prints no numbers of this figure.",
    ),
    Configuration(
        name="mean-field-figure-3",
        items=("Figure 3",),
        shows="MAP@R over beta and delta of MFCWMS.",
        datasets=("cub",),
        settings=TRADITIONAL,
        variants={
            f"beta {beta}, delta {delta}": Variant(
                with_arguments(MFCWMS, beta=float(beta), delta=round(1 - delta, 2)), series=f"beta {beta}", x=delta
            )
            for beta in (50, 60, 70, 80, 90)
            for delta in (0.6, 0.7, 0.8, 0.9, 1.0)
        },
        metrics=("MAP@R",),
        seeds=10,
        note=BACKBONE + DELTA + " The names above are the paper's. It prints no numbers of this figure.",
    ),
    over_batch_size(
        4,
        "CUB and Cars",
        {"cub": (23.3, 24.4, 25.1, 25.3, 25.4, 25.4), "cars": (22.0, 23.2, 23.6, 23.9, 24.2, 24.2)},
        sizes=(30, 60, 90, 120, 150, 180),
    ),
    over_batch_size(
        5,
        "SOP and In-Shop",
        {"sop": (51.1, 52.0, 52.4, 52.7, 52.8, 53.0), "inshop": (67.4, 67.6, 67.6, 67.8, 67.0, 67.0)},
        sizes=(30, 60, 90, 120, 150, 300),
    ),
    Configuration(
        name="mean-field-table-6",
        items=("Table 6",),
        shows="MAP@R over the weight of the mean fields' regularization.",
        datasets=("cub",),
        settings=TRADITIONAL,
        variants={
            f"{name}, {weight:g}": Variant(with_arguments(base, regularization=weight), series=name, x=weight)
            for name, base in (("MFCont", MFCONT), ("MFCWMS", MFCWMS))
            for weight in (0.0, 0.01, 0.1, 1.0, 10.0, 100.0)
        },
        metrics=("MAP@R",),
        seeds=10,
        published={
            ("cub", f"{name}, {weight:g}"): (value,)
            for name, values in (
                ("MFCont", (25.2, 25.2, 25.3, 25.2, 25.2, 25.0)),
                ("MFCWMS", (25.3, 25.3, 25.3, 25.3, 25.2, 25.1)),
            )
            for weight, value in zip((0.0, 0.01, 0.1, 1.0, 10.0, 100.0), values, strict=True)
        },
        note=BACKBONE + " lambda is that of the printed equation.",
    ),
    on_inshop(
        10,
        "ProxyAnchor and MFCWMS over the batch size on In-Shop, with its queries and gallery.",
        {
            "ProxyAnchor": (63.6, 65.7, 65.5, 65.6, 65.5, 64.5, 63.3),
            "MFCWMS": (67.4, 67.6, 67.6, 67.8, 67.0, 67.0, 67.1),
        },
    ),
    on_inshop(
        11,
        "The same where every test photo asks all the others.",
        {
            "ProxyAnchor": (61.7, 62.8, 62.9, 62.9, 62.7, 61.9, 60.6),
            "MFCWMS": (64.7, 65.1, 65.0, 64.9, 65.0, 64.7, 64.6),
        },
        photos=("one set", 1.0),
    ),
)

NOTHING_TO_RUN = {"Figure 1": "a drawing of the interactions; nothing is measured"}
