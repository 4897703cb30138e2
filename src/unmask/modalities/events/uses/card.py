"""The model card of an event folder: a masked model of patients' events, or one fine-tuned for an outcome or the next
visit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.evaluation.card import Card, Figure, Use, figures_of, read_figures
from unmask.files import read_object
from unmask.modalities.events.outcome.scoring import FIGURES

SHOWN = [name for name in FIGURES if name not in ("ece", "ece_floor", "intercept", "r2", "spearman")]
"""Figures of a card, in order; the report has all of them."""
KINDS = {
    "binary": "a yes or no",
    "classes": "one of several classes",
    "number": "a number",
    "time_to_event": "the time to an event",
    "multi_label": "the codes of the next visit",
}
NOT_A_DEVICE = (
    "Not a medical device: nothing here was tested as one, and no figure of a card is evidence that acting on a "
    "prediction helps a patient.",
    "It was judged on patients of the same source. Another hospital, time or coding practice needs its own evaluation, "
    "by subgroup, before anybody relies on it.",
    "`unmask events audit` finds leaks of single codes within 24 hours before the prediction time; it cannot see those "
    "that need several codes together or lie further back.",
)


def scored_figures(found: Mapping[str, Any]) -> list[Figure]:
    """The held-out figures of a fine-tuning, beside the rules and simpler models that were fitted with it."""
    out = []
    for name, result in (found.get("results") or {}).items():
        judged = result["all"] if isinstance(result.get("all"), dict) else result  # of the next visit: all codes
        out += figures_of(judged, [k for k in SHOWN if k in judged], "model" if name == "ours" else name)
    return out


def counts(found: Mapping[str, Any]) -> dict[str, Any]:
    """How many labels, patients and positives a fine-tuning had, and what it was for; no patient's value."""
    names = ("kind", "outcome", "training", "held_out", "held_out_by", "patients", "positives", "codes")
    return {k: found[k] for k in names if k in found}


def card(files: Path, run: Path) -> Card:
    """The card of an event folder, by unmask.json."""
    about = read_object(files / "unmask.json") or {}
    settings, codes = about.get("events") or {}, len((about.get("vocabulary") or {}).get("codes") or ())
    size = f"{settings.get('layers')} layers of {settings.get('width')}, {codes:,} codes"
    return _tuned(about, size) if "outcome" in about else _masked(about, size, settings)


def _masked(about: Mapping[str, Any], size: str, settings: Mapping[str, Any]) -> Card:
    data = about.get("data") or {}
    details = [f"From {about['source']}."] if about.get("source") else []
    if "patients" in data:
        details.append(
            f"{data.get('training', 0):,} patients to train on and {data.get('held_out', 0):,} held out; "
            f"{data.get('events', 0):,} events of those to train on."
        )
    if data.get("kept_out"):
        details.append(f"{data['kept_out']:,} patients were kept out by the folder's splits.")
    if data.get("rare_events"):
        details.append(f"{data['rare_events']:,} events of rare codes are read by the codes above them, or as unknown.")
    details += [
        f"Answers to held-out questions about {r['kind']} within {r['hours']:.3g} hours: {r['answer']:.3f} on average, "
        f"{r['came']:.3f} came ({r['n']:,} questions; Brier score {r['brier']:.3f})."
        for r in data.get("answers") or ()
    ]
    return Card(
        what=f"A masked model of patients' events in MEDS ({size}).",
        tags=("medical", "ehr", "meds", "masked-event-modeling"),
        data=details,
        figures=read_figures(about.get("results")),
        judged_on="On hidden events of held-out patients.",
        settings=settings,
        limits=[*NOT_A_DEVICE, "The folder holds the names of all frequent codes and how their values are spread."],
        use=Use(
            commands=[
                ("a model of an outcome", "unmask finetune outcome MODEL meds --labels task --out outcome"),
                ("the least natural records", "unmask score MODEL meds"),
                ("one vector per patient", "unmask embed MODEL meds --out vectors.parquet"),
            ],
            python='import unmask\n\nmodel = unmask.load(MODEL)\nmodel.embed("meds")',
            without_unmask="The folder is unmask's own; transformers does not load it.",
        ),
    )


def _tuned(about: Mapping[str, Any], size: str) -> Card:
    details, outcome = about.get("counts") or {}, about.get("outcome") or {}
    kind = str(details.get("kind") or (outcome.get("target") or {}).get("kind", ""))
    outcome_kind = KINDS.get(kind, "an outcome")
    of = f" of `{details['outcome']}`" if details.get("outcome") else ""
    next_visit = kind == "multi_label"
    data = []
    for part, words in (("training", "to train the head on"), ("held_out", "held out")):
        if part in details:
            more = [f"of {details['patients'][part]:,} patients"] if part in (details.get("patients") or {}) else []
            more += [f"{details['positives'][part]:,} positive"] if part in (details.get("positives") or {}) else []
            data.append(f"{details[part]:,} labels {words}" + (f" ({', '.join(more)})" if more else "") + ".")
    if details.get("held_out_by"):
        data.append(f"Held out by {details['held_out_by']}.")
    labels = "" if next_visit else " --labels task"
    commands = [
        ("a prediction per point", "unmask predict MODEL meds --labels task --out predictions.parquet"),
        ("its figures on other patients", f"unmask evaluate MODEL meds{labels}"),
        ("is the future in the past?", f"unmask events audit meds{labels}"),
    ]
    if next_visit:
        del commands[1]
    return Card(
        what=f"A model of patients' events that predicts {outcome_kind}{of} ({size}).",
        tags=("medical", "ehr", "meds", kind.replace("_", "-") or "outcome"),
        data=data,
        figures=read_figures(about.get("results")),
        judged_on="On held-out patients, whose labels no model saw; pretraining may have seen their events.",
        settings={k: v for k, v in outcome.items() if k not in ("patients", "target", "age_and_count")},
        limits=[
            *NOT_A_DEVICE,
            "The folder holds hashes of the ids of the patients who trained it and of those held out, so that figures "
            "are never of training patients: someone who knows an id can tell whether it was among them. Its report "
            "shows the record of a patient where `--examples` was given.",
        ],
        use=Use(
            commands=commands,
            python='import unmask\n\nmodel = unmask.load(MODEL)\nmodel.predict("meds", labels="task")',
            without_unmask="The folder is unmask's own; transformers does not load it.",
        ),
        shown=False,
    )
