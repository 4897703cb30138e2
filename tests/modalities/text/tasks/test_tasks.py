"""Every task end to end on tiny models: fine-tune, predict, evaluate, and transformers loads what was written."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from text_corpus import tokenizer
from tiny_folders import folder, sentiment
from unmask.errors import UserError
from unmask.modalities.text.tasks import loop, training
from unmask.modalities.text.tasks.data import Item
from unmask.modalities.text.tasks.finetune import evaluate, finetune, predict, seeds
from unmask.modalities.text.tasks.model import load
from unmask.modalities.text.tasks.network import Prefix
from unmask.training.precision import Precision
from unmask.writing import note_weights

FAST = {"start": "plain", "epochs": 6, "batch": 8, "learning_rate": 3e-3, "precision": "fp32", "dropout": 0.0}


@pytest.fixture(params=["bert", "modern"])
def model(request, tmp_path):
    return folder(tmp_path / "model", recipe=request.param)


def test_classify_learns_and_transformers_agrees(model, tmp_path):
    data, out = sentiment(), tmp_path / "out"
    result = finetune(model, data, task="classify", validation=data[:16], out=out, **FAST)
    assert result["value"] == 1.0
    assert "hidden slot" not in (out / "report.html").read_text()
    for name in ("config.json", "model.safetensors", "metrics.jsonl", "report.html", "unmask.json"):
        assert (out / name).exists()
    texts = [t for t, _ in data[:6]]
    theirs = agrees_with_transformers(out, texts)
    assert theirs.config.id2label == {0: "bad", 1: "good"}
    rows = predict(out, texts)
    assert [r["label"] for r in rows] == [label for _, label in data[:6]]
    assert sum(rows[0]["probabilities"].values()) == pytest.approx(1.0)
    found = evaluate(out, data, draws=10)
    assert found["low"] <= found["value"] <= found["high"]


@pytest.mark.parametrize("name", ["bigbird-full", "eurobert"])
def test_heads_are_as_config_json_says(name, tmp_path):
    """BigBird names its activation gelu_new; EuroBERT averages outputs over the slots."""
    from published import published

    published(name, tmp_path / "model")
    data, out = sentiment(8), tmp_path / "out"
    finetune(tmp_path / "model", data, task="classify", out=out, steps=1, precision="fp32")
    agrees_with_transformers(out, [t for t, _ in data])


def test_what_was_never_trained_is_not_saved(tmp_path):
    from safetensors.torch import load_file, save_file

    model, out = folder(tmp_path / "model"), tmp_path / "out"
    weights = load_file(model / "model.safetensors")
    save_file({k: v for k, v in weights.items() if not k.startswith("cls.")}, model / "model.safetensors")
    note_weights(model)
    finetune(model, sentiment(), task="classify", out=out, **(FAST | {"epochs": 1}))
    assert not [k for k in load_file(out / "model.safetensors") if k.startswith("cls.")]
    assert len(predict(out, ["good"])) == 1


def test_pairs_agree_with_transformers(tmp_path):
    model, out = folder(tmp_path / "model"), tmp_path / "out"
    data = [("one two", f"the fox {i}", i % 2) for i in range(12)]
    finetune(model, data, task="classify", out=out, **(FAST | {"epochs": 1}))
    agrees_with_transformers(out, [a for a, *_ in data], [b for _, b, _ in data])


def agrees_with_transformers(out, texts, second=None):
    """A folder's logits are those of its transformers class on padded rows; returns that model."""
    transformers = pytest.importorskip("transformers")

    opened_folder = load(out, device="cpu", precision="fp32")
    task = opened_folder.task
    items = [Item(text=a, text2=b) for a, b in zip(texts, second or [None] * len(texts), strict=True)]
    prepared = task.prepare(items, labelled=False)
    ours = loop.outputs(opened_folder.model, task, prepared)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(out).eval()
    theirs_tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    tokens = theirs_tokenizer(texts, second, return_tensors="pt", padding=True, truncation=True)
    assert ("token_type_ids" in tokens) == opened_folder.types
    assert theirs_tokenizer.model_max_length == opened_folder.slots
    with torch.no_grad():
        assert np.abs(np.stack(ours) - theirs(**tokens).logits.numpy()).max() < 1e-4
    return theirs


