"""`unmask pretrain events`: a MEDS folder -> vocabulary -> masked model -> run folder."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.core.batch import PackedBatch, packer, place_best_fit
from unmask.core.corruption import Corruption, Mixture, Replacement, Selector, Uniform, Units, own_selector
from unmask.core.hashing import Salt, uniform
from unmask.core.model import MaskedModel
from unmask.core.sampler import PackedSampler
from unmask.elsewhere import ARGUMENTS
from unmask.engines.folder import prepared_at, prepared_settings
from unmask.errors import UserError
from unmask.evaluation.card import Figure, figures_of, source_name
from unmask.evaluation.results import figures_shown, place
from unmask.evaluation.shown import Printed, Shown
from unmask.guessed import also_called
from unmask.memory import data_in_memory
from unmask.modalities.events.network.prepare import open_prepared, split, subjects_to_learn_from
from unmask.modalities.events.questions.queries import QueryDraws, with_questions
from unmask.modalities.events.questions.query_fit import ANSWERS, answer_rows, calibrate, start_questions
from unmask.modalities.events.recipes import RECIPES, EventSettings, check_read, structure_of, with_overrides
from unmask.modalities.events.records.columns import EventStore
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import BY_SPLITS, HOUR, STATIC, as_events
from unmask.modalities.events.records.vocabulary import Vocabulary
from unmask.modalities.events.uses.folder import FORMAT, EventFolder, new_model, save_folder
from unmask.training.ahead import MadeWhenNeeded
from unmask.training.job import Job, ModelOfRun, RunResult
from unmask.training.pretraining import Pretrainable, pretrained
from unmask.training.same_run import digest
from unmask.training.settings import TrainSettings, lasting, settings_from
from unmask.writing import makes_folder

VISITS = 0.25
"""Share of the histories whose whole visits are hidden with hide=mixed: of them codes are learnt slowly."""
VALIDATION_KEPT = 1 << 18
"""Held-out slots whose batches stay in memory (some 40 MB); more are made whenever they are looked at."""
CALIBRATING = 0.15
"""Share of a run's minutes in which held-out patients are asked."""
LATEST = 5 * 365.25 * 24
"""Hours behind the last event at most that a pretraining history is told to be read."""


