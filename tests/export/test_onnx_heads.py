"""Heads are exported as themselves, and every ONNX folder that is written loads back here with equal answers."""

import json

import numpy as np
import pytest
import torch

import tiny_folders
import unmask
from text_corpus import SENTENCES
from unmask.errors import UserError

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from published import published, task_head
from unmask.export.eight_bits import session
from unmask.export.onnx import to_onnx


def slow(*cases):
    """Each export takes seconds: one of each kind is always tried, all of them by `make slow`."""
    return [pytest.param(*(c if isinstance(c, tuple) else (c,)), marks=pytest.mark.slow) for c in cases]


MASKED = [
    "bert",
    "roberta",
    "electra-projected",
    "longformer",
    "modernbert",
    *slow(
        "xlm-roberta",
        "camembert",
        "distilbert",
        "albert-groups",
        "electra",
        "mpnet",
        "deberta-v3",
        "deberta-legacy",
        "deberta-v2",
        "eurobert",
        "eurobert-tied",
    ),
]
HEADS = [
    ("bert", "SequenceClassification"),
    ("longformer", "SequenceClassification"),
    ("modernbert", "TokenClassification"),
    ("roberta", "QuestionAnswering"),
    ("electra-projected", "PreTraining"),
    *slow(
        *[
            (name, "SequenceClassification")
            for name in (
                "roberta",
                "distilbert",
                "albert",
                "electra-projected",
                "mpnet",
                "deberta-v3",
                "modernbert",
                "eurobert",
            )
        ]
    ),
    *slow(("bert", "TokenClassification"), ("electra", "TokenClassification"), ("deberta-v3", "QuestionAnswering")),
]
TEXTS = [SENTENCES[0], "Fox.", SENTENCES[1]]
CLOSE = {"atol": 2e-4, "rtol": 2e-4}


def run(folder, model, texts, file="model.onnx"):
    """What onnxruntime says of texts, padded: outputs by name."""
    graph = session(folder / file)
    ids = model.tokenizer.ids(texts, max_slots=64)
    feed = {"input_ids": np.zeros((len(ids), max(map(len, ids))), np.int64)}
    feed["attention_mask"] = np.zeros_like(feed["input_ids"])
    feed["token_type_ids"] = np.zeros_like(feed["input_ids"])
    for row, mine in enumerate(ids):
        feed["input_ids"][row, : len(mine)], feed["attention_mask"][row, : len(mine)] = mine, 1
    names = [o.name for o in graph.get_outputs()]
    return dict(zip(names, graph.run(names, {i.name: feed[i.name] for i in graph.get_inputs()}), strict=True)), ids


@pytest.mark.parametrize("name", MASKED)
def test_a_masked_model_comes_back(name, tmp_path):
    published(name, tmp_path / "m")
    model = unmask.load(tmp_path / "m", precision="fp32", device="cpu")
    assert to_onnx(model, tmp_path / "o")["head"] == "masked"
    again = unmask.load(tmp_path / "o", precision="fp32", device="cpu")
    np.testing.assert_allclose(again.embed(TEXTS), model.embed(TEXTS), **CLOSE)
    before, after = (m.fill("The [MASK] brown fox.", top=3)[0]["slots"][0]["candidates"] for m in (model, again))
    assert [c["value"] for c in before] == [c["value"] for c in after]
    np.testing.assert_allclose(*[[c["probability"] for c in cs] for cs in (before, after)], **CLOSE)
    architectures = json.loads((tmp_path / "o" / "config.json").read_text())["architectures"]
    assert architectures[0].endswith("ForMaskedLM")


