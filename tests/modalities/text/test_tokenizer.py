import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from text_corpus import SENTENCES, made_model, tokenizer
from unmask.errors import UserError
from unmask.modalities.text.tasks.encoding import ExampleMaker
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.modalities.text.uses.filling import blank_examples

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
    command = [sys.executable, "-c", code, str(Path(__file__).parents[2]), kind]
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


LETTERS = ["<s>", "<pad>", "</s>", "<unk>", *"ACDEFG", "<mask>"]


@pytest.mark.parametrize("file", ["vocab.json", "dict.txt"])
def test_every_residue_is_a_unit(file, tmp_path):
    content = (
        json.dumps({t: i for i, t in enumerate(LETTERS)}) if file == "vocab.json" else "A 1\nC 1\nD 1\nE 1\nF 1\nG 1\n"
    )
    (tmp_path / file).write_text(content)
    made = Tokenizer.load(tmp_path)
    for text in ("AC<mask>D", "A C <mask> D"):
        e = made.encode([text])[0]
        assert e.ids.tolist() == [0, 4, 5, 10, 6, 2]
        assert e.units.tolist() == [-1, 0, 1, 2, 3, -1]
    assert made.decode(made.encode(["ACD"])[0].ids) == "ACD"


SPELT = {
    "de": "Schöne Grüße aus Köln: schon möchte er mögen, was er mochte.",
    "hi": "हिन्दी में लिखी किताबें, की और के।",
    "zh": "今天天气很好。",
    "ja": "ガラスのコップが割れて、びっくりした。",
    "th": "ที่นี่มีน้ำ ดีมาก",
    "ar": "كَتَبَ مُحَمَّدٌ رِسَالَةً",
    "vi": "Việt Nam có tiếng Việt.",
}


def plainly(text, kind):
    """One spelling; SentencePiece's for unigram, which writes Thai \u0e33 as two characters."""
    return unicodedata.normalize("NFKC" if kind == "unigram" else "NFC", text).replace(" ", "")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("script", SPELT)
def test_letters_are_kept(kind, script):
    """No letter and no mark is lost, in whichever of Unicode's two ways it is written."""
    made = Tokenizer.train([SPELT[script]] * 8, kind=kind, vocab_size=500, min_frequency=1)
    for form in ("NFC", "NFD"):
        if kind == "bpe" and form == "NFD":
            continue  # bytes, as they stand
        ids = made.encode([unicodedata.normalize(form, SPELT[script])])[0].ids
        assert made.unk_id not in ids
        assert made.decode(ids).replace(" ", "") == plainly(SPELT[script], kind)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_folded_is_what_was_asked_for(kind):
    """Case and accents apart; marks that a script spells with stay."""
    texts = [" ".join(SPELT.values()), "schone grusse aus koln Schone Grusse Köln köln Viet viet"] * 4

    def read(text, **folded):
        made = Tokenizer.train(texts, kind=kind, vocab_size=600, min_frequency=1, **folded)
        return made.decode(made.encode([text])[0].ids).replace(" ", "")

    assert read("Köln", lowercase=True) == "köln"
    assert read("Köln", strip_accents=True) == "Koln"
    assert read("Ko\u0308ln", strip_accents=True, lowercase=True) == "koln"
    for script in ("hi", "ja", "th", "ar"):
        kept = read(SPELT[script], strip_accents=True, lowercase=True)
        assert kept == plainly(SPELT[script], kind)


def test_recipes_fold_what_was_published():
    from unmask.modalities.text.recipes import RECIPES, TextSettings, with_overrides

    folded = {n: with_overrides(TextSettings(), r) for n, r in [*RECIPES.items(), ("none", {})]}
    assert {n for n, s in folded.items() if s.lowercase or s.strip_accents} == {"bert"}
    assert (folded["bert"].lowercase, folded["bert"].strip_accents) == (True, True)


@pytest.mark.parametrize("text", ["Zoe\u0301 ran", "Zoé ran", "में घर", "e\u0301\u0300!", "การ ที่"])
def test_a_mark_that_is_dropped_belongs_to_its_word(text, tmp_path):
    """Published uncased tokenizers drop every mark: where a word ends is still behind it."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "zo", "##e", "ran", "म", "घर", "e", "!", "การ", "ท"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    made = Tokenizer.load(tmp_path)
    covered = "".join(text[a:b] for a, b in made.encode([text])[0].offsets[1:-1])
    assert covered == text.replace(" ", "")


def test_bert_vocabulary_honours_lower_case(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Dog", "dog"]))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert Tokenizer.load(tmp_path).encode(["Dog"])[0].ids.tolist() == [2, 6, 3]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert Tokenizer.load(tmp_path).encode(["Dog"])[0].ids.tolist() == [2, 5, 3]


def test_an_unmarked_bert_vocabulary_is_cased_where_it_has_capitals(tmp_path):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*special, "A", "C"]))
    assert Tokenizer.load(tmp_path).encode(["A C"])[0].ids.tolist() == [2, 5, 6, 3]
    (tmp_path / "vocab.txt").write_text("\n".join([*special, "a", "c"]))
    assert Tokenizer.load(tmp_path).encode(["A C"])[0].ids.tolist() == [2, 5, 6, 3]


def test_roberta_files_are_read_as_transformers_does(tmp_path):
    transformers = pytest.importorskip("transformers")
    from tokenizers import ByteLevelBPETokenizer

    made = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    made.train_from_iterator(SENTENCES, vocab_size=400, min_frequency=1, special_tokens=special)
    made.save_model(str(tmp_path))
    ours, theirs = Tokenizer.load(tmp_path), transformers.RobertaTokenizer.from_pretrained(tmp_path)
    for text in [*SENTENCES, "the <mask> dog"]:
        assert ours.encode([text])[0].ids.tolist() == theirs(text).input_ids


@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_is_its_texts_side_by_side(kind):
    made, (a, b) = tokenizer(kind), SENTENCES[:2]
    first, second = (made.encode([t], specials=False)[0] for t in (a, b))
    [e] = ExampleMaker(made, slots=99, types=True).whole([a], [b])
    assert e.values["token"].tolist() == [2, *first.ids, 3, *second.ids, 3]
    assert e.values["type"].tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    [short] = ExampleMaker(made, slots=9, types=True).whole([a], [b])
    assert short.values["token"].tolist() == [2, *first.ids[:3], 3, *second.ids[:3], 3]


def test_half_a_surrogate_pair_is_read_as_unknown_and_offsets_hold():
    e = tokenizer("bpe").encode(["a\ud800b"], specials=False)[0]
    assert e.offsets[-1].tolist() == [2, 3]


def test_nothing_to_train_on():
    with pytest.raises(UserError, match="no text to train"):
        Tokenizer.train(iter(["", "  "]))


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_transformers_reads_a_blank_as_we_do(kind, tmp_path):
    """The space before [MASK] belongs to what is missing."""
    transformers = pytest.importorskip("transformers")
    model = made_model(kind)
    model.tokenizer.save(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    text = "A masked [MASK] of the text [MASK]."
    [ours] = blank_examples(model, [text])
    assert theirs(text)["input_ids"] == ours.values["token"].tolist()
