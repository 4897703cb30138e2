"""Long work says how far it is, on a terminal alone, and work in parts gives what the whole gives."""

import json
import sys

import numpy as np
import pytest

import tiny_folders
from commands import run
from text_corpus import SENTENCES
from unmask.cli import common
from unmask.modalities.text.tasks import finetune as tuning
from unmask.modalities.text.tasks.finetune import finetune


def terminal(monkeypatch):
    """stderr is a terminal, and every look at the clock takes three seconds."""
    clock = iter(range(0, 100_000, 3))
    monkeypatch.setattr(common.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)


def said(err):
    return [line for line in err.splitlines() if " left" in line]


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


def test_predictions_are_made_and_written_in_parts(tmp_path, capsys, monkeypatch):
    """All of them were held, and written at the end."""
    model, texts = tiny_folders.folder(tmp_path / "m"), [f"{text} {i}" for i, text in enumerate(SENTENCES * 3)]
    labelled = [(text, "ab"[i % 2]) for i, text in enumerate(texts)]
    finetune(model, labelled, task="classify", out=tmp_path / "c", steps=2, precision="fp32")
    (tmp_path / "t.txt").write_text("\n".join([*texts, " ", *texts]))
    sizes, really = [], tuning.predict_items

    def watched(folder, items, **options):
        sizes.append(len(items))
        return really(folder, items, **options)

    monkeypatch.setattr(tuning, "predict_items", watched)
    found = []
    for part in (1024, 7):
        monkeypatch.setattr(common, "PART", part)
        words = ["predict", tmp_path / "c", tmp_path / "t.txt", "--out", tmp_path / "p.jsonl", "--precision", "fp32"]
        code, out, err = run(capsys, *words)
        assert (code, f"{2 * len(texts) + 1} predictions" in out) == (0, True)
        assert "1 of " in err, "rows without a text are counted once, over all"
        found.append([json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()])
    assert max(sizes[1:]) == 7
    for a, b in zip(*found, strict=True):
        assert (a["label"], a.get("input")) == (b["label"], b.get("input"))
        assert (a["probability"] or 0) == pytest.approx(b["probability"] or 0, abs=1e-6)


def test_a_text_that_is_too_long_is_counted_from_the_first(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(common, "PART", 2)
    (tmp_path / "t.txt").write_text("fox\nfox\nfox\n" + "fox " * 200)
    code, _, err = run(capsys, "score", tiny_folders.folder(tmp_path / "m"), tmp_path / "t.txt")
    assert code == 2
    assert "text 4 has" in err


def test_score_says_how_far_it_is_and_json_stays_json(tmp_path, capsys, monkeypatch):
    terminal(monkeypatch)
    monkeypatch.setattr(common, "PART", 2)
    model = tiny_folders.folder(tmp_path / "m")
    (tmp_path / "t.txt").write_text("the fox\n" * 12)
    code, out, err = run(capsys, "score", model, tmp_path / "t.txt", "--json")
    assert code == 0
    assert len(json.loads(out)["results"]) == 12
    shares = [int(line.removeprefix("score: ").split("%")[0]) for line in said(err)]
    assert shares == sorted(shares)
    assert len(shares) > 2
    assert 0 < shares[0] < shares[-1] < 100


def test_nothing_is_said_to_a_file_or_of_a_command_that_trains(monkeypatch):
    assert not isinstance(common.shown_for(["score", "m"]), common.reporting_to("").__class__)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert isinstance(common.shown_for(["score", "m"]), common.reporting_to("").__class__)
    assert not isinstance(common.shown_for(["--quiet", "pretrain", "text"]), common.reporting_to("").__class__)
