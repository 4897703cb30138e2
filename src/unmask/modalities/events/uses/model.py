"""A trained event model in use: embed, features, predict. `unmask.load(path)` gives one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import torch

from unmask.core.embed import embed_batches, pooled_by
from unmask.core.score import Mode
from unmask.errors import UserError, option, outside
from unmask.evaluation.results import JudgedFigures, figures_shown
from unmask.evaluation.shown import Shown
from unmask.files import check_new_model
from unmask.given import values_of
from unmask.modalities.events.outcome.candidates import AgeAndCount
from unmask.modalities.events.outcome.features import Features, gather
from unmask.modalities.events.outcome.scoring import constant, scored, unseen_classes
from unmask.modalities.events.outcome.targets import MultiLabel, NumberTarget, Target, TimeToEvent, from_dict
from unmask.modalities.events.questions.query_task import question_of
from unmask.modalities.events.questions.query_text import EXAMPLE
from unmask.modalities.events.recipes import moment_of, structure_of
from unmask.modalities.events.records.aces import is_task, read_task
from unmask.modalities.events.records.cuts import NEVER, after_death, death_times, without_events
from unmask.modalities.events.records.histories import Histories, odd_value_lines, unknown_line, unknown_of
from unmask.modalities.events.records.labels import class_names, named, read_labels
from unmask.modalities.events.records.meds import HELD_OUT, Events, Labels, as_events, worded
from unmask.modalities.events.records.parquet import as_frame
from unmask.modalities.events.records.splits import Met, met
from unmask.modalities.events.records.windows import evaluate_task
from unmask.modalities.events.uses.card import scored_figures
from unmask.modalities.events.uses.fill import SCHEMA, By, missing_values, next_events, surprise
from unmask.modalities.events.uses.folder import EventFolder, load_folder, save_folder
from unmask.modalities.events.uses.outcome_report import by_subgroup
from unmask.modalities.events.uses.query_answers import UNCALIBRATED, ask, panel_answers, queries_of
from unmask.modalities.events.uses.recalibrate import recalibrated, save_recalibrated
from unmask.training.precision import computing, resolve_device, resolve_precision
from unmask.verbs import Usable
from unmask.writing import written


def points_given(verb: str, out: Any, labels: Any) -> tuple[str | Path | None, Any]:
    """(where predictions go, the points), of which the second argument of a verb may be either: what is no path, or a
    folder, or a task file, are points."""
    if labels is None and out is not None and (not isinstance(out, str | Path) or Path(out).is_dir() or is_task(out)):
        out, labels = None, out
    if labels is None:
        raise UserError(
            f"{verb} without {option('labels')}",
            hint=f"Give {option('labels', 'task')}: a MEDS task folder, or a table with its columns.",
        )
    return out, labels


def _points(labels: Any, events: Events, *, named_rows: bool) -> Labels:
    """The points of labels, unless they were read before; of subjects without events a frame has no rows, with a
    warning, and an array, whose rows have no names, is refused."""
    points = read_labels(labels, events, need_value=False)
    if points is not labels and points.outside:
        text = f"{points.outside:,} of {points.outside + len(points):,} labels are of subjects without events in the "
        text += f"data, such as {', '.join(map(str, points.strangers))}"
        if not named_rows:
            raise UserError(text, hint="Leave them out, or read them with unmask.events.read_labels, which does.")
        warnings.warn(f"{text}: left out", stacklevel=outside())
    return points


def judged_shown(found: Mapping[str, Any]) -> Shown:
    """What of the figures of an outcome a person looks at."""
    return figures_shown(
        f"{found['points']:,} points of {found['patients']:,} patients judged"
        + ("" if found["split"] == "all" else ", held out by the folder's splits"),
        scored_figures(found),
        notes=found["warnings"],
    )


ATTRIBUTES = {
    **dict.fromkeys(("encode", "transform", "forward_*"), "model.embed(meds)"),
    "generate": "unmask.events.generate(meds, 500, 'new')",
    "fill_mask": "model.fill(meds)",
    "forecast": "model.ask(meds, 'CODE within 30 days')",
}
"""Attribute of models in other libraries -> our call, beside those of `verbs.Usable`."""


@dataclass(repr=False)
class EventModel(Usable):
    """A masked event model, its vocabulary and, where fine-tuned, its outcome head.

    Attributes:
        most_unknown: data of whose events a larger share has codes that the model does not know is refused.
        unknown: of the data read last: share of such events, their number and the most frequent of their codes, and
            known codes whose values lie beyond those it was trained on.
        dead: of the data filled last: patients who died, who have no next events.
        met: of the data predicted last: who of the subjects trained the head.
    """

    kind = "events"
    guesses: ClassVar[Mapping[str, Any]] = {**ATTRIBUTES, **Usable.guesses}

    folder: EventFolder
    device: torch.device
    precision: str
    most_unknown: float = 0.5
    unknown: dict[str, Any] = field(default_factory=dict)
    dead: int = 0
    met: Met | None = None

    def __repr__(self) -> str:
        encoder = self.folder.model.encoder.config
        count = sum(p.numel() for p in self.folder.model.parameters())
        head = "" if self.folder.outcome is None else ", with an outcome head"
        return (
            f"EventModel({count / 1e6:.3g} M parameters, {encoder.layers} layers of {encoder.width}, "
            f"{len(self.folder.vocabulary):,} codes{head}, {self.precision} on {self.device})"
        )

    def embed(self, data: Any, points: Any = None) -> np.ndarray:
        """One vector per patient (or prediction point): mean and maximum of the encoder's states, (n, 2 width).

        Args:
            points: a MEDS task folder, a table with its columns, or labels read before.

        Raises:
            UserError: points are of subjects without events: rows of the array would not be theirs.
        """
        events = as_events(data)
        return self.states(
            self.histories(events), None if points is None else _points(points, events, named_rows=False)
        )

    def histories(self, events: Events) -> Histories:
        """The patients as this model reads them.

        Raises:
            UserError: more than `most_unknown` of their events have codes that the model does not know.
        """
        made = Histories(events, self.folder.vocabulary, structure_of(self.folder.settings).marks)
        self.unknown = unknown_of(made)
        if self.unknown["unknown_share"] > self.most_unknown:
            raise UserError(
                f"{unknown_line(self.unknown)}, above the limit of {self.most_unknown:.0%}",
                hint=f"Convert the data as the model's was, or pretrain on it; {option('most_unknown')} raises the "
                "limit.",
            )
        for line in odd_value_lines(self.unknown):
            warnings.warn(line, stacklevel=3)
        return made

    def states(self, histories: Histories, points: Labels | None = None) -> np.ndarray:
        """Pooled states; of each point the events known at its time."""
        settings, model = self.folder.settings, self.folder.model.to(self.device)
        numbers = np.arange(len(histories.events) if points is None else len(points))
        batches = histories.batches(points, numbers, slots=settings.slots)
        with computing(self.precision, self.device):
            return embed_batches(model, batches, pooled_by("mean+max"), count=len(numbers), width=2 * settings.width)

    def learnt(self, *, states: bool, answers: bool) -> Callable[[Histories, Labels], np.ndarray] | None:
        """What makes the learnt features of points: pooled states, then answers; None without either."""
        made: list[Callable[[Histories, Labels], np.ndarray]] = [self.states] if states else []
        made += [self.panel_answers] if answers else []
        return (lambda histories, points: np.concatenate([m(histories, points) for m in made], 1)) if made else None

    def panel_answers(self, histories: Histories, points: Labels) -> np.ndarray:
        """(points, questions) answers to a panel of questions, on the log scale; see `query_answers.panel`."""
        self.folder.model.to(self.device)
        return panel_answers(self.folder, histories, points)

    def features(
        self, histories: Histories, points: Labels, *, states: bool, summaries: bool, answers: bool = False
    ) -> Features:
        """What the outcome head reads: summaries, then pooled states, then answers."""
        found, names = gather(histories, points, self.learnt(states=states, answers=answers))
        return found if summaries else found.some(np.arange(len(names), found.shape[1]))

    def predict(  # type: ignore[override]  # of events: at which points
        self, data: Any, out: Any = None, *, labels: Any = None
    ) -> pl.DataFrame:
        """Probability (or number, with its interval) at each prediction point, MEDS-shaped, in the order of the labels.

        Args:
            out: a .parquet to write it to.
            labels: a MEDS task folder or a table with its columns: where predictions are asked for.

        Labels of subjects without events are left out, with a warning.

        The column `split` says of each patient (by subject id) whether the head was trained on it ('train'), it was
        held out of that ('held_out'), or the fine-tuning did not have it ('unseen'); null where their
        births say that the ids are other people's. Probabilities of 'train' are too good to judge the model by.

        Raises:
            UserError: the model has no outcome head, or data or labels are not right.
        """
        out, labels = points_given("predict", out, labels)
        events = as_events(data)
        frame = self.predicted(events, _points(labels, events, named_rows=True))[0]
        if out is not None:
            write_predictions(frame, out)
        return frame

    def predict_proba(self, data: Any, labels: Any = None) -> np.ndarray:
        """(points, classes) probabilities, as scikit-learn calls them; of a yes or no those of False and True.

        Raises:
            UserError: the model predicts a number, times or next visits; labels are of subjects without events: rows
                of the array would not be theirs.
        """
        events = as_events(data)
        points = _points(points_given("predict_proba", None, labels)[1], events, named_rows=False)
        target, p = self.probabilities(self.histories(events), points)
        if target.kind not in ("binary", "classes"):
            raise UserError(
                f"predict_proba: the model predicts {target.kind}", hint="model.predict(data, labels=task) says it."
            )
        return np.column_stack([1 - p, p]) if target.kind == "binary" else p

    def predicted(self, data: Any, labels: Any) -> tuple[pl.DataFrame, Labels]:
        """`predict`, and the points that predictions are of."""
        events = as_events(data)
        points = read_labels(labels, events, need_value=False)
        target, p = self.probabilities(self.histories(events), points)
        self.met = met(events, self.folder.fine_tuning["patients"])
        frame = pl.DataFrame(
            {
                "subject_id": events.subjects[points.subject],
                "prediction_time": points.time,
                **target.columns(p, points),
                "split": pl.Series(self.met.split[points.subject].tolist(), dtype=pl.String),
            }
        ).with_columns(pl.col("prediction_time").cast(pl.Datetime("us")))
        return frame, points

    def ask(
        self, data: Any, questions: str | Path | Iterable[str], at: Any = None, *, until: str | None = None
    ) -> pl.DataFrame:
        """Answers to questions about what is to come, without a label: how probable is it that a code, its value
        beyond one, or any or none of several, stands in the record within so long after the time of asking?

        Args:
            questions: such as "LAB//glucose > 10 within 30 days"; `query_text` has the grammar. Or one ACES task file
                (.yaml), asked at its own points.
            at: labels, as `read_labels` takes them: asked at their times; default at the last event of each patient (an
                OBSERVATION_END where the data has one).
            until: a day or a time, such as "2024-06-30": everybody is asked then, the date of the extract.

        Returns:
            subject_id, prediction_time, question, probability (null where nothing can be said), unanswered (why), of a
            task also boolean_value and predicted_boolean_probability, the probability once more; a row per point and
            question, points in the order of the labels; a warning says which labels are left out, for
            their subjects have no events.

        Raises:
            UserError: the model was pretrained without questions, a question cannot be read or was not trained (an
                unknown code, with the nearest known ones; a horizon; a value), or the data are not right.
        """
        if is_task(questions):
            return self._ask_task(questions, data, given=at is not None or until is not None)
        one = isinstance(questions, str) or not isinstance(questions, Iterable)
        several: list[Any] = [questions] if one else values_of(questions)
        for question in several:
            if not isinstance(question, str):
                raise UserError(f"question {question!r}: not a text", hint=EXAMPLE)
        if at is not None and until is not None:
            raise UserError(
                f"{option('at')} and {option('until')}", hint="Ask at the times of a task, or of everybody at one."
            )
        events = as_events(data)
        histories, points = self.histories(events), None if at is None else _points(at, events, named_rows=True)
        self.folder.model.to(self.device)
        end = None if until is None else moment_of(until, option("until"))
        return ask(self.folder, histories, several, points, end)

    def _ask_task(self, path: Any, data: Any, *, given: bool) -> pl.DataFrame:
        """`ask` of a task file at its own points."""
        if given:
            raise UserError(
                f"{path}: a task, with {option('at')} or {option('until')}", hint="A task is asked at its own points."
            )
        queries_of(self.folder)
        task, events = read_task(path), as_events(data)
        found = evaluate_task(task, events)
        question = question_of(task, found, self.folder.vocabulary)
        self.folder.model.to(self.device)
        frame = ask(self.folder, self.histories(events), [question], Labels(subject=found.subject, time=found.time))
        return frame.with_columns(
            boolean_value=pl.Series(found.value, dtype=pl.Boolean), predicted_boolean_probability=pl.col("probability")
        )

    def uncalibrated(self) -> list[str]:
        """What to say of answers that no held-out patients calibrated; a line or none."""
        return [] if int(queries_of(self.folder).calibrated) else [UNCALIBRATED]

    def evaluate(
        self, data: Any, labels: Any = None, *, recalibrate: str | Path | None = None, seed: int = 0
    ) -> JudgedFigures:
        """Figures of the predictions at labelled points, with intervals over patients, beside a constant prediction.

        Where the folder's splits hold subjects out, at their points alone; never at points of patients who trained the
        head, known by their subject ids (unless births say that these are other people's).

        Args:
            recalibrate: new folder for a copy of the model, of a yes or no, whose log-odds lie on a line fitted to
                these labels; `recalibrated` are the figures of each fifth of the patients on the line of the others.

        Returns:
            kind, points (how many; rows too), patients, without_events (points before the first event of their
            patient), outside (labels of subjects without events), unseen_classes (of labels, by name), trained (points
            left out, of who trained the head; None where the ids are other people's, with a warning), split, warnings,
            `results`: the figures of "model", of "prevalence" (the shares of these labels themselves; of numbers
            "mean") and of simple rules; and `subgroups`: figures of the model, by age, sex and what else is known.

        Raises:
            UserError: the model has no outcome head, data or labels are not right, only patients who trained the head
                have points, or there are too few to recalibrate on.
        """
        if recalibrate is not None:
            check_new_model(recalibrate)
        events = as_events(data)
        points = read_labels(points_given("evaluate", None, labels)[1], events)
        split = "all"
        if events.held_out is not None and events.held_out[points.subject].any():
            points, split = points.take(events.held_out[points.subject]), HELD_OUT
        self.met = met(events, self.folder.fine_tuning["patients"])
        trained, warning = None, self.met.warning()
        if warning is None:  # else their ids are other people's: who trained the head is not known
            learnt_from = np.asarray(self.met.split[points.subject] == "train", bool)
            if len(points) and learnt_from.all():
                what = f"all {len(points):,} points are of patients who trained the head"
                raise UserError(
                    f"{what}: nothing is left to judge the model by",
                    hint="Evaluate at points of other patients; held-out figures are in the model's report.html. "
                    "Patients are known by their ids: if these are other people with the same numbers, give them "
                    "numbers of their own, or births.",
                )
            points, trained = points.take(~learnt_from), int(learnt_from.sum())
        histories = self.histories(events)
        target, p = self.probabilities(histories, points)
        if isinstance(target, MultiLabel):
            raise UserError("the model predicts the next visit", hint="Its held-out figures are in its report.html.")
        wanted = {
            "binary": points.value if points.days is None else None,
            "classes": class_names(points),
            "number": points.number,
            "time_to_event": points.days,
        }
        if wanted[target.kind] is None:
            raise UserError(
                f"{named(labels)}: labels of another kind", hint=f"The model was fine-tuned on {target.kind} labels."
            )
        results, copied = {"model": scored(target, points, p, seed=seed)}, dict[str, Any]()
        if recalibrate is not None:
            on_others, line = recalibrated(p, points, target, seed)
            results["recalibrated"] = scored(target, points, on_others, seed=seed)
            copied["recalibrated"] = save_recalibrated(
                recalibrate, self.folder, line, events, points, warning is not None
            )
        if not isinstance(target, TimeToEvent):
            rule_name = "mean" if isinstance(target, NumberTarget) else "prevalence"
            results[rule_name] = scored(target, points, constant(target, points), seed=seed)
        rule = self.folder.fine_tuning.get("age_and_count")
        if rule is not None:
            simple = AgeAndCount(**rule)
            predicted = simple.predict(histories, points, target)
            results[simple.name] = scored(target, points, predicted, seed=seed)
        if isinstance(target, NumberTarget) and target.rule is not None:
            predicted = (target.rule.of(histories, points) - target.centre) / target.spread
            results[target.rule.name] = scored(target, points, predicted[:, None], seed=seed)
        found = {"kind": target.kind, "rows": len(points), "points": len(points), "outside": points.outside}
        found |= {"patients": len(np.unique(points.subject)), "trained": trained, "split": split, "results": results}
        found |= {
            "without_events": int(without_events(events, points).sum()),
            "after_death": int(after_death(events, points).sum()),
            "unseen_classes": unseen_classes(target, points),
            "warnings": [] if warning is None else [warning],
            "subgroups": by_subgroup(histories, points, target, p),
        }
        return JudgedFigures(found | copied, judged_shown)

    def probabilities(self, histories: Histories, points: Labels) -> tuple[Target, np.ndarray]:
        """What is predicted of the points, and (points, outputs) of it."""
        outcome, head = self.folder.fine_tuning, self.folder.head
        assert head is not None
        target = from_dict(outcome["target"])
        x = self.features(histories, points, **{part: outcome[part] for part in ("states", "summaries", "answers")})
        return target, target.finished(head.predict(x, target), histories, points)

    def fill(self, data: Any, *, top: int = 5, level: float = 0.9) -> pl.DataFrame:
        """Missing values with an interval (kind "value"), and the likeliest next events ("next").

        Args:
            top: next events per patient; 0 leaves them out, and patients who died (`dead` counts them) have none.
            level: of the interval.

        Returns:
            subject_id, kind, time, code, probability, value (median), low, high.
        """
        if not 0 < level < 1 or top < 0:
            raise UserError(f"level={level}, top={top}", hint="Expected a level between 0 and 1, top not below 0.")
        data = data if isinstance(data, str | Path | Events) else as_frame(data)  # looked at twice
        events = as_events(data)
        histories = self.histories(events)
        self.folder.model.to(self.device)
        parts = []
        if self.folder.settings.value_weight:
            parts.append(missing_values(self.folder, histories, worded=worded(data), level=level))
        self.dead = int((death_times(events) < NEVER).sum()) if top else 0
        if top:
            parts.append(next_events(self.folder, histories, top=top, level=level))
        return pl.concat(parts) if parts else pl.DataFrame(schema=SCHEMA)

    def score(self, data: Any, *, by: By = "patient", mode: Mode = "unit") -> pl.DataFrame:
        """How natural each patient, visit or event is to the model; see `fill.surprise`."""
        events = as_events(data)
        self.folder.model.to(self.device)
        with computing(self.precision, self.device):
            return surprise(self.folder, self.histories(events), by=by, mode=mode)

    def inspect(self) -> dict[str, Any]:
        """Parameters, codes, and what the model was made with."""
        s = self.folder.settings
        return {
            "kind": "events",
            "parameters": sum(p.numel() for p in self.folder.model.parameters()),
            "architecture": s.architecture,
            "width": s.width,
            "layers": s.layers,
            "slots": s.slots,
            "codes": len(self.folder.vocabulary.codes),
            "outcome_head": self.folder.head is not None,
        }

    def save(self, path: str | Path) -> None:
        """Save as a model folder."""
        save_folder(path, self.folder, about=self.folder.about)


def load(folder: str | Path, *, device: str = "auto", precision: str = "auto") -> EventModel:
    """The event model in a folder, ready to use.

    Raises:
        UserError: naming what is missing, corrupt or does not fit together.
    """
    where = resolve_device(device)
    # Small models gain nothing from bf16 at rest, and probabilities should not depend on a measurement.
    named = "fp32" if precision == "auto" and where.type == "cpu" else resolve_precision(precision, where).name
    return EventModel(folder=load_folder(folder), device=where, precision=named)


def write_predictions(frame: pl.DataFrame, out: str | Path) -> None:
    """Write a parquet, whole or not at all."""
    with written(out) as temporary:
        frame.write_parquet(temporary)
