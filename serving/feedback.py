"""Feedback on answers: recent answers, and verdicts on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from retrieval.images import Source
from retrieval.retriever import Retriever
from retrieval.search.result import BBox
from retrieval.threshold.feedback import append_feedback, feedback_on
from retrieval.threshold.judged import Parts, part
from serving.http.callers import CALLER, Caller

from .config import ServeSettings
from .errors import NoSuchThing
from .kept_photos import KeptPhotos
from .recent_answers import RecentAnswers


class FeedbackRecorder:
    """Keeps recent answers, and appends verdicts on them to the feedback file. Thread-safe."""

    def __init__(self, settings: ServeSettings) -> None:
        self._file = settings.feedback
        self._answers = RecentAnswers()
        keeps = settings.feedback is not None and settings.feedback_photos is not None
        self._photos = KeptPhotos(settings.feedback_photos) if keeps and settings.feedback_photos else None

    def add(self, request_id: str, parts: Parts, photos: Sequence[Source]) -> None:
        """Keep what may be judged of the caller's answer, with its photos if the server keeps those."""
        self._answers.add(CALLER.get(), request_id, parts, photos if self._photos is not None else ())

    def record(
        self,
        retriever: Retriever,
        caller: Caller,
        request_id: str,
        verdict: str,
        item_id: str,
        bbox: BBox | None = None,
    ) -> bool:
        """Append the caller's verdict on one of its answers to the feedback file; an admin may judge any answer.

        `item_id` names the right item if it is another one, `bbox` the region of an answer by regions. Returns False
        if this process does not have the answer.
        """
        if self._file is None:
            raise NoSuchThing("this server does not accept feedback", remedy="Start it with --feedback FILE")
        answered = self._answers.find(caller, request_id)
        if answered is None:
            return False
        judged = part(answered.parts, bbox)
        if judged.bundle_id != retriever.bundle.bundle_id:
            raise NoSuchThing("the answer came from a bundle that no longer serves", remedy="Search again")
        if item_id and not retriever.gallery.photos(item_id):
            raise NoSuchThing("the gallery does not have this item", remedy="Send an item_id of the gallery")
        if answered.verdicts.get((caller.key, judged.bbox)) == (verdict, item_id):  # already recorded
            return True
        entry = feedback_on(
            judged,
            verdict,
            retriever.bundle,
            gallery_items=retriever.gallery.items,
            request_id=request_id,
            key=caller.key,
            asked_by=answered.asked_by,
            right_item_id=item_id,
        )
        if self._photos is not None:
            entry = replace(entry, photos=self._photos.keep(answered.photos, answered.asked_by))
        append_feedback(self._file, entry)
        answered.verdicts[caller.key, judged.bbox] = verdict, item_id
        return True
