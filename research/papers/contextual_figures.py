"""The figures of arXiv 2210.01908."""

from __future__ import annotations

from .configuration import COST, DRAWN, Configuration, Variant
from .contextual_recipes import (
    ABLATIONS,
    BY_DATASET,
    COMMON,
    GRID_NOTE,
    LAMBDAS,
    LARGE,
    MAIN,
    RANKING,
    ablated,
    context,
    contrastive,
    mixed,
    ours,
)


def grid(figure: int, dataset: str, method: str, title: str) -> Configuration:
    """Return one of Figures 18 to 29: a grid of lambda, learning rate and positive margin for one ranking loss."""
    return Configuration(
        name=f"contextual-figure-{figure}",
        items=(f"Figure {figure}",),
        shows=f"Train and test R@1 of {title} with contrastive on {dataset}: lambda, learning rate, positive margin.",
        datasets=(dataset,),
        settings=COMMON,
        by_dataset=BY_DATASET,
        variants={
            f"lambda {weight:g}, lr {rate:g}, pm {margin:g}": Variant(
                {**mixed(weight, RANKING[method], margin), "learning_rate": rate},
                series=f"lr {rate:g}, pm {margin:g}",
                x=weight,
            )
            for rate in (4e-5, 8e-5, 1.6e-4)
            for margin in (0.75, 0.9)
            for weight in LAMBDAS
        },
        metrics=("R@1", "train R@1"),
        note=GRID_NOTE,
    )


NOISES = {
    "label noise": (0.05, 0.1, 0.2),
    "image noise": (0.05, 0.1, 0.2),
    "first classes": (0.5, 0.6, 0.7, 0.8, 0.9),
}
PAIRWISE = {
    "Contextual": context(neighbours=8),
    "Contrastive": contrastive(),
    "Triplet": {"loss": "triplet"},
    "MS": {"loss": "multi_similarity"},
    "ROADMAP": {"loss": "roadmap"},
}

