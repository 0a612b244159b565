"""Re-ranking by contextual similarity at test time (arXiv 2210.01908, Appendix I.5 with Eq. 15 and 16).

Symbols: s cosine, D = 2 - 2s squared distance, k neighbours (the photo itself included), n queries, m gallery photos.

N(i) = {j : D_ij <= (k-th smallest D of i) + margin}
w_ij = |N(i) ∩ N(j)| / |N(i)| if j is in N(i), else 0
score = β w_ij + (1 - β) exp(2 s_ij - 2)

Eq. 15 prints similarities but means distances. Neighbourhoods contain gallery photos; a query outside the gallery is
also a neighbour of itself, and queries are never neighbours of each other. With queries and gallery as one list, this
is the procedure of the paper.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import InvalidParameter
from retrieval.metrics.ranks import Scorer, Scores, Vectors, blocks, cosine_scorer

MOST_MEMBERS = 2**28  # maximum total size of all neighbourhoods, 4 bytes per member


def contextual_scorer(
    queries: Vectors,
    gallery: Vectors,
    *,
    neighbours: int = 16,
    weight: float = 0.1,
    margin: float = 0.0,
    exclude_self: bool = False,
) -> Scorer:
    """Return a scorer by contextual similarity, for `scores` of the rank metrics.

    Parameters
    ----------
    queries, gallery:
        Unit vectors (n, d) and (m, d).
    neighbours:
        k. The paper reports 16 and 32 on CUB and Cars, 4 on SOP.
    weight:
        β; the paper uses 0.1. With 0, the order equals that of the cosine.
    margin:
        ε on squared distances. The paper gives none for re-ranking; 0 limits every neighbourhood to k photos.
    exclude_self:
        Whether queries and gallery are the same list.

    Raises
    ------
    InvalidParameter
        If the margin makes the neighbourhoods too large for memory, which is O(m k) plus one block of scores.
    """
    if neighbours < 1:
        raise InvalidParameter("neighbours", "be at least 1", neighbours)
    if not 0 <= weight <= 1:
        raise InvalidParameter("weight", "lie in [0, 1]", weight)
    if not margin >= 0:
        raise InvalidParameter("margin", "be zero or more", margin)
    if exclude_self and len(queries) != len(gallery):
        raise InvalidParameter("exclude_self", "be used where queries and gallery are one list", exclude_self)
    cosines = cosine_scorer(queries, gallery)
    starts, members = _neighbourhoods(gallery, neighbours, margin)

    def score(rows: slice) -> Scores:
        similarity = cosines(rows)
        own = np.arange(rows.start, rows.stop) if exclude_self else None
        inside = _inside(similarity, neighbours, margin, own)
        scores = (1 - weight) * np.exp(2 * similarity.astype(np.float64) - 2)
        for row, marks in enumerate(inside):
            near = np.flatnonzero(marks)
            size = len(near) + (own is None)  # includes the query itself
            scores[row, near] += weight * _shared(marks, near, starts, members) / size
        return np.asarray(scores)

    return score


def _neighbourhoods(gallery: Vectors, k: int, margin: float) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return N of every gallery photo: members[starts[i]:starts[i + 1]] for photo i, including itself."""
    cosines = cosine_scorer(gallery, gallery)
    sizes, members, total = [], [], 0
    for rows in blocks(len(gallery), len(gallery)):
        inside = _inside(cosines(rows), k, margin, np.arange(rows.start, rows.stop))
        sizes.append(np.count_nonzero(inside, axis=1))
        members.append(np.nonzero(inside)[1].astype(np.int32))
        total += len(members[-1])
        if total > MOST_MEMBERS:
            raise InvalidParameter(
                "margin",
                f"keep all neighbourhoods together below {MOST_MEMBERS} photos",
                margin,
                remedy="Lower margin or neighbours",
            )
    return np.concatenate([[0], *(np.cumsum(np.concatenate(sizes)),)]), np.concatenate(members)


def _inside(similarity: Scores, k: int, margin: float, own: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    """Return N (b, m) of a block as a mask of gallery photos; `own` holds the columns of the photos themselves."""
    squared = np.maximum(2 - 2 * similarity, 0)
    if own is not None:
        squared[np.arange(len(own)), own] = 0  # exact zeros rank first among the k
        rank = k
    else:
        rank = k - 1  # the query itself is the first neighbour
    if rank == 0:
        return np.asarray(squared <= margin) if margin else np.zeros(squared.shape, dtype=np.bool_)
    rank = min(rank, squared.shape[1])
    edge = np.partition(squared, rank - 1, axis=1)[:, rank - 1 : rank]
    return np.asarray(squared <= edge + margin)


def _shared(
    marks: NDArray[np.bool_], near: NDArray[np.int64], starts: NDArray[np.int64], members: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Return |N(i) ∩ N(j)| for the neighbours j of one query i, whose N(i) is marked."""
    if not len(near):
        return np.zeros(0, dtype=np.int64)
    sizes = starts[near + 1] - starts[near]
    offsets = np.cumsum(sizes) - sizes
    places = np.arange(int(sizes.sum())) + np.repeat(starts[near] - offsets, sizes)
    return np.asarray(np.add.reduceat(marks[members[places]].astype(np.int64), offsets))