def test_training_matches_a_plain_padded_loop(tmp_path):
    """Packing, the compact table and the needed-slots trick change nothing: same weights as torch's AdamW, padded."""
    transformers = pytest.importorskip("transformers")

    model, out = folder(tmp_path / "model"), tmp_path / "out"
    data = sentiment(24)
    plain = {
        "start": "plain",
        "epochs": 2,
        "batch": 8,
        "learning_rate": 1e-3,
        "precision": "fp32",
        "dropout": 0.0,
        "warmup": 0.0,
        "clip": None,
        "weight_decay": 0.1,
    }
    start = tmp_path / "start"
    finetune(model, data, task="classify", out=start, **(plain | {"epochs": None, "steps": 1, "learning_rate": 1e-12}))
    finetune(start, data, task="classify", out=out, **plain)
    hf = transformers.AutoModelForSequenceClassification.from_pretrained(start).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(start)
    decays = [p for p in hf.parameters() if p.ndim > 1]
    rest = [p for p in hf.parameters() if p.ndim <= 1]
    optimiser = torch.optim.AdamW(
        [{"params": decays, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-3
    )
    number, total = {"bad": 0, "good": 1}, 6
    for done, chosen in enumerate([c for e in range(2) for c in loop.shuffled(24, 8, 0, e)]):
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * (1 - done / total)
        rows = [data[i] for i in chosen]
        inputs = tokens([t for t, _ in rows], return_tensors="pt", padding=True)
        loss = hf(**inputs, labels=torch.tensor([number[label] for _, label in rows])).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    ours = transformers.AutoModelForSequenceClassification.from_pretrained(out).state_dict()
    for name, tensor in hf.state_dict().items():
        assert torch.allclose(tensor, ours[name], atol=2e-4), name


def test_regression_and_multilabel(tmp_path):
    model = folder(tmp_path / "model")
    numbers, said = [(text, 0.5 if label == "good" else 3.25) for text, label in sentiment(32)], []
    result = finetune(model, numbers, task="classify", validation=numbers, say=said.append, **(FAST | {"epochs": 12}))
    assert [line.split(",")[0] for line in said if line.startswith("problem")] == ["problem: regression"]
    assert result["metric"] == "pearson"
    assert result["value"] > 0.9
    several = [{"text": t, "label": [label, "all"]} for t, label in sentiment(32)]
    result = finetune(
        model, several, task="classify", validation=several, out=tmp_path / "multi", **(FAST | {"epochs": 14})
    )
    assert result["metrics"]["f1_micro"] > 0.9
    assert set(predict(tmp_path / "multi", [several[0]["text"]])[0]["labels"]) == {"good", "all"}


@pytest.mark.parametrize("scheme", ["bio", "bilou"])
def test_tag(tmp_path, scheme):
    model, out = folder(tmp_path / "model"), tmp_path / "out"
    path = tmp_path / "train.conll"
    path.write_text(
        "".join(f"Readers O\nof O\n{w} B-PLACE\nbank I-PLACE\n. O\n\n" for w in ("river", "table", "rows") * 8)
    )
    result = finetune(model, path, task="tag", validation=path, out=out, **(FAST | {"scheme": scheme, "epochs": 8}))
    assert result["value"] == 1.0
    text = "Readers of river bank ."
    entity = predict(out, [text])[0]["entities"][0]
    assert (text[entity["start"] : entity["end"]], entity["label"]) == ("river bank", "PLACE")
    if scheme == "bio":
        transformers = pytest.importorskip("transformers")

        assert transformers.AutoModelForTokenClassification.from_pretrained(out).config.id2label[1] == "B-PLACE"


def questions(rows: int = 24) -> list[dict]:
    out = []
    for i in range(rows):
        place = ("river", "table", "domain")[i % 3]
        context = f"The fox said it. It is near the {place} now. " + "Readers check stories. " * (i % 4)
        answers = [{"text": place, "answer_start": context.index(place)}] if i % 4 != 3 else []
        question = "Where is it near?" if answers else "Who smiled fine?"
        out.append({"id": str(i), "question": question, "context": context, "answers": answers})
    return out


def test_answer(tmp_path):
    transformers = pytest.importorskip("transformers")

    model, out = folder(tmp_path / "model"), tmp_path / "out"
    data = questions()
    result = finetune(
        model, data, task="answer", validation=data, out=out, **(FAST | {"epochs": 40, "slots": 40, "stride": 8})
    )
    assert result["metrics"]["exact"] > 60
    for row, q in zip(predict(out, data), data, strict=True):
        a = row["answer"]
        assert q["context"][a["start"] : a["end"]] == a["text"]
        assert 0 <= a["probability"] <= 1
    transformers.AutoModelForQuestionAnswering.from_pretrained(out)


def test_copies_of_what_is_right_are_no_negatives():
    """With perfect vectors the loss has no floor, however often a document or a question stands in the batch."""
    import torch

    from unmask.modalities.text.tasks.similarity import _alike, in_batch

    vectors = torch.eye(4)[[0, 1, 0, 2]]
    same = _alike(["a", "b", "a", "c"])
    assert float(in_batch(vectors, vectors, 0.05)) > 0.3
    assert float(in_batch(vectors, vectors, 0.05, same)) < 1e-6


def test_simcse_has_two_views(tmp_path):
    model, texts = folder(tmp_path / "model"), [t for t, _ in sentiment(24)]
    with pytest.raises(UserError, match="dropout=0"):
        finetune(model, texts, task="similarity", out=tmp_path / "none", loss="simcse", **(FAST | {"dropout": 0.0}))
    seen = []
    import unmask.modalities.text.tasks.similarity as module

    really = module.in_batch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            module,
            "in_batch",
            lambda a, b, *more: seen.append(float((a - b).detach().abs().max())) or really(a, b, *more),
        )
        finetune(
            model,
            texts,
            task="similarity",
            out=tmp_path / "out",
            loss="simcse",
            **(FAST | {"epochs": 1, "dropout": None}),
        )
    assert min(seen) > 1e-3


@pytest.mark.parametrize("loss", ["cosent", "multiple_negatives", "simcse"])
def test_similarity(tmp_path, loss):
    from unmask.modalities.text.tasks.retrieval import Index
    from unmask.modalities.text.uses.model import load

    model, out = folder(tmp_path / "model"), tmp_path / "out"
    texts = [t for t, _ in sentiment(24)]
    pairs = [
        {"text": a, "text2": b, "score": float(a[:4] == b[:4])}
        for a, b in zip(texts, texts[1:] + texts[:1], strict=True)
    ]
    pairs += [
        {"text": a, "text2": b, "score": float(a[:4] == b[:4])}
        for a, b in zip(texts, texts[2:] + texts[:2], strict=True)
    ]
    train = {"cosent": pairs, "multiple_negatives": [p for p in pairs if p["score"]], "simcse": texts}[loss]
    result = finetune(
        model, train, task="similarity", validation=pairs, out=out, loss=loss, **(FAST | {"epochs": 2, "dropout": 0.1})
    )
    assert np.isfinite(result["value"])
    if loss == "cosent":
        assert result["value"] > 0.8
    assert -1.001 <= predict(out, pairs[:3])[0]["score"] <= 1.001
    index = Index(load(out, precision="fp32"), texts)
    assert index.search([texts[3]], top=2)[0][0]["text"] == texts[3]


def test_seeds_freeze_checkpointing_and_early_stop(tmp_path):
    model, data = folder(tmp_path / "model"), sentiment(24)
    best = tmp_path / "best"
    found = seeds(model, data, task="classify", validation=data, count=2, out=best, **(FAST | {"epochs": 2}))
    assert len(found["over_seeds"]["values"]) == 2
    assert found["over_seeds"]["low"] <= found["over_seeds"]["mean"] <= found["over_seeds"]["high"]
    finetune(model, data, task="classify", validation=data, freeze=1, out=tmp_path / "frozen", **FAST)
    before = opened_state(model, "bert.encoder.layer.0.intermediate.dense.weight")
    assert torch.equal(before, opened_state(tmp_path / "frozen", "bert.encoder.layer.0.intermediate.dense.weight"))
    last = "bert.encoder.layer.1.intermediate.dense.weight"
    assert not torch.equal(opened_state(model, last), opened_state(tmp_path / "frozen", last))
    one = finetune(model, data, task="classify", validation=data, **FAST)
    other = finetune(model, data, task="classify", validation=data, checkpointing=True, **FAST)
    assert other["metrics"] == pytest.approx(one["metrics"], abs=1e-4)
    stopped = finetune(model, data, task="classify", validation=data, patience=1, **(FAST | {"epochs": 30}))
    assert stopped["stopped"] == "early"


def test_kept_states_stand_for_the_frozen_layers(tmp_path):
    """Training on kept states gives the weights that training the upper layers alone gives."""
    from unmask.modalities.text.network.folder import load_folder
    from unmask.modalities.text.tasks.model import build

    built, _ = build(load_folder(folder(tmp_path / "model", layers=3)), "sequence", 2)
    _, task = opened_for(built, tmp_path)
    prepared = task.prepare([Item(text=t) for t, _ in sentiment(9)], labelled=False)
    whole = np.stack(loop.outputs(built, task, prepared))
    prefix = Prefix(built, 2)
    prepared.examples = prefix.compute(prepared.examples, 64)
    with prefix.cut():
        assert np.abs(np.stack(loop.outputs(built, task, prepared)) - whole).max() < 1e-5


def opened_for(built, tmp_path):
    from unmask.modalities.text.tasks.classify import Classify
    from unmask.modalities.text.tasks.encoding import ExampleMaker

    encoder = ExampleMaker(tokenizer("wordpiece"), slots=64, types=True)
    return built, Classify(encoder, {"problem": "single", "labels": ["a", "b"]})


def opened_state(path, name):
    from safetensors.torch import load_file

    return load_file(path / "model.safetensors")[name]


def test_layer_decay_groups(tmp_path):
    from unmask.modalities.text.network.folder import load_folder
    from unmask.modalities.text.tasks.model import build
    from unmask.modalities.text.tasks.settings import TaskSettings

    built, _ = build(load_folder(folder(tmp_path / "model")), "sequence", 2)
    groups = loop.groups(built, TaskSettings(learning_rate=1.0, layer_decay=0.5))
    assert sorted({g["lr"] for g in groups}) == [0.125, 0.25, 0.5, 1.0]
    held = [id(p) for g in groups for p in g["params"]]
    assert len(held) == len(set(held)) == len({id(p) for p in built.parameters()})


def test_zero_shot_and_features(tmp_path):
    from unmask.modalities.text.tasks.retrieval import write_features
    from unmask.modalities.text.tasks.zeroshot import zero_shot
    from unmask.modalities.text.uses.model import load

    model = folder(tmp_path / "model")
    texts = ["The quick brown fox.", "a " * 200]
    rows = zero_shot(model, texts, ["good", "readers"], verbalisers={"good": ["rows", "lazy dog"]}, precision="fp32")
    assert [r["text"] for r in rows] == texts
    assert rows.about["method"] == "masked prompt"
    # Calibrated on the very text it is asked about, a prompt says nothing.
    same = zero_shot(model, texts[:1], ["rows", "readers"], priors=texts[:1], precision="fp32")
    assert same[0]["probability"] == pytest.approx(0.5, abs=1e-5)
    # Over the batch every label is as likely as another: what is left is what sets the texts apart.
    spread = zero_shot(model, texts, ["rows", "readers"], calibrate="batch", precision="fp32")
    plain = zero_shot(model, texts, ["rows", "readers"], calibrate="none", precision="fp32")
    share = np.array([list(row["probabilities"].values()) for row in plain])
    level = share / share.mean(0)
    got = np.array([list(row["probabilities"].values()) for row in spread])
    assert spread.about["calibrated"] == "batch"
    assert np.allclose(got, level / level.sum(1, keepdims=True), atol=1e-6)
    prompts = ["{text} It was [MASK].", "A [MASK] text. {text}"]
    both = zero_shot(model, texts, ["rows", "readers"], template=prompts, precision="fp32")
    ones = [zero_shot(model, texts, ["rows", "readers"], template=p, precision="fp32") for p in prompts]
    odds = [
        [np.log(r["probabilities"]["rows"] / r["probabilities"]["readers"]) for r in rows] for rows in [both, *ones]
    ]
    assert np.allclose(odds[0], np.mean(odds[1:], 0), atol=1e-5)
    with pytest.raises(UserError, match=r"calibrate='yes'\n.*context, batch, none"):
        zero_shot(model, texts, ["rows", "readers"], calibrate="yes")
    nli = tmp_path / "nli"
    data = [("the fox", f"it is {i}", ("entailment", "contradiction")[i % 2]) for i in range(12)]
    finetune(model, data, task="classify", out=nli, **(FAST | {"epochs": 1}))
    assert zero_shot(nli, ["the fox"], ["x", "y"]).about["method"] == "entailment"
    with pytest.raises(UserError, match="label ' ': empty"):
        zero_shot(nli, ["the fox"], ["x", " "], template="{label}")
    with pytest.raises(UserError, match="no blank"):
        zero_shot(nli, ["the fox"], ["x", "y"], calibrate="context")
    loaded = load(model, precision="fp32")
    write_features(loaded, texts, tmp_path / "f.parquet", per_token=True)
    import polars

    frame = polars.read_parquet(tmp_path / "f.parquet")
    assert [texts[0][a:b] for a, b in zip(frame["start"][0], frame["end"][0], strict=True)][1] == "quick"


def test_the_least_error_is_the_best(tmp_path, monkeypatch):
    import unmask.modalities.text.tasks.finetune as room

    numbers = [(text, 0.5 if label == "good" else 3.25) for text, label in sentiment(16)]
    result = finetune(
        folder(tmp_path / "model"),
        numbers,
        task="classify",
        validation=numbers,
        metric="rmse",
        **(FAST | {"epochs": 3}),
    )
    errors = [row["rmse"] for row in result["history"]]
    assert result["value"] == pytest.approx(min(errors)) != pytest.approx(max(errors))
    values = {0: 0.5, 1: 0.9, 2: 0.2}

    def tuned(*_, seed, out, **__):
        out.mkdir()
        return {"metric": "rmse", "value": values[seed]}

    monkeypatch.setattr(room, "finetune", tuned)
    best = tmp_path / "best"
    assert room.over_seeds("model", numbers, task="classify", validation=numbers, count=3, out=best)[1] == 2


def test_a_published_classifier_with_default_labels_predicts(tmp_path):
    transformers = pytest.importorskip("transformers")

    from published import CASES, SMALL

    config = transformers.BertConfig(**SMALL, **CASES["bert"][1])
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer("wordpiece").save(tmp_path)
    assert "id2label" not in json.loads((tmp_path / "config.json").read_text())
    assert set(predict(tmp_path, ["the fox"])[0]["probabilities"]) == {"LABEL_0", "LABEL_1"}


def test_attributions_add_up(tmp_path):
    from unmask.modalities.text.tasks.analysis import attributions

    data = sentiment(16)
    finetune(folder(tmp_path / "model"), data, task="classify", out=tmp_path / "out", **FAST)
    opened_folder = load(tmp_path / "out", device="cpu", precision="fp32")
    found = attributions(opened_folder, opened_folder.task, [Item(text=data[0][0])], steps=64)[0]
    assert found["gap"] < 0.05
    assert len(found["tokens"]) == len(found["shares"])


def test_glue_layouts(tmp_path, monkeypatch):
    import unmask.modalities.text.tasks.finetune as room
    from unmask.modalities.text.tasks.glue import evaluate_glue

    really = room.finetune

    def watched(*given, **options):
        assert options.get("validation") is None  # nothing is chosen on the data that is scored
        return really(*given, **options)

    monkeypatch.setattr(room, "finetune", watched)
    model, root = folder(tmp_path / "model"), tmp_path / "glue"
    rows = {
        "CoLA": ("src\t{y}\t\tthe fox {i}\n", "", "index\tsentence\n", "0\tthe fox\n"),
        "SST-2": ("the fox {i}\t{y}\n", "sentence\tlabel\n", "index\tsentence\n", "0\tthe fox\n"),
        "MRPC": (
            "{y}\t1\t2\ta {i}\tb\n",
            "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n",
            "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n",
            "0\t1\t2\ta\tb\n",
        ),
        "STS-B": (
            "{i}\ta {i}\tb\t{y}.5\n",
            "index\tsentence1\tsentence2\tscore\n",
            "index\tsentence1\tsentence2\n",
            "0\ta\tb\n",
        ),
        "QQP": (
            "{i}\t1\t2\ta {i}\tb\t{y}\n",
            "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n",
            "id\tquestion1\tquestion2\n",
            "0\ta\tb\n",
        ),
        "QNLI": (
            "{i}\ta {i}\tb\t{n}entailment\n",
            "index\tquestion\tsentence\tlabel\n",
            "index\tquestion\tsentence\n",
            "0\ta\tb\n",
        ),
        "RTE": (
            "{i}\ta {i}\tb\t{n}entailment\n",
            "index\tsentence1\tsentence2\tlabel\n",
            "index\tsentence1\tsentence2\n",
            "0\ta\tb\n",
        ),
        "WNLI": (
            "{i}\ta {i}\tb\t{y}\n",
            "index\tsentence1\tsentence2\tlabel\n",
            "index\tsentence1\tsentence2\n",
            "0\ta\tb\n",
        ),
        "MNLI": (
            "{i}\ta {i}\tb\t{n}entailment\n",
            "index\tsentence1\tsentence2\tgold_label\n",
            "index\tsentence1\tsentence2\n",
            "0\ta\tb\n",
        ),
    }
    for name, (line, header, test_header, test) in rows.items():
        home = root / name
        home.mkdir(parents=True)
        body = "".join(line.format(i=i, y=i % 2, n="not_" if i % 2 else "") for i in range(8))
        dev = "dev_matched" if name == "MNLI" else "dev"
        tests = [f"test_{m}" for m in ("matched", "mismatched")] if name == "MNLI" else ["test"]
        (home / "train.tsv").write_text(header + body)
        (home / f"{dev}.tsv").write_text(header + body)
        for t in tests:
            (home / f"{t}.tsv").write_text(test_header + test)
    found = evaluate_glue(model, root, out=tmp_path / "sent", steps=1, precision="fp32")
    assert set(found["tasks"]) == set(rows)
    assert found["tasks"]["MRPC"]["metric"] == "accuracy+f1"
    for name in (*(set(rows) - {"MNLI"}), "MNLI-m", "MNLI-mm"):
        lines = (tmp_path / "sent" / f"{name}.tsv").read_text().splitlines()
        assert lines[0] == "index\tprediction"
        assert lines[1].startswith("0\t")


def test_several_seeds_write_the_best_run_itself(tmp_path, monkeypatch):
    import unmask.modalities.text.tasks.finetune as room

    model, data, out = folder(tmp_path / "model"), sentiment(24), tmp_path / "out"
    trained, really = [], room.finetune

    def watched(*given, **options):
        found = really(*given, **options)
        found["value"] = {4: 0.2, 5: 0.9, 6: 0.5}[options["seed"]]  # the second is the best
        trained.append(opened_state(options["out"], "classifier.weight"))
        return found

    monkeypatch.setattr(room, "finetune", watched)
    found = seeds(model, data, task="classify", validation=data, count=3, seed=4, out=out, **(FAST | {"epochs": 1}))
    assert len(trained) == 3
    assert found["seed"] == 5
    assert found["out"] == str(out)
    assert torch.equal(opened_state(out, "classifier.weight"), trained[1])
    assert not torch.equal(trained[1], trained[2])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "out"]
    with pytest.raises(UserError, match="already holds a model"):
        seeds(model, data, task="classify", validation=data, count=2, out=out, **FAST)
    assert len(trained) == 3


