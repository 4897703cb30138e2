"""The command line as scripts rely on it: JSON on stdout, exit code 2 and one clear message for a person's mistake."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from commands import run
from text_corpus import SENTENCES, tokenizer, write_corpus
from unmask.modalities.text.network.folder import new_text_model, save_folder


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    made, family = new_text_model(
        "bert",
        vocabulary=tokenizer("wordpiece").vocab_size,
        width=32,
        layers=2,
        heads=2,
        slots=40,
        tokenizer=tokenizer("wordpiece"),
    )
    save_folder(tmp_path / "model", model=made, tokenizer=tokenizer("wordpiece"), family=family)
    return tmp_path / "model"


def test_fill(capsys, model):
    code, out, _ = run(capsys, "fill", model, "the quick [MASK] fox [MASK] over", "--top", 3, "--json")
    assert code == 0
    found = json.loads(out)
    assert {"seed", "seconds", "device", "precision"} <= set(found)
    (result,) = found["results"]
    assert result["text"] == "the quick [MASK] fox [MASK] over"
    assert [len(s["candidates"]) for s in result["slots"]] == [3, 3]
    assert all(0 < c["probability"] < 1 for s in result["slots"] for c in s["candidates"])


def test_fill_with_no_candidates_asked_for(capsys, model):
    code, _, error = run(capsys, "fill", model, "the quick [MASK] fox", "--top", -1)
    assert code == 2
    assert "--top -1" in error


def test_fill_compares_answers_of_several_tokens(capsys, model):
    flags = ["--candidate", "brown", "--candidate", "unbelievable lazy"]
    code, out, _ = run(capsys, "fill", model, "the quick [MASK] fox", *flags, "--json")
    assert code == 0
    values = [c["value"] for c in json.loads(out)["results"][0]["slots"][0]["candidates"]]
    assert sorted(values) == ["brown", "unbelievable lazy"]


def test_fill_finds_answers_of_several_tokens_and_writes_them(capsys, model, tmp_path):
    text = "the quick [MASK] fox"
    code, out, _ = run(capsys, "fill", model, text, "--longest", 2, "--top", 2, "--out", tmp_path / "f.jsonl", "--json")
    assert code == 0
    (result,) = json.loads(out)["results"]
    candidates = result["slots"][0]["candidates"]
    assert [c["tokens"] for c in candidates].count(2) == [c["tokens"] for c in candidates].count(1) == 2
    assert result["filled"] == candidates[0]["filled"]
    assert all(c["filled"].endswith(" fox") and "[MASK]" not in c["filled"] for c in candidates)
    assert [json.loads(line) for line in (tmp_path / "f.jsonl").read_text("utf-8").splitlines()] == [result]
    assert "exactly one" in bad(capsys, "fill", model, "[MASK] or [MASK]", "--longest", 2)
    assert "does not exist" in bad(capsys, "fill", model, text, "--out", tmp_path / "no" / "f.jsonl")


def test_score_embed_evaluate_inspect(capsys, model, tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(SENTENCES[:4]), encoding="utf-8")
    code, out, _ = run(capsys, "score", model, lines, "--json")
    assert code == 0
    results = json.loads(out)["results"]
    assert [r["text"] for r in results] == SENTENCES[:4]
    assert all(r["score"] < 0 and r["slots"] > 0 for r in results)
    code, _, _ = run(capsys, "embed", model, lines, "--out", tmp_path / "v.npy")
    assert code == 0
    assert np.load(tmp_path / "v.npy").shape == (4, 32)
    code, out, _ = run(capsys, "evaluate", model, write_corpus(tmp_path / "held.txt", 30), "--json")
    assert code == 0
    assert {"loss", "perplexity", "accuracy_at_1", "accuracy_at_5", "hidden_slots"} <= set(json.loads(out))
    assert "ratio=0" in bad(capsys, "evaluate", model, tmp_path / "held.txt", "--ratio", 0)
    code, out, _ = run(capsys, "inspect", model, "--json")
    assert code == 0
    assert json.loads(out)["vocabulary"] == tokenizer("wordpiece").vocab_size


def bad(capsys, *arguments) -> str:
    code, out, err = run(capsys, *arguments)
    assert code == 2, (out, err)
    assert "Traceback" not in err
    assert any(line.startswith("unmask: ") for line in err.splitlines())
    return err


def test_mistakes_in_texts_and_models(capsys, model, tmp_path):
    assert "has no [MASK]" in bad(capsys, "fill", model, "no blank here")
    long = "[MASK] " + "fox " * 100
    assert "the model takes 40" in bad(capsys, "fill", model, long)
    assert "seed=-1" in bad(capsys, "evaluate", model, tmp_path / "held.txt", "--seed", "-1")
    assert "no such model folder" in bad(capsys, "fill", tmp_path / "nowhere", "a [MASK]")
    assert "does not exist" in bad(capsys, "embed", model, "text", "--out", tmp_path / "no" / "v.npy")
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    assert "model.safetensors" in bad(capsys, "inspect", model)
    weights.unlink()
    marker = tmp_path / "was-run"

    class Payload:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    (model / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Payload()}))
    assert "refused" in bad(capsys, "inspect", model)
    assert not marker.exists()


def test_mistakes_in_corpora_and_settings(capsys, tmp_path):
    out = tmp_path / "run"

    def pretrain(data, *flags):
        return bad(capsys, "pretrain", "text", data, "--out", out, *flags)

    (tmp_path / "binary.txt").write_bytes(b"\x7fELF\0\0\0")
    (tmp_path / "empty.txt").write_text("\n\n")
    corpus = write_corpus(tmp_path / "corpus.txt")
    assert "no such file" in pretrain(tmp_path / "missing.txt")
    assert "binary" in pretrain(tmp_path / "binary.txt")
    assert "no text found" in pretrain(tmp_path / "empty.txt")
    assert "Did you mean 'learning_rate'" in pretrain(corpus, "--set", "leraning_rate=1")
    assert "contradict" in pretrain(corpus, "--steps", 3, "--minutes", 1)
    assert "seed=-1" in pretrain(corpus, "--seed", "-1")
    assert "seed=99999999999999999999" in pretrain(corpus, "--set", "seed=99999999999999999999")
    assert "does not divide" in pretrain(corpus, "--set", "vocabulary=300", "--set", "heads=7", "--steps", 1)
    (tmp_path / "vocab.json").write_text(
        json.dumps({t: i for i, t in enumerate(["<s>", "<pad>", "</s>", "<unk>", *"abc"])})
    )
    assert "no mask token" in pretrain(corpus, "--set", f"tokenizer={tmp_path / 'vocab.json'}", "--steps", 1)


def test_a_full_disk_while_checkpointing_keeps_what_was_there(capsys, tmp_path, monkeypatch):
    import errno

    from unmask.training import checkpoint

    corpus, out = write_corpus(tmp_path / "corpus.txt"), tmp_path / "run"
    small = [
        "width=32",
        "layers=1",
        "heads=2",
        "slots=32",
        "vocabulary=300",
        "batch_slots=256",
        "holdout=0.1",
        "precision=fp32",
    ]
    flags = [part for pair in [*small, "checkpoint_every=2"] for part in ("--set", pair)]
    real, calls = checkpoint._write_tensors, []

    def full(path, tensors):
        calls.append(path)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, tensors)

    monkeypatch.setattr(checkpoint, "_write_tensors", full)
    message = bad(capsys, "pretrain", "text", corpus, "--out", out, "--steps", 6, *flags)
    assert "No space left" in message or "disk full" in message
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["step-00000002"]
    monkeypatch.setattr(checkpoint, "_write_tensors", real)
    code, _, _ = run(capsys, "pretrain", "text", corpus, "--out", out, "--steps", 6, *flags, "--resume")
    assert code == 0


def test_start_up_imports_nothing_heavy():
    check = (
        "import sys, unmask, unmask.cli.app; unmask.cli.app.build(); print([m for m in ('torch', 'numpy', 'polars') "
        "if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