@pytest.mark.parametrize(("name", "task"), HEADS)
def test_a_head_is_exported_as_itself(name, task, tmp_path):
    task_head(name, task, tmp_path / "m")
    model = unmask.load(tmp_path / "m", precision="fp32", device="cpu")
    to_onnx(model, tmp_path / "o")
    found, ids = run(tmp_path / "o", model, TEXTS)
    again = unmask.load(tmp_path / "o", precision="fp32", device="cpu")
    for row, (text, said, back) in enumerate(zip(TEXTS, model.label(TEXTS), again.label(TEXTS), strict=True)):
        expected = np.array(said["logits"])
        if task == "QuestionAnswering":
            theirs = np.stack([found["start_logits"][row], found["end_logits"][row]], -1)[: len(ids[row])]
        else:
            theirs = found["logits"][row] if task == "SequenceClassification" else found["logits"][row][: len(ids[row])]
        np.testing.assert_allclose(theirs.reshape(expected.shape), expected, err_msg=text, **CLOSE)
        np.testing.assert_allclose(back["logits"], expected, **CLOSE)
    config = json.loads((tmp_path / "o" / "config.json").read_text())
    assert config["architectures"][0].endswith(task if task == "PreTraining" else f"For{task}")
    with pytest.raises(UserError, match="masked"):
        again.fill("a [MASK].")


def test_sentence_vectors_are_pooled_and_normalised_as_the_folder_says(tmp_path):
    from unmask.export.folders import to_sentence_transformers

    published("bert", tmp_path / "m")
    to_sentence_transformers(unmask.load(tmp_path / "m", precision="fp32"), tmp_path / "s", pooling="max")
    model = unmask.load(tmp_path / "s", precision="fp32", device="cpu")
    found = to_onnx(model, tmp_path / "o")
    assert found["head"] == "sentence"
    vectors = model.embed(TEXTS)
    np.testing.assert_allclose(run(tmp_path / "o", model, TEXTS)[0]["sentence_embedding"], vectors, **CLOSE)
    np.testing.assert_allclose(unmask.load(tmp_path / "o", precision="fp32").embed(TEXTS), vectors, **CLOSE)
    asked = to_onnx(unmask.load(tmp_path / "m", precision="fp32", device="cpu"), tmp_path / "p", pooling="first")
    assert asked["head"] == "sentence"
    plain = unmask.load(tmp_path / "m", precision="fp32").embed(TEXTS, pooling="first")
    np.testing.assert_allclose(run(tmp_path / "p", model, TEXTS)[0]["sentence_embedding"], plain, **CLOSE)
    np.testing.assert_allclose(unmask.load(tmp_path / "p", precision="fp32").embed(TEXTS), plain, **CLOSE)


@pytest.mark.parametrize("products", [True, False], ids=["products", "weights"])
def test_the_file_in_8_bits_loads_too(products, tmp_path):
    from unmask.export.eight_bits import quantise

    task_head("bert", "SequenceClassification", tmp_path / "m")
    model = unmask.load(tmp_path / "m", precision="fp32", device="cpu")
    to_onnx(model, tmp_path / "o")
    quantise(tmp_path / "o" / "model.onnx", tmp_path / "o" / "model_int8.onnx", products=products)
    (tmp_path / "o" / "model.onnx").unlink()
    back = unmask.load(tmp_path / "o", precision="fp32", device="cpu").label(TEXTS)
    expected = np.array([said["logits"] for said in model.label(TEXTS)])
    found = np.array([said["logits"] for said in back])
    assert 0 < np.abs(found - expected).max() < 0.1 * np.abs(expected).max()


@pytest.mark.parametrize("task", ["SequenceClassification", "TokenClassification", "QuestionAnswering"])
def test_agreement_in_8_bits_is_of_the_head(task, tmp_path, capfd):
    task_head("bert", task, tmp_path / "m")
    model = unmask.load(tmp_path / "m", precision="fp32", device="cpu")
    texts = [f"{s} {i}" for i in range(8) for s in SENTENCES]
    capfd.readouterr()
    found = to_onnx(model, tmp_path / "o", quantize="int8", texts=texts)
    unit = {"Sequence": "texts", "TokenCla": "tokens", "Question": "span"}[task[:8]]
    assert unit in found["int8_measure"]
    assert found["int8_texts"] == "64 texts given"
    assert 0 < found["int8_constant"] <= 1
    full, less = (run(tmp_path / "o", model, texts[:8], f)[0] for f in ("model.onnx", "model_int8.onnx"))
    assert full.keys() == less.keys()
    assert "last_hidden_state" not in full
    assert capfd.readouterr().err == ""