def test_adapt_then_finetune(tmp_path):
    from unmask.modalities.text.tasks.finetune import compare_domain_adaptation

    model, data = folder(tmp_path / "model"), sentiment(16)
    texts = tmp_path / "domain.txt"
    texts.write_text("\n\n".join(f"{t} in the river bank number {i}." for i, (t, _) in enumerate(data * 3)))
    found = compare_domain_adaptation(
        model,
        data,
        str(texts),
        task="classify",
        validation=data,
        count=2,
        out=tmp_path / "out",
        adaptation={"epochs": None, "steps": 2, "slots": 64, "batch_slots": 256, "holdout": 0.2},
        **(FAST | {"epochs": 1}),
    )
    table = found["adaptation"]
    assert {"loss", "accuracy"} <= set(table["before"])
    assert len(table["plain"]) == len(table["adapted"]) == 2
    assert (tmp_path / "out" / "model.safetensors").exists()
    json.dumps(table)


def test_numbers_far_from_zero_keep_their_digits_in_bf16(tmp_path):
    """bf16 has steps of 8 about 2 000: years of 40 texts were 2000, 2008 or 2016."""
    words = ["fox", "dog", "quick", "lazy", "bank", "table"]
    rows = [(f"the {words[i % 6]} {words[i // 6 % 6]}", 2000.5 + i % 6) for i in range(48)]
    finetune(
        folder(tmp_path / "model"), rows, task="classify", out=tmp_path / "m", problem="regression", epochs=1, batch=16
    )
    found = predict(tmp_path / "m", [text for text, _ in rows], precision="bf16")
    assert len({row["value"] for row in found}) > 30  # of 36 texts; two without
    assert all(1995 < row["value"] < 2012 for row in found)