@dataclass(frozen=True, kw_only=True, repr=False)
class EventRun(ModelOfRun, Printed):
    """A finished run: where it is, how it ended, what it was trained on; `.model` is the trained model."""

    folder: Path
    result: RunResult
    settings: EventSettings
    data: dict[str, Any]

    def shown(self) -> Shown:
        """Held-out figures beside those of rules, and what to do next."""
        held = {n.removeprefix("validation_"): v for n, v in self.result.validation.items() if math.isfinite(v)}
        rules = [Figure(name="accuracy", value=v, of=n) for n, v in self.data["rules"].items()]
        return figures_shown(
            f"A masked model of the events of {self.data['training']:,} patients: {self.data['events']:,} events of "
            f"{self.data['codes']:,} codes, {self.result.steps:,} steps, {self.result.seconds:.0f} s",
            figures_of(held, ["loss", "accuracy"]) + rules,
            notes=[
                f"{self.data['held_out']:,} patients held out; figures are of their hidden events",
                place(self.folder),
            ],
            next_step="run.model.finetune(meds, labels=task), run.model.embed(meds) or run.model.fill(meds)",
            head="held out",
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        return self.result.summary(self.folder, self.settings.train.seed, data=self.data)


class EventPretraining(Pretrainable[EventRun]):
    """A new masked event model; see `pretrain`."""

    def __init__(self, data: Any, settings: EventSettings, subjects: np.ndarray | None) -> None:
        self.data, self.settings, self.subjects = data, settings, subjects

    @property
    def train(self) -> TrainSettings:
        train = self.settings.train
        # The minutes hold the calibration of answers too.
        minutes = None if train.minutes is None or not self.settings.questions else (1 - CALIBRATING) * train.minutes
        return train if minutes is None else dataclasses.replace(train, minutes=minutes)

    def prepare(self, out: Path, *, resume: bool, first: bool, say: Callable[[str], None]) -> None:
        settings, seed, vocabulary = self.settings, self.settings.train.seed, None
        folder = prepared_at(self.data, "events") if isinstance(self.data, str | Path) else None
        if folder is None:
            most = data_in_memory(settings.store, settings.train.memory)
            store = EventStore(folder=Path(settings.store_folder or out / "events"), most=most, say=say)
            self.events = as_events(self.data, store=store)
        else:
            if self.subjects is not None:
                raise UserError(f"{folder}: its patients were chosen when it was prepared", hint="Leave subjects= out.")
            self.events, vocabulary, seed = open_prepared(folder, settings)
            say(f"{folder}: prepared, {len(self.events.time):,} events")
        chosen = subjects_to_learn_from(self.events) if self.subjects is None else np.asarray(self.subjects)
        self.chosen, self.training, self.held_out = chosen, *split(self.events, chosen, settings, seed)
        if vocabulary is None:
            vocabulary = Vocabulary.fit(
                self.events, subjects=self.training, floor=settings.floor, rollup=settings.rollup
            )
        self.histories = Histories(self.events, vocabulary, structure_of(settings).marks)

    def job(self, out: Path, say: Callable[[str], None]) -> Job:
        settings, histories = self.settings, self.histories
        vocabulary = histories.vocabulary
        model = new_model(settings, len(vocabulary))
        model.codec.valued.copy_(torch.from_numpy(vocabulary.valued))
        model.codec.start(histories, self.training)
        self.draws = start_questions(model, histories, self.training, settings)
        whole = histories.lengths()
        lengths = np.minimum(whole, settings.slots)
        for i in np.flatnonzero(whole > settings.slots).tolist():  # cut between time stamps
            lengths[i] = histories.length(i, slots=settings.slots)
        self.about = self._about(whole, lengths)
        say(
            f"{len(self.training)} training and {len(self.held_out)} held-out patients, {self.about['events']:,} "
            f"events, {len(vocabulary.codes)} codes; {self.about['events_cut']:,} oldest events of long histories "
            "left out"
            + (f"; {self.about['kept_out']} patients kept out by {BY_SPLITS}" if self.about["kept_out"] else "")
        )
        # As they are known when asked about, long histories are cut elsewhere, and may fill all slots.
        planned = lengths if self.draws is None else np.minimum(whole, settings.slots)
        job = make_job(model, histories, planned, self.training, self.held_out, settings, self.draws)
        self.validation, self.corruption = job.validation, job.validation_corruption
        return job

    def _about(self, whole: np.ndarray, lengths: np.ndarray) -> dict[str, Any]:
        """Counts of the data. `whole` and `lengths`: slots of each history, before and after long ones are cut."""
        histories, chosen = self.histories, self.chosen
        return {
            "patients": len(chosen),
            "training": len(self.training),
            "held_out": len(self.held_out),
            "events": int(np.diff(self.events.offsets)[self.training].sum()),
            "codes": len(histories.vocabulary.codes),
            "rare_events": sum(histories.unknown.values()),
            "rare_codes": dict(list(histories.unknown.items())[:20]),
            "events_cut": int((whole - lengths).sum()),
            "patients_cut": int((whole > lengths).sum()),
            "kept_out": 0 if self.subjects is not None else len(self.events) - len(chosen),
        }

    def save(self, out: Path, model: Any) -> None:
        frequencies = code_counts(self.histories, self.training)
        self.about["rules"] = code_rules(frequencies, self.validation, self.corruption)
        if self.draws is not None:
            minutes = self.settings.train.minutes
            seconds = None if minutes is None else 60 * CALIBRATING * minutes
            self.about["answers"] = calibrate(model, self.draws, self.held_out, self.settings, seconds)
            self.about["questions_calibrated_on"] = int(model.queries.calibrated)
        folder = EventFolder(model=model, vocabulary=self.histories.vocabulary, settings=self.settings)
        save_folder(out, folder, about={"data": self.about, "source": source_name(self.data)})

    def finished(self, out: Path, result: RunResult) -> EventRun:
        return EventRun(folder=out, result=result, settings=self.settings, data=self.about)

    def report(self, finished: EventRun) -> None:
        write_report(finished)


@also_called({}, **ARGUMENTS)
@makes_folder
def pretrain(
    data: Any,
    out: str | Path | None = None,
    *,
    settings: EventSettings | TrainSettings | Mapping[str, Any] | None = None,
    resume: bool = False,
    console: bool = True,
    trackers: Sequence[str] = (),
    subjects: np.ndarray | None = None,
    **overrides: Any,
) -> EventRun:
    """Pretrain a masked event model. Vocabulary and value scales come from the training patients alone.

    Args:
        data: a MEDS folder or the URL of one, a table with the columns of one, events read before, or a folder that
            `prepare` has made.
        out: run folder; left out, a temporary one, which lives as long as the result.
        settings, overrides: fields of `EventSettings` and of its `train`, as keywords (`minutes=5, width=128`), a dict
            or an object; default those that the data was prepared with, or `EventSettings()`.
        subjects: numbers of the patients to learn from; default all but those that the folder's splits hold out. Where
            the splits have a tuning part, the run is judged by it.

    Raises:
        UserError: for anything wrong with the input, the settings or the folder.
    """
    assert out is not None  # of `makes_folder`
    known = prepared_settings(data, "events") if isinstance(data, str | Path) else {}
    chosen = settings_from(with_overrides(EventSettings(), known), settings, overrides, with_overrides, RECIPES)
    check_read(chosen)
    kind = EventPretraining(data, chosen, subjects)
    return pretrained(kind, out, resume=resume, console=console, trackers=trackers)


def corruption_of(settings: EventSettings) -> Corruption:
    """The training corruption the settings ask for."""
    ratio = settings.ratio if settings.ratio_from is None else (settings.ratio_from, settings.ratio)
    visits, events = Units(ratio=ratio), Uniform(ratio=ratio)
    selectors: dict[str, Selector] = {
        "visit": visits,
        "event": events,
        "mixed": Mixture(first=visits, second=events, share=VISITS),
    }
    return Corruption(
        select=own_selector(settings.select, ratio) if settings.select is not None else selectors[settings.hide],
        replace=Replacement(mask=settings.mask, random=settings.random, keep=settings.keep),
    )


def batch_maker(histories: Histories, slots: int) -> Callable[[list[list[int]], int], PackedBatch]:
    """Rows of subject numbers -> packed batch.

    Examples are made anew for every batch, some two million slots per second on one core where a step of the default
    model takes in 40 thousand: keeping them (57 bytes per slot) would cost more memory than the events themselves.
    """
    return packer(lambda number: histories.example(number, slots=slots, requested=drawn_time(histories, number)), slots)


def drawn_time(histories: Histories, subject: int) -> int | None:
    """The time of asking that half of the histories are told in pretraining: behind their last event, by nothing up to
    five years, evenly on the log scale; drawn for each patient once."""
    drawn, gap = (
        float(uniform(np.array([subject]), salt)[0]) for salt in (Salt.PREDICTION_TIME_SHOWN, Salt.PREDICTION_TIME_GAP)
    )
    last = int(histories.events.time[histories.events.offsets[subject + 1] - 1])
    if drawn < 0.5 or last == STATIC:
        return None
    return last + int(math.expm1(gap * math.log1p(LATEST)) * HOUR)


def make_job(
    model: MaskedModel,
    histories: Histories,
    lengths: np.ndarray,
    train: np.ndarray,
    held_out: np.ndarray,
    settings: EventSettings,
    draws: QueryDraws | None = None,
) -> Job:
    """Tie a model, patients and a corruption together for the run."""
    rows = settings.train.batch_slots // settings.slots
    sampler = PackedSampler(lengths=lengths, examples=train, slots=settings.slots, rows=rows, seed=settings.train.seed)
    make: Callable[..., PackedBatch] = batch_maker(histories, settings.slots)
    if draws is not None:
        make = with_questions(make, draws, slots=settings.slots, count=settings.questions, seed=settings.train.seed)
    placed = [[int(held_out[i]) for i in row] for row in place_best_fit(lengths[held_out], settings.slots)]
    makers = [functools.partial(make, placed[k : k + rows], rows) for k in range(0, len(placed), rows)]
    size = rows * settings.slots
    few = len(makers) * size <= VALIDATION_KEPT
    validation = [made() for made in makers] if few else MadeWhenNeeded(makers, size)
    corruption = corruption_of(settings)
    return Job(
        model=model,
        sampler=sampler,
        make_batch=make,
        by_epoch=draws is not None,
        corruption=corruption,
        validation=validation,
        validation_corruption=dataclasses.replace(corruption, static=True),
        fingerprint=_fingerprint(histories, train, settings),
        prefetch=1,
    )


def _fingerprint(histories: Histories, train: np.ndarray, settings: EventSettings) -> dict[str, Any]:
    """What must not change between a run and its resumption: the events, who is learnt from, and most settings."""
    events = histories.events
    about = [events.digest(), events.codes, histories.vocabulary.codes]
    kept = lasting(dataclasses.asdict(settings))
    for name in ("store", "store_folder"):
        kept.pop(name)
    return {
        "settings": kept,
        "the events": digest(about, events.subjects, events.offsets, train),
        "the network": FORMAT,
    }


def write_report(finished: EventRun) -> Path:
    """report.html of a run: figures, curves, settings."""
    from unmask.evaluation.charts import table
    from unmask.evaluation.report import Report, training_curves

    r = finished.result
    page = Report("Masked pretraining on patient events", str(finished.folder))
    page.facts(
        {
            "Held-out loss": r.held_out("loss", "{:.3f} nats"),
            "Steps": r.steps,
            "Held-out code accuracy": r.held_out("accuracy", "{:.1%}"),
            "Time": f"{r.seconds:.0f} s",
            "Real events/s": f"{r.slots_per_second:,.0f}",
            "Precision": r.precision,
            "Patients": finished.data["training"],
            "Events": finished.data["events"],
        }
    )
    page.section("Training", training_curves(finished.folder / "metrics.jsonl", loss="nats per hidden event"))
    if finished.data.get("answers"):
        page.section("Answers to questions", table(*answer_rows(finished.data["answers"])), note=ANSWERS)
    page.settings(finished.settings)
    return page.write(finished.folder / "report.html")


FREQUENT, OWN = "most frequent code", "most frequent code of the patient"


def code_counts(histories: Histories, subjects: np.ndarray) -> np.ndarray:
    """(codes,) how many timed events of these subjects have each code of the vocabulary."""
    events, counts = histories.events, np.zeros(len(histories.vocabulary), np.int64)
    chosen = np.zeros(len(events), bool)
    chosen[subjects] = True
    for owners, here in events.blocks():
        code = histories.code[here]
        known = chosen[events.owner(owners)] & (code >= 0) & (events.time[here] != STATIC)
        counts += np.bincount(code[known], minlength=len(counts))
    return counts


def code_rules(counts: np.ndarray, batches: Iterable[PackedBatch], corruption: Corruption) -> dict[str, float]:
    """Accuracy on the events that validation (`batches`, `corruption`) hides, of always guessing the most frequent
    code, and of guessing the most frequent one among the visible events of the same history (of several the one that
    the training events, `counts`, have more of; of a history without visible events the most frequent of all). Empty
    where nothing is hidden."""
    best, hidden = int(counts.argmax()), 0
    right = {FREQUENT: 0, OWN: 0}
    for batch in batches:
        code, owner = (part.flatten().numpy() for part in (batch.values["code"], batch.identity))
        flat = corruption.draw(batch, seed=0, epoch=0).flat.numpy()
        visible = batch.maskable.flatten().numpy().copy()
        visible[flat] = False
        pairs, times = np.unique(np.stack([owner[visible], code[visible]]), axis=1, return_counts=True)
        order = np.lexsort((counts[pairs[1]], times))  # the code that a history has most often is written last
        own = dict(zip(pairs[0][order].tolist(), pairs[1][order].tolist(), strict=True))
        right[FREQUENT] += int((code[flat] == best).sum())
        right[OWN] += sum(own.get(o, best) == c for o, c in zip(owner[flat].tolist(), code[flat].tolist(), strict=True))
        hidden += len(flat)
    return {name: count / hidden for name, count in right.items()} if hidden else {}
