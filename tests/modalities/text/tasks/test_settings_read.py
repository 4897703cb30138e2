"""Every setting of fine-tuning for a task of text does something, or is refused by name where nothing reads it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re

import pytest

from tiny_folders import folder, sentiment
from unmask.errors import UserError
from unmask.modalities.text.tasks.finetune import evaluate, finetune, predict
from unmask.modalities.text.tasks.retrieval import write_features
from unmask.modalities.text.tasks.row_files import Columns
from unmask.modalities.text.tasks.settings import TaskSettings
from unmask.modalities.text.tasks.zeroshot import zero_shot
from unmask.modalities.text.uses.model import load
from unmask.training.settings import apply_overrides

WORDS = ("the quick fox", "the lazy dog", "readers check the sources", "a brown fox jumps")
SHORT = [f"{WORDS[i % 4]} and {WORDS[i * 3 // 4 % 4]}" for i in range(12)]
LONG = "the brown dog checks the sources and jumps " * 12 + "quick"
TEXTS = [*SHORT, LONG]
GROUPS = [{"site": f"s{i // 4}"} for i in range(len(TEXTS))]


def _entity(text):
    return [{"start": 0, "end": text.index(" "), "label": "PER" if "fox" in text else "LOC"}]


def _answer(text, number):
    return [] if number % 4 == 0 else [{"text": text[:3], "answer_start": 0}]


ROWS = {
    "classes": [{"text": t, "label": "ab"[i % 2]} for i, t in enumerate(TEXTS)],
    "labels": [{"text": t, "label": ["ab"[i % 2], "c"][: 1 + i % 3 // 2]} for i, t in enumerate(TEXTS)],
    "numbers": [{"text": t, "label": i % 5 + 0.5} for i, t in enumerate(TEXTS)],
    "tag": [{"text": t, "entities": _entity(t)} for t in TEXTS],
    "answer": [{"question": WORDS[i % 4], "context": t, "answers": _answer(t, 1)} for i, t in enumerate(TEXTS)],
    "no answer": [{"question": WORDS[i % 4], "context": t, "answers": _answer(t, i)} for i, t in enumerate(TEXTS)],
    "graded": [{"text": t, "text2": WORDS[i % 4], "score": i % 5 / 4} for i, t in enumerate(TEXTS)],
    "pairs": [{"text": t, "text2": f"{WORDS[i % 4]} {i}"} for i, t in enumerate(TEXTS)],
    "texts": [{"text": t} for t in TEXTS],
}
ROWS = {name: [row | group for row, group in zip(rows, GROUPS, strict=True)] for name, rows in ROWS.items()}
TASK = {name: "classify" if name in ("classes", "labels", "numbers") else "similarity" for name in ROWS}
TASK |= {"tag": "tag", "answer": "answer", "no answer": "answer"}
JUDGED = {"pairs": "graded", "texts": "graded"}
SMALL = {"start": "plain", "epochs": 2, "batch": 8, "learning_rate": 3e-3, "precision": "fp32", "device": "cpu"}
OTHER = {
    "epochs": 3,
    "steps": 7,
    "minutes": 0.01,
    "batch": 5,
    "micro_slots": 64,
    "start": "probe",
    "group": "site",
    "baseline": "tfidf",
    "held": 0.4,
    "refit": True,
    "learning_rate": 1e-3,
    "layer_decay": 0.5,
    "weight_decay": 0.5,
    "beta1": 0.5,
    "beta2": 0.8,
    "epsilon": 0.1,
    "clip": 0.01,
    "schedule": "constant",
    "warmup": 0.5,
    "decay": 0.5,
    "minimum_rate": 0.5,
    "dropout": 0.3,
    "slots": 24,
    "stride": 5,
    "evaluate_every": 1,
    "patience": 1,
    "freeze": 1,
    "checkpointing": True,
    "class_weights": "balanced",
    "problem": "multi",
    "abstain": 0.9,
    "threshold": 0.9,
    "scheme": "bilou",
    "null_threshold": 5.0,
    "loss": "simcse",
    "temperature": 0.5,
    "mlm_weight": 0.9,
    "pooling": "first",
    "memory": 50.0,
    "checkpoint_seconds": 1.0,
    "examples": True,
    "precision": "bf16",
    "device": "cuda",
    "seed": 5,
}
HOW_NOT_WHAT = ("minutes", "memory", "device", "micro_slots", "checkpointing")
"""How long, where, and in how many parts."""
TOGETHER = {"decay": {"schedule": "wsd"}, "steps": {"epochs": None}}
LOOP = (
    *("epochs", "steps", "batch", "learning_rate", "layer_decay", "weight_decay", "beta1", "beta2", "epsilon", "clip"),
    *("schedule", "warmup", "decay", "minimum_rate", "precision", "seed"),
)
"""What the loop reads, which is the same one for all."""
REFUSED = {
    name: {"held", "refit", "baseline", "evaluate_every", "patience", "examples", "checkpoint_seconds"} for name in ROWS
}
"""Without rows held out, and without checkpoints."""
for _name, _task in TASK.items():
    for _other, _settings in {
        "classify": ("class_weights", "problem", "abstain", "threshold"),
        "tag": ("scheme",),
        "answer": ("null_threshold",),
        "similarity": ("loss", "temperature", "mlm_weight", "pooling"),
    }.items():
        REFUSED[_name] |= set() if _other == _task else set(_settings)
    REFUSED[_name] |= {"stride"} if _task in ("classify", "similarity") else set()
REFUSED["classes"] |= {"threshold"}
REFUSED["numbers"] |= {"threshold", "abstain", "class_weights"}
REFUSED["labels"] |= {"problem"}  # several labels per text are no single class
REFUSED["texts"] |= {"loss"}  # bare texts have one loss
REFUSED["answer"] |= {"null_threshold"}
REFUSED["graded"] |= {"mlm_weight"}
REFUSED["pairs"] |= {"mlm_weight"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("model") / "model")


def outcome(model, kind, place, **more):
    """What a run leaves: the weights, and what the folder predicts and scores."""
    learns = {"learning_rate": 0.01, "epochs": 20} if kind == "tag" else {}
    finetune(model, ROWS[kind], task=TASK[kind], out=place, **(SMALL | learns | more))
    found = evaluate(place, ROWS[JUDGED.get(kind, kind)], draws=20, say=list)
    return (
        hashlib.sha256((place / "model.safetensors").read_bytes()).hexdigest(),
        json.dumps(predict(place, ROWS[kind], say=list)),
        (found["low"], found["high"]),
    )


@pytest.fixture(scope="module")
def usual(model, tmp_path_factory):
    found = {}

    def of(kind, **more):
        if (key := (kind, repr(more))) not in found:
            found[key] = outcome(model, kind, tmp_path_factory.mktemp("usual") / "run", **more)
        return found[key]

    return of


def test_every_setting_has_another_value_here():
    assert set(OTHER) == {f.name for f in dataclasses.fields(TaskSettings)}


def read_by(kind, name):
    """Whether to look at a setting; of similarity, which has no head, `start` says what is held out of 40 rows."""
    if name in HOW_NOT_WHAT or (name == "start" and TASK[kind] == "similarity"):
        return False
    return kind == "classes" or name not in LOOP


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in ROWS for n in OTHER if read_by(k, n)])
def test_a_setting_of_a_task_changes_the_model_or_is_refused(kind, name, model, usual, tmp_path):
    other = {name: {("labels", "problem"): "single", ("texts", "loss"): "cosent"}.get((kind, name), OTHER[name])}
    if name in REFUSED[kind]:
        with pytest.raises(UserError, match=name):
            outcome(model, kind, tmp_path / "run", **other)
        return
    more = TOGETHER.get(name, {})
    assert outcome(model, kind, tmp_path / "run", **more, **other) != usual(kind, **more)


HELD_OUT = ("start", "held", "refit", "evaluate_every", "patience", "examples", "group")


def chosen(model, place, **more):
    """What a run that holds rows out leaves besides the weights: how it looked at them, and its report's parts."""
    rows = [{"text": text, "label": label, "site": i // 6} for i, (text, label) in enumerate(sentiment(60))]
    given = SMALL | {"start": "probe", "epochs": 4} | more
    found = finetune(model, rows, task="classify", out=place, **given)
    parts = re.findall("<h2[^>]*>(.*?)</h2>", (place / "report.html").read_text())
    names = ("rows_held_out", "rows_trained_on", "history", "stopped", "comparison")
    return json.dumps([found[name] for name in names] + [parts])


@pytest.mark.parametrize("name", HELD_OUT)
def test_a_setting_of_rows_held_out_changes_the_run(name, model, tmp_path):
    other = {name: "plain" if name == "start" else False if name == "refit" else OTHER[name]}
    assert chosen(model, tmp_path / "run", **other) != chosen(model, tmp_path / "usual")


@pytest.mark.parametrize(
    "given",
    [
        {"start": "plain", "held": 0.3},
        {"held": 0, "refit": True},
        {"epochs": None, "minutes": 0.01, "refit": True},
        {"steps": 3, "epochs": 5},
        {"schedule": "cosine", "decay": 0.2},
        {"schedule": "constant", "minimum_rate": 0.2},
    ],
)
def test_settings_that_others_make_idle_are_refused(given):
    with pytest.raises(UserError, match=f"{list(given)[-1]}=.*nothing reads"):
        TaskSettings(**given)


@pytest.mark.parametrize(("name", "value"), [("beta1", 1.5), ("epsilon", 0), ("clip", -1), ("weight_decay", -0.1)])
def test_what_all_runs_have_is_checked_before_any_work(name, value):
    with pytest.raises(UserError, match=f"{name}="):
        TaskSettings(**{name: value})


def test_what_only_another_schedule_reads_goes_with_it():
    other = apply_overrides(TaskSettings(schedule="wsd", decay=0.3, minimum_rate=0.2), {"schedule": "cosine"})
    assert (other.decay, other.minimum_rate) == (0.1, 0.2)
    assert apply_overrides(other, {"schedule": "constant"}).minimum_rate == 0


def test_validation_data_make_settings_of_rows_held_out_idle(model):
    for given in ({"held": 0.3}, {"refit": True}):
        with pytest.raises(UserError, match=f"{next(iter(given))}=.*validation data.*nothing reads"):
            finetune(
                model, sentiment(8), task="classify", validation=sentiment(8), **SMALL | {"start": "probe"} | given
            )


def test_a_loss_that_compares_all_texts_has_no_parts(model):
    with pytest.raises(UserError, match=r"micro_slots=.*nothing reads"):
        finetune(model, ROWS["graded"], task="similarity", micro_slots=64, **SMALL)


def test_what_the_calibration_does_not_read_is_refused(model):
    loaded = load(model, precision="fp32")
    for calibrate in ("batch", "none"):
        with pytest.raises(UserError, match=r"priors.*nothing reads"):
            zero_shot(loaded, WORDS, ["fox", "dog"], calibrate=calibrate, priors=["the"])
    one, other = (zero_shot(loaded, WORDS, ["fox", "dog"], priors=[p]) for p in ("the", "readers check"))
    assert one != other


def test_an_nli_model_reads_no_priors(model, tmp_path):
    pairs = [(text, WORDS[i % 4], ("entailment", "contradiction")[i % 2]) for i, text in enumerate(SHORT)]
    finetune(model, pairs, task="classify", out=tmp_path / "nli", **SMALL)
    with pytest.raises(UserError, match=r"priors.*nothing reads"):
        zero_shot(tmp_path / "nli", WORDS, ["fox", "dog"], priors=["the"])


def test_states_of_tokens_are_not_pooled(model, tmp_path):
    with pytest.raises(UserError, match=r"pooling=.*nothing reads"):
        write_features(load(model), WORDS, tmp_path / "f.parquet", per_token=True, pooling="first")


def test_queries_and_documents_have_no_columns(model, tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "fox"}\n')
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "text": "the fox"}\n')
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    assert evaluate(model, tmp_path, columns=Columns())["rows"]
    for given, named in (
        ({"columns": Columns(text="words")}, "text="),
        ({"columns": Columns(group="site")}, "group="),
        ({"columns": Columns(header=True)}, "header="),
        ({"lenient": True}, "lenient"),
        ({"draws": 10}, "draws="),
    ):
        with pytest.raises(UserError, match=f"{named}.*queries and documents"):
            evaluate(model, tmp_path, **given)