@pytest.mark.parametrize("task", ["regression", "classes"])
def test_what_is_judged_computes_as_the_folder_will(tmp_path, monkeypatch, task):
    """Steps in bf16, chosen for the processor, judged the held-out rows in bf16 too: of numbers a correlation of .963
    was printed of a folder that has .988."""
    half = Precision("bf16", torch.bfloat16, "this processor multiplies it")
    monkeypatch.setattr(training, "resolve_precision", lambda *_: half)
    words = ["fox", "dog", "quick", "lazy", "bank", "table"]
    rows = [(f"the {words[i % 6]} {words[i // 6 % 6]}", i % 6 + i // 6 % 6 / 7 + 0.3) for i in range(48)]
    if task == "classes":
        rows = [(text, f"class {int(value) // 2}") for text, value in rows]
    given = {"epochs": 1, "problem": "regression" if task == "regression" else "auto", "batch": 16}
    result = finetune(
        folder(tmp_path / "model"), rows, task="classify", validation=rows[::2], out=tmp_path / "m", **given
    )
    assert result["precision"] == "bf16"
    found = evaluate(tmp_path / "m", rows[::2], draws=2)
    assert found["precision"] == "fp32"
    for name, value in result["metrics"].items():
        if name != "calibration_error":  # by folds there
            assert found["metrics"][name] == pytest.approx(value, rel=1e-6), name
