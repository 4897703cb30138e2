"""An ACES task as a question, where it is one: does the label's predicate occur within so long after the prediction
time?"""

from __future__ import annotations

import numpy as np

from unmask.errors import UserError, either, first_of, option
from unmask.modalities.events.questions.queries import MOST_ITEMS
from unmask.modalities.events.records.aces import SECOND, TRIGGER, Predicate, Task
from unmask.modalities.events.records.vocabulary import Vocabulary
from unmask.modalities.events.records.windows import TaskPoints, matching


def question_of(task: Task, points: TaskPoints, vocabulary: Vocabulary) -> str:
    """The task in the words of `query_text`.

    Args:
        points: of the task on the data that are asked about.
        vocabulary: of the model, whose codes a regex is searched in.

    Raises:
        UserError: it is no question, with all reasons.
    """
    why, window = list[str](), task.labelled
    if window is None or window.label is None:
        raise UserError(f"{task.path}: no question: no window has a label", hint=_instead(task))
    begin, end = (_canonical(task, f"{window.name}.{which}") for which in ("start", "end"))
    when = _canonical(task, f"{task.indexed.name}.{task.indexed.index}")
    if begin != when:
        why.append(f"window {window.name} does not begin at the prediction time")
    elif window.start_inclusive:
        why.append(f"window {window.name} counts events at the prediction time itself, which are known")
    if end[0] != begin[0]:
        why.append(f"window {window.name} ends with an event, not after a fixed time")
    if points.future:
        why.append(f"its points are chosen by what comes after them: {first_of(points.future)}")
    items = list[str]()
    label = task.predicates.get(window.label)
    if label is None or _every(task, label):
        why.append(f"{window.label} is no code, nor any of several")
    else:
        for part in task.plain_parts(window.label):
            items += _items(part, vocabulary, why)
    items = list(dict.fromkeys(items))
    if not items and not why:
        why.append(f"the model knows no code of {window.label}")
    if len(items) > MOST_ITEMS:
        why.append(f"{window.label} is any of {len(items)} codes, and questions have up to {MOST_ITEMS}")
    if why:
        raise UserError(f"{task.path}: no question: {'; '.join(why)}", hint=_instead(task))
    hours = (end[1] - begin[1]) / SECOND / 3600
    within = f"{hours / 24:g} days" if hours % 24 == 0 else f"{hours:g} hours"
    return f"{'any of ' if len(items) > 1 else ''}{', '.join(items)} within {within}"


def _instead(task: Task) -> str:
    """What to do with a task that is no question."""
    ask = either(
        f'unmask ask MODEL MEDS "CODE within 30 days" --at {task.path}',
        f'model.ask(meds, "CODE within 30 days", at={task.path!r})',
    )
    return f"Fine-tune on it ({option('labels', task.path)}), or ask what is near to it at its points: {ask}."


def _canonical(task: Task, moment: str) -> tuple[str, int]:
    """A moment as the event it hangs on, and microseconds after that."""
    if moment == TRIGGER:
        return TRIGGER, 0
    name, which = moment.split(".")
    window = task.windows[name]
    boundary = window.start if which == "start" else window.end
    if boundary.event:
        return moment, 0
    of = f"{name}.{boundary.of}" if boundary.of in ("start", "end") else boundary.of
    event, after = _canonical(task, of)
    return event, after + boundary.offset


def _every(task: Task, predicate: Predicate) -> bool:
    """Whether it needs several predicates at one time, somewhere."""
    parts = [task.predicates[p] for p in predicate.parts if p in task.predicates]
    return predicate.every or len(parts) < len(predicate.parts) or any(_every(task, part) for part in parts)


def _items(predicate: Predicate, vocabulary: Vocabulary, why: list[str]) -> list[str]:
    """Codes of the model that are a predicate, with the bound of their values; `why` not."""
    if predicate.static:
        why.append(f"{predicate.name} is a fact without a time")
    if predicate.least is not None and predicate.most is not None:
        why.append(f"{predicate.name} has two bounds")
    side = ""
    if predicate.least is not None:
        side = f" >{'=' * predicate.least_inclusive} {np.float32(predicate.least)!s}"
    elif predicate.most is not None:
        side = f" <{'=' * predicate.most_inclusive} {np.float32(predicate.most)!s}"
    hit = matching(predicate, vocabulary.codes)
    return [f'"{code}"{side}' for code, there in zip(vocabulary.codes, hit, strict=True) if there and '"' not in code]
