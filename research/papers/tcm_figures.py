"""Figures of arXiv 2307.04047 that need runs of their own."""

from __future__ import annotations

from .configuration import DRAWN, Configuration, Variant
from .tcm_recipes import (
    ARCFACE,
    COMMON,
    EPOCHS,
    PROXY_NCA,
    RANGES,
    RESNET_50,
    RSK,
    SAP,
    TCM,
    VIT_B,
    tcm,
    with_and_without,
)

FIGURES = (
    Configuration(
        name="tcm-figure-1",
        items=("Figure 1",),
        shows="The distance that meets one false-accept rate, data set by data set, with and without TCM.",
        datasets=("inat", "sop", "cub", "cars"),
        settings=COMMON,
        variants={"SAP": Variant(SAP), "SAP + TCM": Variant({**SAP, **TCM})},
        metrics=("d at FAR 0.01", "d at FAR 0.1"),
        note="The paper's figure is a sketch of the claim, without numbers; this measures it.",
    ),
    Configuration(
        name="tcm-figure-2",
        items=("Figure 2",),
        shows="Utility of every class over the distance, with and without TCM.",
        datasets=("inat", "cars"),
        settings=COMMON,
        variants={"SAP": Variant(SAP), "SAP + TCM": Variant({**SAP, **TCM})},
        metrics=("OPIS",),
        note=EPOCHS,
    ),
    Configuration(
        name="tcm-figure-3",
        items=("Figure 3",),
        shows="Recognition error against OPIS: losses, backbones and batch sizes, with and without TCM.",
        datasets=("inat",),
        settings=COMMON,
        variants={
            f"{backbone} {loss} {4 * items}{suffix}": Variant(
                {**network, **base, "items_per_batch": items, "micro_batch_size": 96, **regularizer},
                series="with TCM" if suffix else "base loss",
            )
            for backbone, network in (("ResNet-50", RESNET_50), ("ViT-B/16", VIT_B))
            for loss, base in (("ProxyNCA", PROXY_NCA), ("ArcFace", ARCFACE), ("SAP", SAP), ("RS@K", RSK))
            for items in (24, 96)
            for suffix, regularizer in (("", {}), (" + TCM", TCM))
        },
        metrics=("error", "OPIS"),
        note=EPOCHS + " The paper does not list its points; these are four losses, two backbones, two batch sizes.",
    ),
    Configuration(
        name="tcm-figure-5",
        items=("Figure 5",),
        shows="Embeddings in the plane under ArcFace, with and without TCM.",
        datasets=("grocery",),
        settings={
            "backbone": "small",
            "size": 32,
            "dim": 2,
            "epochs": 30,
            "loss": "arcface",
            "loss_arguments": {"scale": 16.0},
            "items_per_batch": 10,
            "photos_per_item": 12,
            "flip": False,
            "select": "r@1",
        },
        variants={"ArcFace": Variant(), "ArcFace + TCM": Variant(TCM)},
        metrics=("R@1", "OPIS"),
        note="The paper draws MNIST: give a catalogue of its digits with --data; any catalogue will do.",
    ),
    Configuration(
        name="tcm-figure-6",
        items=("Figure 6",),
        shows="Recall and OPIS over the margins of TCM.",
        datasets=("inat",),
        settings={**COMMON, **SAP},
        variants={"SAP": Variant()}
        | {
            f"m+ {positive}, m- {negative}": Variant(
                tcm(positive_margin=positive, negative_margin=negative), series=f"m+ {positive}", x=negative
            )
            for positive in (0.8, 0.85, 0.9, 0.95)
            for negative in (0.25, 0.4, 0.5, 0.6)
        },
        metrics=("R@1", "OPIS"),
        published={("inat", "SAP"): (67.4, 0.33)},
        note=EPOCHS + " Of the grid the text names m- = 0.25 and (0.9, 0.5) only.",
    ),
    Configuration(
        name="tcm-figure-7",
        items=("Figure 7",),
        shows="Utility over the distance where distances are Gaussian: of specificity, and of precision.",
        protocol=DRAWN,
        drawing="gaussian utility",
    ),
    Configuration(
        name="tcm-figure-8",
        items=("Figure 8",),
        shows="OPIS of six models over five calibration ranges, and their ranks.",
        datasets=("inat",),
        settings=COMMON,
        variants=with_and_without(ProxyNCA=PROXY_NCA, ArcFace=ARCFACE, SAP=SAP),
        metrics=RANGES,
        note=EPOCHS,
    ),
)
