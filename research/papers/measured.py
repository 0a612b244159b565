"""Values measured by this project, one per configuration, for docs/papers.md."""

from __future__ import annotations

from collections.abc import Mapping

from research.results import cell, read_record
from research.results.sentences import number

HEADS = "heads on grocery instead, ten seeds ([table](tables/paper_claims.md))"
SHOWN, NOT_SHOWN = "**shown**: ", "**not shown**: "
NOT_SEEN = ("tcm-figure-5", "contextual-figure-8")  # items of the record "papers" that do not show what the paper says


def measured_values() -> Mapping[str, str]:
    """Return the measured value for each configuration that was run, from the records of `research.results`."""
    values = {"tcm-table-2": _tcm(), "mean-field-table-2": _mean_field(), "contextual-figure-6": _contextual()}
    values |= {"vmf-table-1": _vmf(), "vmf-figure-9": _norms(), "tcm-table-4": _step()}
    rows = read_record("papers").table("papers").rows
    return values | {name: (NOT_SHOWN if name in NOT_SEEN else SHOWN) + figure for name, figure in rows}


def _answer(*answers: str) -> str:
    """Return the status of an item whose comparisons say yes or no."""
    yes = answers.count("yes")
    if 0 < yes < len(answers):
        return f"**shown in {yes} of {len(answers)}**: "
    return SHOWN if yes else NOT_SHOWN


def _tcm() -> str:
    rows = read_record("paper_claims").table("TCM lowers OPIS by at least 25 % at no loss of R@1").rows
    changes = "; ".join(f"{row[0].split(' (')[0]} {row[3]}, R@1 {row[4]}" for row in rows)
    asked = "our goal is 25 % less OPIS at no loss of R@1; TCM changes OPIS by"
    return f"{_answer(*(row[-1] for row in rows))}{HEADS}: {asked} {changes}"


def _mean_field() -> str:
    table = read_record("paper_claims").table("The mean-field losses need fewer epochs than ProxyAnchor")
    contrastive, multi_similarity = (row[3] for row in table.rows[1:])
    status = _answer(*(row[-1] for row in table.rows[1:]))
    return (
        f"{status}{HEADS}: epochs to the same goal, less those of ProxyAnchor: MFCont {contrastive}, "
        f"MFCWMS {multi_similarity}"
    )


def _contextual() -> str:
    labels, classes = (
        read_record("paper_claims").table("The contextual loss holds up better than multi-similarity").rows[1:]
    )
    changes = f"a fifth of the labels wrong {labels[-2]}, half the classes {classes[-2]}"
    return f"{_answer(labels[-1], classes[-1])}{HEADS}: change of R@1 less that of multi-similarity: {changes}"


def _vmf() -> str:
    alone, joint = read_record("paper_claims").table("EL-nivMF beats ProxyNCA").rows
    recalls = f"EL-nivMF {alone[1]}, ProxyNCA {alone[2]}; EL-nivMF + ProxyAnchor {joint[1]}, ProxyAnchor {joint[2]}"
    return f"{_answer(alone[-1], joint[-1])}{HEADS}: R@1 {recalls}"


def _norms() -> str:
    table = read_record("paper_claims").table("Low norms are the ambiguous photos")
    rows = {row[0].split(" (")[0]: row for row in table.rows}
    vmf, nca = rows["vmf_nca"], rows["proxy_nca"]
    status = _answer(vmf[-1], nca[-1])
    return f"{status}{HEADS}: AUROC of the norm for a wrong first answer: EL-nivMF {vmf[1]}, ProxyNCA {nca[1]}"


def _step() -> str:
    share = cell("step", "added", "TCM over Smooth-AP", "of a step, by the losses alone")
    status = SHOWN if number(share) < 1.5 else NOT_SHOWN
    return (
        f"{status}MobileNet-v1 0.75 at 160 px instead, 64 photos, Smooth-AP ([table](tables/training_speed.md)): TCM "
        f"adds {share} to a step by the losses alone, where the paper has 1.4 %"
    )
