"""Values measured by this project, one per configuration, for docs/papers.md."""

from __future__ import annotations

from collections.abc import Mapping

from research.results import cell, read_record

HEADS = "heads on grocery instead, ten seeds ([table](tables/paper_claims.md))"


def measured_values() -> Mapping[str, str]:
    """Return the measured value for each configuration that was run, from the records of `research.results`."""
    values = {"tcm-table-2": _tcm(), "mean-field-table-2": _mean_field(), "contextual-figure-6": _contextual()}
    values |= {"vmf-table-1": _vmf(), "vmf-figure-9": _norms(), "tcm-table-4": _step()}
    return values | {row[0]: row[1] for row in read_record("papers").table("papers").rows}


def _tcm() -> str:
    rows = read_record("paper_claims").table("TCM lowers OPIS by at least 25 % at no loss of R@1").rows
    changes = "; ".join(f"{row[0].split(' (')[0]} {row[3]}" for row in rows)
    return f"{HEADS}: TCM changes OPIS by {changes}"


def _mean_field() -> str:
    table = read_record("paper_claims").table("The mean-field losses need fewer epochs than ProxyAnchor")
    contrastive, multi_similarity = (row[3] for row in table.rows[1:])
    return (
        f"{HEADS}: epochs to the same goal, less those of ProxyAnchor: MFCont {contrastive}, MFCWMS {multi_similarity}"
    )


def _contextual() -> str:
    table = "The contextual loss holds up better than multi-similarity"
    labels, classes = (
        cell("paper_claims", table, row, "its further loss") for row in ("20 % of labels wrong", "half of the classes")
    )
    changes = f"a fifth of the labels wrong {labels}, half the classes {classes}"
    return f"{HEADS}: change of R@1 less that of multi-similarity: {changes}"


def _vmf() -> str:
    alone, joint = read_record("paper_claims").table("EL-nivMF beats ProxyNCA").rows
    return (
        f"{HEADS}: R@1 EL-nivMF {alone[1]}, ProxyNCA {alone[2]}; EL-nivMF + ProxyAnchor {joint[1]}, "
        f"ProxyAnchor {joint[2]}"
    )


def _norms() -> str:
    rows = {
        row[0].split(" (")[0]: row[1]
        for row in read_record("paper_claims").table("Low norms are the ambiguous photos").rows
    }
    return (
        f"{HEADS}: AUROC of the norm for a wrong first answer: EL-nivMF {rows['vmf_nca']}, ProxyNCA {rows['proxy_nca']}"
    )


def _step() -> str:
    share = cell("step", "added", "TCM over Smooth-AP", "of a step, by the losses alone")
    return (
        "MobileNet-v1 0.75 at 160 px instead, 64 photos, Smooth-AP ([table](tables/training_speed.md)): TCM adds "
        f"{share} to a step by the losses alone, where the paper has 1.4 %"
    )
