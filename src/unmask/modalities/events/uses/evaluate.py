"""Figures of a fine-tuned event model at labelled points, beside a constant, a rule of age and number, and the last
value."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from unmask.errors import UserError
from unmask.modalities.events.outcome.age_and_count import AgeAndCount
from unmask.modalities.events.outcome.number import Number
from unmask.modalities.events.outcome.scoring import constant, scored
from unmask.modalities.events.outcome.targets import MultiLabel, Target, TimeToEvent, class_names
from unmask.modalities.events.records.cuts import after_death, without_events
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import HELD_OUT, Events, Labels, named, read_labels
from unmask.modalities.events.records.splits import Met, met
from unmask.modalities.events.uses.folder import EventFolder


class OutcomeModel(Protocol):
    """What is asked of a model."""

    folder: EventFolder
    met: Met | None

    def histories(self, events: Events) -> Histories: ...

    def probabilities(self, events: Events, points: Labels) -> tuple[Labels, Target, np.ndarray]: ...


def evaluate(model: OutcomeModel, events: Events, labels: Any, *, seed: int = 0) -> dict[str, Any]:
    """See `EventModel.evaluate`."""
    points = read_labels(labels, events)
    split = "all"
    if events.held_out is not None and events.held_out[points.subject].any():
        points, split = points.take(events.held_out[points.subject]), HELD_OUT
    points, trained, warning = _not_trained_on(model, events, points)
    points, target, p = model.probabilities(events, points)
    if isinstance(target, MultiLabel):
        raise UserError("the model predicts the next visit", hint="Its held-out figures are in its report.html.")
    asked = {
        "binary": points.value if points.days is None else None,
        "classes": class_names(points),
        "number": points.number,
        "time_to_event": points.days,
    }
    if asked[target.kind] is None:
        raise UserError(
            f"{named(labels)}: labels of another kind", hint=f"The model was fine-tuned on {target.kind} labels."
        )
    results = {"model": scored(target, points, p, seed=seed)}
    if not isinstance(target, TimeToEvent):
        results["constant"] = scored(target, points, constant(target, points), seed=seed)
    histories, rule = model.histories(events), model.folder.fine_tuning.get("age_and_count")
    if rule is not None:
        simple = AgeAndCount(**rule)
        said = simple.predict(histories, points, target)
        results[simple.name] = scored(target, points, said, seed=seed)
    if isinstance(target, Number) and target.rule is not None:
        said = (target.rule.of(histories, points) - target.centre) / target.spread
        results[target.rule.name] = scored(target, points, said[:, None], seed=seed)
    return {
        "kind": target.kind,
        "rows": len(points),
        "points": len(points),
        "patients": len(np.unique(points.subject)),
        "without_events": int(without_events(events, points).sum()),
        "after_death": int(after_death(events, points).sum()),
        "outside": points.outside,
        "trained": trained,
        "split": split,
        "results": results,
        "warnings": [] if warning is None else [warning],
    }


def _not_trained_on(model: OutcomeModel, events: Events, points: Labels) -> tuple[Labels, int | None, str | None]:
    """The points of patients who did not train the head, and how many are left out; all of them, None and the
    reason where their ids are other people's."""
    model.met = met(events, model.folder.fine_tuning["patients"])
    warning = model.met.warning()
    if warning is not None:
        return points, None, warning
    trained = np.asarray(model.met.split[points.subject] == "train", bool)
    if len(points) and trained.all():
        raise UserError(
            f"all {len(points):,} points are of patients who trained the head: nothing is left to judge the model by",
            hint="Evaluate at points of other patients; held-out figures are in the model's report.html. Patients "
            "are known by their ids: if these are other people with the same numbers, give them numbers of their "
            "own, or births.",
        )
    return points.take(~trained), int(trained.sum()), None
