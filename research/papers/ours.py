"""What was measured on the machine of the project, by configuration: a cell of docs/papers.md each."""

from __future__ import annotations

from collections.abc import Mapping

OURS: Mapping[str, str] = {
    "tcm-table-2": "grocery instead, three seeds (BENCHMARKS.md): TCM changes OPIS by 0, -3, -16, +29 and "
    "-6 % over Smooth-AP, ProxyAnchor, Recall@k, ProxyNCA and ArcFace; only ProxyNCA's interval excludes no change",
    "mean-field-table-2": "heads on grocery instead, ten seeds (BENCHMARKS.md): to the same goal MFCont needs "
    "2.4 [-4.2, 9.0] epochs more than ProxyAnchor, MFCWMS 0.2 [-0.7, 1.1] fewer",
    "contextual-figure-6": "heads on grocery instead, ten seeds (BENCHMARKS.md): beside multi-similarity R@1 "
    "falls 0.012 [0.002, 0.021] more with a fifth of the labels wrong, 0.011 [-0.001, 0.023] with half the classes",
    "vmf-table-1": "grocery instead, three seeds (BENCHMARKS.md): R@1 0.737 ± 0.013 for EL-nivMF with "
    "ProxyAnchor, 0.715 ± 0.017 for ProxyAnchor, 0.706 ± 0.016 for ProxyNCA",
    "vmf-figure-9": "heads on grocery instead, ten seeds (BENCHMARKS.md): the norm tells a wrong first answer "
    "with AUROC 0.604 [0.590, 0.619] for EL-nivMF, 0.576 [0.569, 0.583] for ProxyNCA",
    "tcm-table-4": "MobileNet-v1 0.75 at 160 px instead, 64 photos, Smooth-AP (BENCHMARKS.md): TCM adds 0.05 % to a "
    "step by the losses alone, where the paper has 1.4 %",
    "tcm-figure-5": "grocery instead, one seed: in the plane R@1 is 0.174 and 0.171 with TCM, OPIS 0.0200 and 0.0190",
    "tcm-figure-7": "greatest utility 0.998, 0.914, 0.850 for three pairs of Gaussians; precision at most 0.005 lower",
    "contextual-figure-4": "the contextual loss has a slope towards the own centre at every point of the way, the "
    "contrastive one at 84 %",
    "contextual-figure-8": "at 1,600 photos a batch 2.0 s and 91 MiB, ROADMAP 2.8 s and 83 MiB (one thread of a "
    "busy machine; larger batches not run)",
    "contextual-figure-11": "R@1 1.00 at every noise (0, 0.05, 0.1) against 0.96 of the input",
    "vmf-figure-2": "both densities integrate to 1.000000; greatest 3.18 and 3.47",
    "vmf-figure-3": "from cosine 1 to -1 L2 rises by 40 at norm 1 and by 800 at norm 20, Bhattacharyya by 0.04 and "
    "0.78, the cosine by 2 at both",
    "vmf-figure-8": "greatest error on 10 to 50: ours 1.4e-12, the paper's fit 0.030; at 200: 4e-12 and 2.2",
}
