"""Long work on texts says how far it is, and works in parts as in one go."""

import functools
import itertools
import json

import numpy as np

import tiny_folders
from commands import run
from text_corpus import SENTENCES
from unmask.cli import common


def test_parts_give_what_the_whole_gives(tmp_path, capsys, monkeypatch):
    model = tiny_folders.folder(tmp_path / "m")
    (tmp_path / "t.txt").write_text("\n".join(SENTENCES))
    found = []
    for part in (1024, 3):
        monkeypatch.setattr(common, "PART", part)
        code, out, _ = run(capsys, "score", model, tmp_path / "t.txt", "--json", "--precision", "fp32")
        assert code == 0
        assert (
            run(capsys, "embed", model, tmp_path / "t.txt", "--out", tmp_path / f"{part}.npy", "--precision", "fp32")[0]
            == 0
        )
        found.append(json.loads(out)["results"])
    assert [r["text"] for r in found[0]] == [r["text"] for r in found[1]] == SENTENCES
    np.testing.assert_allclose(*[[r["score"] for r in rows] for rows in found], rtol=1e-5)
    np.testing.assert_allclose(np.load(tmp_path / "1024.npy"), np.load(tmp_path / "3.npy"), atol=1e-5)


def test_a_text_that_is_too_long_is_counted_from_the_first(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(common, "PART", 2)
    (tmp_path / "t.txt").write_text("fox\nfox\nfox\n" + "fox " * 200)
    code, _, err = run(capsys, "score", tiny_folders.folder(tmp_path / "m"), tmp_path / "t.txt")
    assert code == 2
    assert "text 4 has" in err


def test_predict_says_how_far_it_is(tmp_path, capsys, monkeypatch):
    from unmask.modalities.text.tasks import loop
    from unmask.modalities.text.tasks.finetune import finetune

    model = tiny_folders.folder(tmp_path / "m")
    rows = tiny_folders.sentiment(8)
    finetune("classify", model, rows, out=tmp_path / "out", steps=1, start="plain", precision="fp32")
    (tmp_path / "t.txt").write_text("the fox jumps\n" * 12)
    clock = itertools.count(0, 12)
    monkeypatch.setattr(common.time, "monotonic", lambda: next(clock))
    small = functools.partial(loop.packed_batches, batch_slots=64)  # one row holds eight of the twelve texts
    monkeypatch.setattr(loop, "packed_batches", small)
    for batch_slots, said in ((8192, []), (64, ["predicted"])):
        small.keywords["batch_slots"] = batch_slots
        code, _, err = run(capsys, "predict", tmp_path / "out", tmp_path / "t.txt", "--out", tmp_path / "p.jsonl")
        assert code == 0
        assert [line.split()[0] for line in err.splitlines()] == said
    assert "of 12 texts, " in err


def test_it_says_how_far_it_is(capsys, monkeypatch):
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(common, "PART", 2)
    monkeypatch.setattr(common.time, "monotonic", lambda: next(clock))
    assert common.in_parts(["a"] * 10, len, "scored") == [2] * 5
    assert "scored 4 of 10 texts, 12 s left" in capsys.readouterr().err