ROWS = {
    "classify": [{"text": f"{w} {i}", "label": w} for i in range(4) for w in ("quick fox", "lazy dog", "river bank")],
    "tag": [{"tokens": ["The", "quick", "fox"], "tags": ["O", "B-X", "I-X"]}] * 4,
    "answer": [
        {
            "question": "Who jumps?",
            "context": "The quick brown fox jumps over.",
            "answers": {"text": ["fox"], "answer_start": [16]},
        }
    ]
    * 4,
    "similarity": [{"text": f"quick fox {i}", "text2": "lazy dog", "label": i / 4} for i in range(4)],
}


@pytest.mark.parametrize("task", ROWS)
def test_what_was_fine_tuned_predicts_from_its_export(task, tmp_path):
    tiny_folders.folder(tmp_path / "m")
    unmask.finetune(tmp_path / "m", ROWS[task], task=task, out=tmp_path / "t", steps=2, precision="fp32", device="cpu")
    found = to_onnx(unmask.load(tmp_path / "t", precision="fp32", device="cpu"), tmp_path / "o")
    assert found["head"] == {"classify": "sequence", "tag": "token", "answer": "span", "similarity": "sentence"}[task]
    before, after = (unmask.predict(tmp_path / f, ROWS[task], precision="fp32", device="cpu") for f in ("t", "o"))
    assert flat(before).keys() == flat(after).keys()
    for place, value in flat(before).items():
        assert flat(after)[place] == (pytest.approx(value, abs=1e-4) if isinstance(value, float) else value), place


LABELS = {
    "one": lambda i: "abc"[i % 3],
    "several": lambda i: ["abc"[i % 3], "d"],
    "pair": lambda i: "ab"[i % 2],
    "number": lambda i: i / 7,
}


@pytest.mark.parametrize("kind", LABELS)
def test_classifiers_say_the_same_here_in_transformers_and_in_onnx(kind, tmp_path):
    """Probabilities too: the temperature is in the head, of folders of before once they are loaded."""
    transformers = pytest.importorskip("transformers")

    tiny_folders.folder(tmp_path / "m")
    second = {"text2": "lazy dog"} if kind == "pair" else {}
    rows = [{"text": f"quick {w} {i}"} | second | {"label": LABELS[kind](i)} for i, w in enumerate(["fox", "bank"] * 9)]
    how = {"precision": "fp32", "device": "cpu"}
    unmask.finetune(
        tmp_path / "m", rows, task="classify", validation=rows, out=tmp_path / "t", **how, start="plain", steps=9
    )
    about = json.loads((tmp_path / "t" / "unmask.json").read_text())
    assert "temperature" not in about["task"]
    model = unmask.load(tmp_path / "t", **how)
    to_onnx(model, tmp_path / "o")
    texts = [[r["text"] for r in rows], [r["text2"] for r in rows] if second else None]
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "t")(*texts, padding=True, return_tensors="np")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "t").eval()
    graph = session(tmp_path / "o" / "model.onnx")
    logits = [
        theirs(**{k: torch.from_numpy(v) for k, v in tokens.items()}).logits.detach().numpy(),
        graph.run(["logits"], {i.name: tokens[i.name] for i in graph.get_inputs()})[0],
    ]
    for found in logits:
        one = np.exp(found) / np.exp(found).sum(-1, keepdims=True)
        outside = {"several": 1 / (1 + np.exp(-found)), "number": found}.get(kind, one)
        for predicted, row in zip(unmask.predict(tmp_path / "t", rows, **how), outside, strict=True):
            here = predicted["value"] if kind == "number" else list(predicted["probabilities"].values())
            np.testing.assert_allclose(here, row if kind != "number" else row[0], atol=2e-4)
    if kind != "number":
        about["task"]["temperature"] = 2.0
        (tmp_path / "t" / "unmask.json").write_text(json.dumps(about))
        again = np.array([row["logits"] for row in unmask.load(tmp_path / "t", **how).label(texts[0])])
        np.testing.assert_allclose(again, np.array([r["logits"] for r in model.label(texts[0])]) / 2, atol=1e-4)


def flat(value, place=""):
    """Leaves of nested lists and dicts by where they stand."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for name, part in parts for k, v in flat(part, f"{place}/{name}").items()}
    return {place: value}
