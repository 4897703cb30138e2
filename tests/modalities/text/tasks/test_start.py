"""Fine-tuning as it comes: heads start as linear probes, what is kept is never worse than simpler models."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch

import unmask
from tiny_folders import folder
from unmask.errors import UserError
from unmask.export.folders import to_hf, to_sentence_transformers
from unmask.export.onnx import to_onnx
from unmask.modalities.text.network.folder import load_folder
from unmask.modalities.text.tasks import compare, linear, loop, network, probe
from unmask.modalities.text.tasks.baselines import fit_tags, load_baseline
from unmask.modalities.text.tasks.classify import Classify
from unmask.modalities.text.tasks.data import Item
from unmask.modalities.text.tasks.encoding import ExampleMaker
from unmask.modalities.text.tasks.finetune import evaluate, finetune, predict
from unmask.modalities.text.tasks.held_out import overlap, split
from unmask.modalities.text.tasks.model import build, load, save
from unmask.modalities.text.tasks.settings import TaskSettings

QUICK = {"epochs": 1, "batch": 16, "precision": "fp32", "dropout": 0.0}
WORDS = ("fox", "lazy", "dog", "readers", "sources", "river", "bank", "table", "rows", "brown", "quick", "check")


def texts(rows: int, seed: int = 0) -> list[tuple[str, str]]:
    """Bags of words; the label is whether 'fox' or 'river' is among them."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(rows):
        words = [str(w) for w in rng.choice([w for w in WORDS if w not in ("fox", "river")], 7)]
        words[int(rng.integers(7))] = "fox" if i % 2 else "river"
        out.append((" ".join(words), "animal" if i % 2 else "water"))
    return out


def model_of(place):
    return unmask.load(place, precision="fp32")


