"""The verbs of pictures in Python: settings as keywords, labels beside pictures, no folder needed, results that print
themselves."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from PIL import Image

import unmask
from tiny_images import TINY, bars
from unmask.errors import UserError
from unmask.modalities.images.classify import classifier
from unmask.modalities.images.reading.lazy import PictureStore
from unmask.modalities.images.uses import finetune as finetuning
from unmask.modalities.images.uses import model as using

X, Y = bars(60)
NAMES = np.array(["across", "down", "square"])[Y]
SHORT = {"steps": 2, "precision": "fp32", "device": "cpu", "console": False}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verbs") / "m"
    unmask.images.pretrain((X, NAMES), folder, console=False, **TINY)
    return folder


@pytest.fixture(scope="module")
def tuned(base):
    return unmask.images.finetune(base, X, NAMES, **SHORT)


def test_pretraining_takes_settings_as_keywords_and_needs_no_folder():
    run = unmask.images.pretrain(X, console=False, **TINY | {"width": 16, "steps": 2})
    assert (run.settings.width, run.result.steps) == (16, 2)
    assert run.model.embed(X[:3]).shape == (3, 16)
    with pytest.raises(UserError, match="Did you mean 'steps'"):
        unmask.images.pretrain(X, step=3)


@pytest.mark.parametrize("most", [256e6, 0], ids=["in memory", "streamed"])
def test_a_picture_that_cannot_be_read_shifts_no_row(base, tuned, tmp_path, monkeypatch, most):
    """It was dropped without a word, so that rows were taken for those of other pictures."""
    for room in (using, classifier):
        monkeypatch.setattr(room, "PASSING", PictureStore(folder=None, most=most))
    paths = [str(tmp_path / f"{n}.png") for n in range(6)]
    for path, pixels in zip(paths, X, strict=False):
        Image.fromarray(pixels).save(path)
    for broken in (1, 3):
        content = (tmp_path / f"{broken}.png").read_bytes()
        (tmp_path / f"{broken}.png").write_bytes(content[: len(content) - 40])
    model, head = unmask.load(base), tuned.model
    for use in (model.embed, head.embed, head.predict_proba, head.predict, model.fill, model.score):
        with pytest.raises(UserError, match=r"2 pictures cannot be read: .*1\.png: .*3\.png: "):
            use(paths)
        with pytest.warns(UserWarning, match=r"2 pictures cannot be read and are left out: .*1\.png: .*3\.png: "):
            assert len(use(str(tmp_path))) == 4
    with pytest.raises(UserError, match="2 pictures cannot be read"):
        head.evaluate(paths, NAMES[:6])
    for path, name in zip(paths, NAMES, strict=False):
        (tmp_path / "classes" / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / "classes" / name)
    for one in (model, head):
        with pytest.warns(UserWarning, match="2 pictures cannot be read and are left out"):
            assert one.evaluate(str(tmp_path / "classes"))["skipped"] == 2


def test_a_model_is_fine_tuned_and_judged_on_pictures_and_labels(tuned, tmp_path):
    assert tuned.folder.is_dir()
    found = tuned.model
    assert found.predict_proba(X[:4]).shape == (4, 3)
    assert found.classes_.tolist() == ["across", "down", "square"]
    rows = unmask.images.predict(tuned.folder, X[:12], tmp_path / "p.jsonl")
    assert rows == found.predict(X[:12])
    assert len((tmp_path / "p.jsonl").read_text().splitlines()) == 12
    judged = unmask.images.evaluate(found, X, NAMES)
    assert judged == found.evaluate((X, NAMES))
    assert found.score(X, NAMES) == judged["accuracy"]
    place = unmask.images.finetune(found, X, NAMES, out=tmp_path / "c", **SHORT).folder
    assert (place, unmask.images.finetune(found, X, NAMES, tmp_path / "d", **SHORT).folder.name) == (
        tmp_path / "c",
        "d",
    )
    for task in ("regression", "detect"):
        with pytest.raises(UserError, match=r"problem='multi'"):
            unmask.images.finetune(found, X, NAMES, task=task)


def test_copies_count_as_one_in_intervals(tuned):
    once = tuned.model.evaluate(X, NAMES)
    often = tuned.model.evaluate(np.tile(X, (10, 1, 1)), np.tile(NAMES, 10))
    (low, high), (low_often, high_often) = (found["intervals"]["accuracy"] for found in (once, often))
    assert high_often - low_often == pytest.approx(high - low, rel=0.25)


def test_pictures_and_labels_without_a_model_are_pretrained_on_first(tmp_path, capsys, monkeypatch):
    """A minute by the clock is a step here."""
    asked = []
    plain = finetuning.pretrain

    def short(data, **options):
        asked.append(options.pop("minutes"))
        return plain(data, **options | TINY | {"steps": 1})

    monkeypatch.setattr(finetuning, "pretrain", short)
    run = unmask.images.finetune(X, NAMES, **SHORT | {"console": True})
    assert "no model was given: one is pretrained on these pictures for 1 minute" in capsys.readouterr().err
    assert asked == [1.0]
    assert {row["label"] for row in run.model.predict(X)} <= set(NAMES)


def test_results_print_what_they_are_and_what_to_do_next(base, tuned, tmp_path):
    run = unmask.images.pretrain(X, tmp_path / "m", console=False, **TINY)
    assert str(run).startswith("A masked image model of 45 pictures of 12 x 12 pixels: 6 steps")
    assert "the mean of the visible pixels" in str(run)
    assert "next: run.model.finetune(pictures, labels)" in str(run)
    for result in (run, tuned, unmask.images.evaluate(base, X, NAMES), unmask.images.evaluate(tuned.folder, X, NAMES)):
        lines = str(result).splitlines()
        assert lines[2].split("  ")[0] in ("figure", "held out")
        assert result._repr_html_().count("<table") == 1
        assert len(result.to_frame()) == sum(
            line.startswith(("loss", "accuracy", "macro", "neigh", "linear")) for line in lines
        )
    assert "run.model.save(folder) keeps" in str(tuned)
    assert "keeps" not in str(run)
    rows = tuned.model.predict(X)
    assert str(rows).startswith("Predictions of 60 pictures")
    assert "and 50 more" in str(rows)
    assert rows.to_frame()["label"].tolist() == [row["label"] for row in rows]
    filled = unmask.load(base).reconstruct(X[:4], ratio=0.5)
    assert str(filled).startswith("4 pictures with 50% of the pixels hidden and predicted")
    filled.plot(tmp_path / "f.png")
    assert np.asarray(Image.open(tmp_path / "f.png")).shape[2] == 3
    assert "<img" in filled._repr_html_()
