import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from text_corpus import SENTENCES, tokenizer
from unmask.errors import UserError
from unmask.text.tokenizer import Tokenizer

KINDS = ["wordpiece", "bpe", "unigram"]


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_and_round_trip(kind, tmp_path):
    made = tokenizer(kind)
    assert [made.pad_id, made.unk_id, made.cls_id, made.sep_id, made.mask_id] == [0, 1, 2, 3, 4]
    made.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    for text in SENTENCES:
        assert made.encode([text])[0].ids.tolist() == again.encode([text])[0].ids.tolist()
    assert again.fingerprint() == made.fingerprint()


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_training_is_the_same_in_every_process(kind):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from text_corpus import tokenizer; "
        "print(tokenizer(sys.argv[2]).fingerprint())"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parents[1]), kind]
    other = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert other == tokenizer(kind).fingerprint()


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_it_alike(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    made = tokenizer(kind)
    made.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.mask_token == "[MASK]"
    for text in [*SENTENCES, "the [MASK] dog"]:
        assert theirs(text).input_ids == made.encode([text])[0].ids.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_mask_is_a_mask_and_not_special(kind):
    e = tokenizer(kind).encode(["the [MASK] dog"])[0]
    at = np.flatnonzero(e.ids == 4)
    assert len(at) == 1
    assert not e.special[at[0]]
    assert e.units[at[0]] >= 0


def test_cutting_keeps_the_last_special_token():
    e = tokenizer("wordpiece").encode([SENTENCES[0]], max_slots=6)[0]
    assert len(e) == 6
    assert e.ids[0] == 2
    assert e.ids[-1] == 3


def test_character_vocabulary(tmp_path):
    letters = ["<s>", "<pad>", "</s>", "<unk>", *"ACDEFG", "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(letters)}))
    made = Tokenizer.load(tmp_path)
    assert made.encode(["AC<mask>D"])[0].ids.tolist() == [0, 4, 5, 10, 6, 2]


def test_no_mask_token(tmp_path):
    letters = ["<s>", "<pad>", "</s>", "<unk>", *"ACD"]
    (tmp_path / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(letters)}))
    with pytest.raises(UserError, match="no mask token"):
        Tokenizer.load(tmp_path).require_mask()


@pytest.mark.parametrize(("name", "content"), [("tokenizer.json", "{ broken"), ("vocab.json", '{"ab": 0, "c": 1}')])
def test_broken_files_are_named(name, content, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=str(tmp_path)):
        Tokenizer.load(tmp_path)