FIGURES = (
    Configuration(
        name="contextual-figure-2",
        items=("Figure 2",),
        shows="Test R@1 by epoch, and test against train R@1 at the end.",
        datasets=("cub", "cars"),
        settings=COMMON,
        by_dataset=BY_DATASET,
        variants=MAIN,
        metrics=("R@1", "train R@1"),
        note="Train R@1 is measured once, at the chosen checkpoint, not in every epoch.",
    ),
    Configuration(
        name="contextual-figure-3",
        items=("Figure 3",),
        shows="The loss and MAP@R by epoch for several lambda, and the loss of a whole training set as one batch.",
        datasets=("cub",),
        settings={**COMMON, "projector": 512},
        variants={
            f"lambda {weight:g}": Variant({**ours(weight, 0.0), "epoch_steps": 15}) for weight in (0.0, 0.4, 0.8, 1.0)
        }
        | {
            f"lambda {weight:g}, one batch": Variant(
                ours(weight, 0.0)
                | {"learning_rate": 0.0, "items_per_batch": 100, "photos_per_item": 58, "epoch_steps": 1}
            )
            for weight in (0.0, 1.0)
        },
        metrics=("mAP",),
        note="MAP@R by epoch where the paper has mAP. The loss is the whole objective: the contextual one at lambda 1.",
    ),
    Configuration(
        name="contextual-figure-4",
        items=("Figure 4",),
        shows="The contextual and the contrastive loss, and their slopes, as one point of 64 crosses to its own class.",
        protocol=DRAWN,
        drawing="contextual gradient",
    ),
    Configuration(
        name="contextual-figure-6",
        items=("Figure 6",),
        shows="R@1 with wrong labels, strange photos, and fewer classes.",
        datasets=("cub",),
        settings={**COMMON, "items_per_batch": 32, "photos_per_item": 8, "projector": 512, "epoch_steps": 15},
        variants={
            f"{method}, {noise} {share:g}": Variant(
                settings, series=f"{method}, {noise}", x=share, photos=(noise, share) if share else None
            )
            for method, settings in PAIRWISE.items()
            for noise, shares in NOISES.items()
            for share in ((1.0,) if noise == "first classes" else (0.0,)) + shares
        },
        metrics=("R@1",),
        note="Strange photos come from the folder --strangers (the paper's 1,800 photos of birds are not published). "
        + GRID_NOTE,
    ),
    Configuration(
        name="contextual-figure-7",
        items=("Figure 7",),
        shows="R@1 over lambda, with and without the similarity regularizer.",
        datasets=("cub", "cars"),
        settings=COMMON,
        by_dataset={name: {k: v for k, v in rows.items() if k != "learning_rate"} for name, rows in BY_DATASET.items()},
        variants={
            f"lambda {weight:g}, gamma {gamma:g}, lr {rate:g}": Variant(
                {**ours(weight, gamma), "learning_rate": rate}, series=f"gamma {gamma:g}, lr {rate:g}", x=weight
            )
            for rate in (4e-5, 8e-5, 1.6e-4)
            for gamma in (0.0, 0.1)
            for weight in LAMBDAS
        },
        metrics=("R@1",),
        note=GRID_NOTE,
    ),
    Configuration(
        name="contextual-figure-8",
        items=("Figure 8",),
        shows="Cost of the contextual objective and of ROADMAP over the batch size: time, and memory for the gradient.",
        protocol=COST,
        settings={**COMMON, "learning_rate": 0.0},
        variants={
            f"{name}, {4 * items}": Variant({**loss, "items_per_batch": items}, series=name, x=4 * items)
            for name, loss in (("Contextual", ours()), ("ROADMAP", {"loss": "roadmap"}))
            for items in (25, 50, 100, 200, 400, 800, 1600)
        },
        metrics=("loss ms", "kept MiB"),
        note="On this machine; the paper had an A40 with 48 GB. ROADMAP ranks n x m pairs a query here, not n x n.",
    ),
    Configuration(
        name="contextual-figure-9",
        items=("Figure 9",),
        shows="Train R@1 of a linear layer on fixed features over lambda and the batch size, and its loss by epoch.",
        datasets=("cub",),
        settings={**COMMON, "precompute": 8},
        variants={
            f"lambda {weight:g}, {4 * items}": Variant(
                {**ours(weight, 0.0), "items_per_batch": items, "epoch_steps": 15},
                series=f"{4 * items} a batch",
                x=weight,
            )
            for items in (100, 400, 1600)
            for weight in (0.0, 0.4, 0.8, 1.0)
        },
        metrics=("train R@1", "train MAP@R"),
        note=GRID_NOTE + " CUB has 100 classes to train on: batches beyond 400 photos take more photos of each.",
    ),
    Configuration(
        name="contextual-figure-11",
        items=("Figure 11",),
        shows="Step 1 alone unrolls five concentric circles, however noisy.",
        protocol=DRAWN,
        drawing="concentric circles",
    ),
    Configuration(
        name="contextual-figure-12",
        items=("Figure 12",),
        shows="Distances between test photos, with and without the M- term.",
        datasets=("cub",),
        settings=COMMON,
        by_dataset=BY_DATASET,
        variants={"M+ only": Variant(ablated(complement=False)), "M+ and M-": Variant(context())},
        metrics=("R@1",),
        note="The paper does not name the data set of this figure.",
    ),
    Configuration(
        name="contextual-figure-13",
        items=("Figure 13",),
        shows="R@1 on SOP over epsilon, gamma and the target of the similarity regularizer.",
        datasets=("sop",),
        settings=LARGE,
        by_dataset=BY_DATASET,
        variants={
            f"epsilon {value:g}": Variant(ours(0.4, 0.1, target=0.25, margin=value), series="epsilon", x=value)
            for value in (0.0, 0.02, 0.05, 0.1)
        }
        | {
            f"gamma {value:g}": Variant(ours(0.4, value, target=0.25), series="gamma", x=value)
            for value in (0.0, 0.05, 0.1, 0.2)
        }
        | {
            f"target {value:g}": Variant(ours(0.4, 0.1, target=value), series="target", x=value)
            for value in (0.2, 0.25, 0.3, 0.35)
        },
        metrics=("R@1",),
        note=GRID_NOTE,
    ),
    Configuration(
        name="contextual-figure-14",
        items=("Figure 14",),
        shows="Test against train R@1 over lambda.",
        datasets=("cub", "cars"),
        settings=COMMON,
        by_dataset=BY_DATASET,
        variants={f"lambda {w:g}": Variant(ours(w, 0.0), series="gamma 0", x=w) for w in LAMBDAS},
        metrics=("R@1", "train R@1"),
        note=GRID_NOTE,
    ),
    Configuration(
        name="contextual-figure-15",
        items=("Figure 15",),
        shows="The loss and test R@1 on SOP by epoch, over lambda.",
        datasets=("sop",),
        settings=LARGE,
        by_dataset=BY_DATASET,
        variants={f"lambda {w:g}": Variant(ours(w, 0.0)) for w in (0.0, 0.4, 0.8, 1.0)},
        metrics=("R@1",),
        note="The loss is the whole objective; the paper draws its contextual part.",
    ),
    Configuration(
        name="contextual-figure-16",
        items=("Figure 16",),
        shows="The ablations of Table 5 over lambda on CUB and Cars.",
        datasets=("cub", "cars"),
        settings=LARGE,
        by_dataset=BY_DATASET,
        variants={
            f"{name}, lambda {weight:g}": Variant(mixed(weight, settings), series=name, x=weight)
            for name, settings in ABLATIONS.items()
            if name != "no stop gradient"
            for weight in (0.0, 0.4, 0.8, 1.0)
        },
        metrics=("R@1",),
        note=GRID_NOTE,
    ),
    Configuration(
        name="contextual-figure-17",
        items=("Figure 17",),
        shows="The count of mutual neighbours in Eq. 27, differentiated and not.",
        datasets=("cub", "cars", "sop"),
        settings=LARGE,
        by_dataset=BY_DATASET,
        variants={
            f"{name}, lambda {weight:g}": Variant(mixed(weight, settings), series=name, x=weight)
            for name, settings in (("as printed", context()), ("detached", {"loss": "contextual_detached"}))
            for weight in (0.4, 0.8, 1.0)
        },
        metrics=("R@1",),
        note=GRID_NOTE,
    ),
    *(
        grid(figure, dataset, method, title)
        for figure, (dataset, method, title) in enumerate(
            (
                *(
                    (d, m, t)
                    for d in ("cub", "cars")
                    for m, t in (
                        ("contextual", "the contextual loss"),
                        ("roadmap", "Roadmap"),
                        ("smooth_ap", "Smooth-AP"),
                        ("softbin_ap", "Softbin-AP"),
                        ("blackbox_ap", "Blackbox-AP"),
                    )
                ),
                ("sop", "contextual", "the contextual loss"),
                ("sop", "roadmap", "Roadmap"),
            ),
            start=18,
        )
    ),
)
