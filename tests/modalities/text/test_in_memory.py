"""Texts in memory are pretrained on as a file of them is."""

import json

import pandas as pd
import polars as pl
import pytest
from safetensors.torch import load_file

import unmask
from text_corpus import SENTENCES
from unmask.errors import UserError
from unmask.modalities.text.reading.sources import in_memory
from unmask.modalities.text.recipes import TextSettings, with_overrides

TINY = {"width": 32, "layers": 1, "heads": 2, "vocabulary": 300, "slots": 32, "batch_slots": 64, "device": "cpu"}
TEXTS = [f"{SENTENCES[i % len(SENTENCES)]} Number {i}." for i in range(60)]
SHAPES = {
    "list": lambda: TEXTS,
    "series": lambda: pd.Series(TEXTS, index=range(3, 63)),
    "array": lambda: pd.Series(TEXTS).to_numpy(),
    "generator": lambda: (text for text in TEXTS),
    "pandas": lambda: pd.DataFrame({"note": TEXTS}),
    "polars": lambda: pl.DataFrame({"text": TEXTS, "id": range(60)}),
}


def pretrain(data, out, steps=2, resume=False, console=False, **more):
    settings = with_overrides(TextSettings(), TINY | {"steps": steps} | more)
    return unmask.text.pretrain(data, out, settings=settings, console=console, resume=resume)


@pytest.fixture(scope="module")
def of_a_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("file")
    (path / "texts.jsonl").write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in TEXTS))
    pretrain(str(path / "texts.jsonl"), path / "m")
    return load_file(path / "m" / "model.safetensors")


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_weights_of_the_file(shape, of_a_file, tmp_path):
    pretrain(SHAPES[shape](), tmp_path / "m")
    found = load_file(tmp_path / "m" / "model.safetensors")
    assert all((found[k] == v).all() for k, v in of_a_file.items())
    assert "quick brown" not in (tmp_path / "m" / "README.md").read_text()


def test_special_tokens_in_texts_are_told_once(tmp_path, capsys):
    pretrain([f"{t} [SEP] [PAD]" for t in TEXTS], tmp_path / "m", console=True)
    err = capsys.readouterr().err
    assert err.count("special tokens are written in the texts") == 1
    assert "[SEP] " in err
    pretrain(TEXTS, tmp_path / "n", console=True)
    assert "special tokens" not in capsys.readouterr().err


def test_a_run_on_texts_goes_on(tmp_path):
    pretrain(TEXTS, tmp_path / "m")
    pretrain(TEXTS, tmp_path / "m", steps=4, resume=True)
    with pytest.raises(UserError, match="other data or settings"):
        pretrain([*TEXTS, "One more text stands at the end of them."], tmp_path / "m", steps=6, resume=True)


@pytest.mark.parametrize(
    "text", ["今天天气很好，我们去公园散步。", "私の母は駅で冷たい水を買います。", "ฉันไปตลาดกับแม่" * 20]
)
def test_texts_without_blanks_are_texts(text):
    assert in_memory([f"{text}{i}" for i in range(3)])


def test_names_of_files_stay_names(tmp_path):
    for names in (["nofile.txt"], [str(tmp_path / "no such.txt"), str(tmp_path)], "a text that is one"):
        with pytest.raises(UserError, match=r"no such file or folder|no file"):
            pretrain(names, tmp_path / "m")
    with pytest.raises(UserError, match="no text"):
        pretrain(pd.Series([1, 2]), tmp_path / "m")