@pytest.mark.parametrize("recipe", ["bert", "modern"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_the_model_starts_as_the_probe_and_transformers_reads_it(recipe, pooling, tmp_path):
    transformers = pytest.importorskip("transformers")

    text = load_folder(folder(tmp_path / "model", recipe=recipe))
    encoder = ExampleMaker(text.tokenizer, slots=64, types=recipe == "bert")
    items = [Item(text=t, label=label) for t, label in texts(48)]
    work = Classify.from_items(encoder, items, TaskSettings())
    built, _ = build(text, work.head, work.outputs)
    training = work.prepare(items, labelled=True)
    first, mean = probe.pooled(built, training, 64)
    found = probe.start_classifier(
        text,
        built,
        training,
        training.extra["target"],
        "softmax",
        slots=64,
        chosen=probe.Probed(pooling, 100.0, False, 0),
    )
    assert found.added == (recipe == "bert" and pooling == "mean")
    ours = np.stack(loop.outputs(built, work, training))
    right = (ours.argmax(1) == training.extra["target"].numpy()).mean()
    assert right > 0.75  # a linear model of 32 numbers, where half would be chance
    if found.added:
        states = network.through_mean_layer(first, mean, text.model.encoder.config.norm.epsilon)
        again, _ = probe.pooled(built, training, 64)
        assert torch.allclose(states, again, atol=1e-4)
    save(tmp_path / "out", text, built, kind=work.head, about=work.about, config=work.config())
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    for item, logits in list(zip(items, ours, strict=True))[:4]:
        tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(item.text, return_tensors="pt")
        tokens.pop("token_type_ids", None)
        with torch.no_grad():
            assert np.abs(theirs(**tokens).logits[0].numpy() - logits).max() < 2e-3


@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_kept_is_the_best_of_the_table_and_is_what_predicts(seed, tmp_path):
    """Texts longer than what the encoder reads: counts of words win, and are saved where they are asked for."""
    data, held = (
        [(f"rows table bank check rows {t}", x) for t, x in texts(n, s)] for n, s in ((90, seed), (40, seed + 10))
    )
    model, given = folder(tmp_path / "model"), {"validation": held, "seed": seed, "slots": 8, **QUICK}
    plain = finetune(model, data, task="classify", out=tmp_path / "plain", **given)
    assert "TF-IDF" not in plain["kept"]
    assert any("TF-IDF + logistic regression does better" in line and "tfidf" in line for line in plain["lines"])
    assert not list((tmp_path / "plain").glob("baseline*"))
    result = finetune(model, data, task="classify", out=tmp_path / "out", baseline="tfidf", **given)
    table = {row["model"]: row["value"] for row in result["comparison"]}
    assert {"most frequent class", "TF-IDF + logistic regression", "linear probe of the frozen encoder"} <= set(table)
    assert result["value"] >= max(value for name, value in table.items() if name != "fine-tuned")
    assert [row["model"] for row in result["comparison"] if row["kept"]] == [result["kept"]]
    kept = load(tmp_path / "out", precision="fp32", device="cpu")
    assert kept.baseline is not None
    assert repr(kept).startswith("TaskFolder(classify, by its baseline 'words': bert: ")
    assert len(repr(kept)) < 250
    found = evaluate(tmp_path / "out", held, draws=5, precision="fp32")
    assert found["accuracy"] == pytest.approx(result["value"])
    assert "TF-IDF" in " ".join(result["lines"])
    for export in (to_onnx, to_hf, to_sentence_transformers, type(model_of(tmp_path / "out")).save):
        with pytest.raises(UserError, match="predicts with a baseline"):
            export(model_of(tmp_path / "out"), tmp_path / "export")
        assert not (tmp_path / "export").exists()


def test_rows_are_held_out_and_then_trained_on(tmp_path):
    data, said = texts(100), []
    result = finetune(
        folder(tmp_path / "model"), data, task="classify", out=tmp_path / "out", say=said.append, refit=True, **QUICK
    )
    assert result["rows_held_out"] == 15
    assert result["rows_trained_on"] == 100
    assert any("15 of 100 rows are held out" in line for line in said)
    assert any("trained on all 100 rows" in line for line in result["lines"])
    once = finetune(folder(tmp_path / "m2"), data, task="classify", out=tmp_path / "o2", refit=False, **QUICK)
    assert once["rows_trained_on"] == 85
    assert len(predict(tmp_path / "out", [t for t, _ in data[:3]])) == 3


@pytest.mark.parametrize("helpful", [False, True])
def test_a_model_that_always_says_one_class_is_warned_of(tmp_path, helpful):
    """A tie with the most frequent class was kept as "fine-tuned" without a word."""
    data = [("the fox jumps" if kind == "a" or not helpful else "rows of a table", kind) for kind in "aaab" * 12]
    found = finetune(folder(tmp_path / "model"), data, task="classify", validation=data, out=tmp_path / "out", **QUICK)
    warned = [line for line in found["lines"] if "no better than always answering 'a'" in line]
    assert len(warned) == (not helpful), found["lines"]
    assert (found["value"] == 0.75) == (not helpful)


@pytest.mark.parametrize(("right", "barely"), [(43, True), (60, False), (39, False)])
def test_a_gain_within_its_error_over_one_answer_is_said(right, barely):
    """Of 75 rows 39 are of one class: 43 right may be chance, 60 are none, and 39 are no gain."""
    from types import SimpleNamespace

    from unmask.modalities.text.tasks.compare import Rival, judge

    truth = ["a"] * 39 + ["b"] * 36
    work = SimpleNamespace(
        metric="accuracy",
        top=1.0,
        value=lambda said, items: float(np.mean([p["label"] == i.label for p, i in zip(said, items, strict=True)])),
    )
    guesses = [{"label": t if k * 29 % 75 < right else "ab"[t == "a"]} for k, t in enumerate(truth)]
    rival = Rival("most frequent class", [{"label": "a"}] * 75, constant=True)
    held = SimpleNamespace(items=[Item(text=str(n), label=t) for n, t in enumerate(truth)])
    found = judge(work, [("probe", guesses)], "probe", [rival], held, seed=0)
    assert found.barely_better_than == ("'a'" if barely else None)
    assert found.no_better_than == ("'a'" if right == 39 else None)


@pytest.mark.parametrize("metric", ["accuracy", "f1_macro", "matthews"])
def test_a_tasks_own_metric_alone_is_what_its_scores_say(tmp_path, metric):
    encoder = ExampleMaker(load_folder(folder(tmp_path / "model")).tokenizer, slots=32, types=False)
    items = [Item(text=text, label=label) for text, label in texts(12)]
    task = Classify.from_items(encoder, items, TaskSettings(), metric=metric)
    said = [{"label": "animal" if i % 3 else "water", "probability": 0.7} for i in range(12)]
    assert task.value(said, items) == task.score(said, items)[metric]


def test_splits_keep_what_is_the_same_together_and_a_row_of_every_class():
    items = [Item(text=f"row {i // 2}", label=str(i % 5)) for i in range(100)] + [Item(text="lone", label="rare")]
    rest, held = split(items, 0.2, 0)
    assert 10 <= len(held) <= 21
    assert overlap(rest, held) == 0
    assert {i.label for i in rest} == {i.label for i in items}
    assert overlap([Item(text="A  b\n")], [Item(text="a b"), Item(text="ab")]) == 1
    assert split(items[:30], 0.2, 0)[1] == []


def test_rows_in_training_and_validation_are_counted(tmp_path):
    data, said = texts(48), []
    finetune(
        folder(tmp_path / "model"), data, task="classify", validation=data[:7] + texts(5, 9), say=said.append, **QUICK
    )
    assert any("7 of 12 validation rows are training rows too" in line for line in said)


def test_pairs_tags_answers_and_scores_have_their_tables(tmp_path):
    model = folder(tmp_path / "model")
    rows = texts(48)
    others = [rows[(i + 1 + i // 2 % 2) % 48] for i in range(48)]
    pairs = [(a, b, "same" if x == y else "other") for (a, x), (b, y) in zip(rows, others, strict=True)]
    result = finetune(model, pairs, task="classify", validation=pairs[:20], out=tmp_path / "pairs", **QUICK)
    assert "frozen vectors of the two texts" in {r["model"] for r in result["comparison"]}
    assert evaluate(tmp_path / "pairs", pairs[:20], draws=2, precision="fp32")["accuracy"] == result["value"]
    graded = [{"text": a, "text2": b, "score": float(c == "same")} for a, b, c in pairs]
    table = finetune(model, graded, task="similarity", validation=graded[:20], **QUICK)["comparison"]
    assert {"cosine of TF-IDF vectors", "the model before fine-tuning"} <= {r["model"] for r in table}
    tagged = [
        {"text": t, "entities": [{"start": t.index(w), "end": t.index(w) + len(w), "label": label}]}
        for t, label in rows
        for w in ["fox" if label == "animal" else "river"]
    ]
    result = finetune(model, tagged, task="tag", validation=tagged[:20], **(QUICK | {"learning_rate": 1e-7}))
    table = {r["model"]: r["value"] for r in result["comparison"]}
    assert table["most frequent tag of each word"] == 1.0
    assert table["linear probe of the frozen encoder"] > 0.3
    asked = [
        {
            "question": "which?",
            "context": t,
            "answers": [{"text": e["entities"][0]["label"][:0] or w, "answer_start": t.index(w)}],
        }
        for (t, label), e in zip(rows, tagged, strict=True)
        for w in ["fox" if label == "animal" else "river"]
    ]
    table = finetune(model, asked, task="answer", validation=asked[:20], **QUICK)["comparison"]
    assert {"sentence with the most words in common", "linear probe of the frozen encoder"} <= {
        r["model"] for r in table
    }


def test_a_tempered_model_decides_the_same():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 60)).astype(np.float32)
    y = np.eye(3, dtype=np.float32)[rng.integers(3, size=40)]
    sharp = linear.fit(x, y, "softmax", 1000.0)
    soft = linear.tempered(sharp, x, y, "softmax", 0.8)
    assert linear.losses(sharp, x, y, "softmax").mean() < 0.1
    assert linear.losses(soft, x, y, "softmax").mean() == pytest.approx(0.8, abs=1e-3)
    assert (sharp(x).argmax(1) == soft(x).argmax(1)).all()


def test_a_linear_fit_is_scikit_learns():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(5)
    x, target = rng.normal(size=(80, 6)).astype(np.float32), rng.integers(3, size=80)
    theirs = LogisticRegression(C=0.7, tol=1e-8, max_iter=1000).fit(x, target)
    ours = linear.fit(x, np.eye(3, dtype=np.float32)[target], "softmax", 0.7)
    assert np.abs(ours.weight.T - theirs.coef_).max() < 2e-2


def test_a_gain_within_its_error_is_told_apart_from_one_that_is_not():
    class Task:
        metric = "accuracy"

        def value(self, predictions, items):
            return float(np.mean([p["label"] == i.label for p, i in zip(predictions, items, strict=True)]))

    items = [Item(text=str(n), label="a") for n in range(100)]
    good, same = [{"label": "a"}] * 100, [{"label": "a"}] * 99 + [{"label": "b"}]
    bad = [{"label": "a"}] * 50 + [{"label": "b"}] * 50
    gain, error = compare.gain(Task(), good, same, items, seed=0)
    assert gain <= error * 1.5
    gain, error = compare.gain(Task(), good, bad, items, seed=0)
    assert gain > 3 * error


def test_minutes_end_a_run(tmp_path):
    result = finetune(
        folder(tmp_path / "model"), texts(48), task="classify", start="plain", minutes=0.01, batch=16, precision="fp32"
    )
    assert result["stopped"] == "time"
    assert result["steps"] > 1


def test_the_task_that_trains_what_did_better_is_named():
    """500 pairs of STS-B: r .71 where one pass reads both texts, .87 of their frozen vectors."""
    found = compare.Comparison(table=[], kept="fine-tuned", better=("frozen vectors of the two texts", "frozen"))
    assert "`finetune similarity` trains it" in found.lines("pearson", 72)[-1]
    assert "similarity" not in found.lines("accuracy", 72)[-1]


def graded(rows: int, seed: int, *, alike: bool) -> list[dict[str, object]]:
    """Pairs whose grade is the share of words in common, or whether 'fox' or 'river' is in both."""
    made = texts(2 * rows, seed)
    rng = np.random.default_rng(seed)
    order = rng.permutation(2 * rows)
    out = []
    for i in range(rows):
        (a, x), (b, y) = made[order[2 * i]], made[order[2 * i + 1]]
        common = len(set(a.split()) & set(b.split()))
        front = "rows table bank check rows " if alike else ""
        out.append({"text": front + a, "text2": front + b, "score": common if alike else float(x == y)})
    return out


@pytest.mark.parametrize(
    ("alike", "key", "kind", "name"),
    [
        (True, "tfidf", "cosine", "cosine of TF-IDF vectors"),
        (False, "frozen", "apart", "ridge regression of the frozen vectors"),
    ],
)
def test_a_baseline_of_similarity_is_saved_where_it_is_asked_for(alike, key, kind, name, tmp_path):
    """Words behind what the encoder reads, for TF-IDF; two classes of texts that any cosine finds alike,
    for the ridge."""
    train, held = (graded(n, s, alike=alike) for n, s in ((120, 1), (40, 2)))
    given = QUICK | {"learning_rate": 1e-7} | ({"slots": 8} if alike else {})
    plain = finetune(
        folder(tmp_path / "model"), train, task="similarity", validation=held, out=tmp_path / "plain", **given
    )
    table = {row["model"]: row["value"] for row in plain["comparison"]}
    assert name == max(table, key=table.__getitem__) != plain["kept"]
    assert any(f"{name} does better on these rows; " in line and key in line for line in plain["lines"])
    assert load(tmp_path / "plain").baseline is None
    given["baseline"] = key
    result = finetune(tmp_path / "model", train, task="similarity", validation=held, out=tmp_path / "out", **given)
    assert (result["kept"], result["value"]) == (name, table[name])
    kept = load(tmp_path / "out", precision="fp32")
    assert (kept.baseline.kind, kept.about["temperature"]) == (kind, TaskSettings().temperature)
    assert evaluate(kept, held, draws=2)["spearman"] == pytest.approx(result["value"])
    both = predict(kept, [{"text": r["text"], "text2": r["text2"]} for r in held[:3]])
    assert all(set(row) >= {"score"} for row in both)
    assert len(predict(kept, [held[0]["text"]])[0]["embedding"]) == 32  # a single text has the encoder's vector
    again = finetune(
        tmp_path / "model", train, task="similarity", out=tmp_path / "all", **given
    )  # holds rows out, then all
    assert (again["rows_trained_on"], load(tmp_path / "all").baseline.kind) == (120, kind)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_look_up_of_tags_is_saved_and_predicts(seed, tmp_path):
    """Words whose ends alone tell their kind, of which the encoder's first token knows nothing."""
    rng = np.random.default_rng(seed)
    names = {f"fox{a}{b}": ("animal", "water")[i % 2] for i, (a, b) in enumerate(itertools.product("abcd", "efgh"))}

    def tagged(rows: int) -> list[dict[str, object]]:
        out = []
        for i in range(rows):
            word = list(names)[i % len(names)]
            text = f"{rng.choice(WORDS)} {word} {rng.choice(WORDS)} {rng.choice(WORDS)}"
            start = text.index(word)
            out.append({"text": text, "entities": [{"start": start, "end": start + len(word), "label": names[word]}]})
        return out

    held = tagged(20)
    given = QUICK | {"learning_rate": 1e-7, "slots": 12, "stride": 2, "seed": seed, "baseline": "lookup"}
    result = finetune(
        folder(tmp_path / "model"), tagged(48), task="tag", validation=held, out=tmp_path / "out", **given
    )
    assert (result["kept"], result["value"]) == ("most frequent tag of each word", 1.0)
    assert set(load(tmp_path / "out").baseline.terms) == set(names)
    assert evaluate(tmp_path / "out", held, draws=2, precision="fp32")["f1"] == 1.0
    found = predict(tmp_path / "out", ["A FOXAE is no foxzz"], precision="fp32")[0]["entities"]
    assert [(e["text"], e["label"]) for e in found] == [("FOXAE", "animal")]
    assert found[0]["probability"] == pytest.approx(
        (3 + 1 / 5) / 4
    )  # seen three times, and one look spread over 5 tags


@pytest.mark.parametrize(
    "change", [{"kind": "words"}, {"kind": ["tags"]}, {"terms": ["fox"]}, {"kind": "apart"}, {"problem": "pair"}]
)
def test_a_damaged_look_up_is_one_line(change, tmp_path):
    fit_tags([("fox", 1), ("Fox", 1), ("river", 2), ("dog", 0)], 3).save(tmp_path)
    assert load_baseline(tmp_path, "tag", 3).tag_log_probabilities(["FOX", "dog", "new"], 3).argmax(1).tolist() == [
        1,
        0,
        0,
    ]
    with pytest.raises(UserError, match="beyond the 2 of the model"):
        load_baseline(tmp_path, "tag", 2)
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=r"baseline\.json|saved baseline"):
        load_baseline(tmp_path, "tag", 3)


@pytest.mark.parametrize(("share", "again"), [(0.15, True), (0.05, False)])
def test_a_tuned_model_is_trained_again_on_all_rows_where_many_were_held_out(share, again, tmp_path, monkeypatch):
    """Rows of 144 classes, a seventh held out: the model of the others was below the probe of all (.720 for .744)."""
    looks, said = itertools.count(), []
    monkeypatch.setattr(loop, "merit", lambda *given: next(looks))  # a trained state is kept
    monkeypatch.setattr(compare, "gain", lambda *given, **more: (1.0, 0.0))
    rows = [(f"fox river bank table {i}", str(i % 2)) for i in range(60)]
    out, model = tmp_path / "out", folder(tmp_path / "model")
    result = finetune(model, rows, task="classify", out=out, say=said.append, held=share, **QUICK)
    assert (result["kept_step"] > 0, result["rows_trained_on"] == 60) == (True, again)
    assert any("not trained again on all" in line for line in said) != again


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_where_features_say_nothing_the_most_frequent_class_is_answered(seed: int):
    """A model of 384 features separates 300 rows whatever they mean: only much regularisation sees that."""
    rng = np.random.default_rng(seed)
    features, rare = rng.standard_normal((900, 384)).astype(np.float32), rng.random(900) < 0.3
    target = np.stack([~rare, rare], 1).astype(np.float32)
    _, strength, _ = linear.cross_validated([features[:300]], target[:300], "softmax", seed=seed)
    found = linear.fit(features[:300], target[:300], "softmax", strength)
    assert (found(features[300:]).argmax(1) == rare[300:]).mean() >= (~rare[300:]).mean() - 0.01


def test_a_baseline_that_a_task_lacks_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(loop.TextFinetuning, "train", None)  # is not come to
    given = {"validation": texts(20, 1), "out": tmp_path / "out", "baseline": "frozen", **QUICK}
    with pytest.raises(UserError, match=r"no such baseline(.|\n)*It has: tfidf\."):
        finetune(folder(tmp_path / "model"), texts(48), task="classify", **given)
    assert not (tmp_path / "out").exists()
