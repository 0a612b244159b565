"""The page's feedback: one verdict per answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from retrieval.errors import RetrievalError
from retrieval.threshold.feedback import RIGHT, UNKNOWN, WRONG
from serving.api.problems import problem_response
from serving.service import Service

from .page_events import EVENT, SessionAnswer, SessionAnswers
from .page_gradio import UNQUEUED, load_gradio

if TYPE_CHECKING:
    import gradio

QUESTIONS = {  # by whether the answer is a match
    True: "<p>Is this right?</p>",
    False: "<p>If one of these is right, say so below its picture. If not:</p>",
}
VERDICTS = {RIGHT: "Yes, this one", UNKNOWN: "It is not in the catalogue", WRONG: "It is another item, not shown"}


@dataclass(frozen=True)
class Verdicts:
    """The feedback controls of the page."""

    area: gradio.Column
    status: gradio.HTML
    buttons: gradio.Row
    right: gradio.Button
    wrong: gradio.Button

    @property
    def outputs(self) -> list[Any]:
        """The components that `updates` returns updates of."""
        return [self.area, self.status, self.buttons, self.right, self.wrong]

    def updates(self, answer: SessionAnswer | None, *, visible: bool) -> tuple[Any, ...]:
        """Return updates for a new answer; "Yes, this one" is offered for a match."""
        gradio = load_gradio()
        matched = answer is not None and bool(answer.matched)
        shown = gradio.Row(visible=visible), gradio.Button(visible=matched), gradio.Button()
        return gradio.Column(visible=visible), QUESTIONS[matched], *shown


def verdict_buttons(service: Service, session_answers: SessionAnswers, cards: int) -> Verdicts:
    """Return the feedback controls. The buttons on cards click those of class `r-picks`, which are hidden (page.js)."""
    gradio = load_gradio()
    with gradio.Column(visible=False, elem_classes="r-verdicts") as area:
        status = gradio.HTML(QUESTIONS[True], elem_id="noted")
        with gradio.Row() as buttons:
            named = {
                verdict: gradio.Button(label, size="lg", elem_id=f"verdict-{verdict}", min_width=120)
                for verdict, label in VERDICTS.items()
            }
            with gradio.Row(elem_classes="r-picks"):
                picks = [gradio.Button(str(n), elem_id=f"verdict-pick-{n}", min_width=0) for n in range(cards)]

    def judge(verdict: str, number: int | None = None) -> tuple[Any, ...]:
        event = EVENT.get()
        answer = session_answers.of(event)
        try:
            picked = "" if number is None or answer is None else answer.item(number)
            if verdict == WRONG and answer is not None and picked == answer.matched:
                verdict, picked = RIGHT, ""
            service.feedback("" if answer is None else answer.request_id, verdict, picked)
        except (RetrievalError, OSError) as error:
            event.status = problem_response(error).status_code if isinstance(error, RetrievalError) else 500
            why = "" if answer is not None else ": it was judged already, or is gone"
            failed = f"<p role='status'>This could not be saved{why}. Search again, then answer.</p>"
            return failed, gradio.Row(), gradio.skip(), gradio.skip()
        session_answers.record(event, None)  # one verdict per answer
        return "<p role='status'>Saved, thank you.</p>", gradio.Row(visible=False), gradio.skip(), gradio.skip()

    changed = [status, buttons, named[RIGHT], named[WRONG]]
    events = [(named[verdict], verdict, partial(judge, verdict)) for verdict in VERDICTS]
    events += [(pick, f"pick_{n}", partial(judge, WRONG, n)) for n, pick in enumerate(picks)]
    for button, name, on_click in events:
        button.click(on_click, None, changed, show_progress="hidden", api_name=f"verdict_{name}", **UNQUEUED)
    return Verdicts(area, status, buttons, named[RIGHT], named[WRONG])
