"""Which columns of a CoNLL file hold the words and the tags: by evidence, said; or refused, naming the option."""

from __future__ import annotations

import pytest

from commands import run
from tiny_folders import folder
from unmask.errors import UserError
from unmask.modalities.text.tasks.conll import as_sentences
from unmask.modalities.text.tasks.data import Problems
from unmask.modalities.text.tasks.row_files import Columns

SENTENCES = [
    [("Merkel", "B-PER", "O"), ("visited", "O", "O"), ("Berlin", "B-LOC", "O")],
    [("In", "O", "O"), ("University", "B-ORG", "O"), ("of", "I-ORG", "O"), ("Ulm", "I-ORG", "B-LOC")],
    [("Yes", "O", "O")],
]


def write(path, line, *, start=1, before="", going_on=False):
    """Sentences of `line(number, word, tag, inner)`."""
    out, number = [], start
    for sentence in SENTENCES:
        number = number if going_on else start
        out.append(before)
        for word in sentence:
            out.append(line(number, *word) + "\n")
            number += 1
        out.append("\n")
    path.write_text("".join(out))
    return path


def read(path, *, labelled=True, **columns):
    said: list[str] = []
    found = as_sentences(path, labelled=labelled, problems=Problems(say=said.append), columns=Columns(**columns))
    return [s.text for s in found], [[s.text[a:b] for a, b, _ in s.spans or ()] for s in found], said


TEXTS = [" ".join(word for word, *_ in sentence) for sentence in SENTENCES]
ENTITIES = [["Merkel", "Berlin"], ["University of Ulm"], []]


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("going_on", [False, True])
@pytest.mark.parametrize("between", ["\t", " "])
def test_a_column_that_counts_is_no_word(tmp_path, start, going_on, between):
    path = tmp_path / "d.conll"
    write(path, lambda n, w, t, _: between.join((str(n), w, t)), start=start, going_on=going_on)
    texts, entities, said = read(path)
    assert (texts, entities) == (TEXTS, ENTITIES)
    assert said == [f"{path}: words in column 2, tags in column 3 of 3; column 1 counts the words"]


def test_ranges_and_empty_words_of_conll_u_are_left_out(tmp_path):
    path = tmp_path / "d.conll"
    path.write_text("1-2\tzum\t_\n1\tzu\tO\n2\tdem\tO\n2.1\tSee\t_\n3\tUlm\tB-LOC\n\n1\tJa\tO\n2\t.\tO\n")
    texts, _, said = read(path)
    assert texts == ["zu dem Ulm", "Ja ."]
    assert "2 lines of several words or of none (1-2, 1.1) left out" in said[1]
    assert read(path, text="2")[0] == texts


def test_a_column_that_is_the_same_in_every_sentence_is_no_word(tmp_path):
    path = write(tmp_path / "d.conll", lambda n, w, t, _: f"news/7 {n} {w} {t}", start=0)
    texts, entities, said = read(path)
    assert (texts, entities) == (TEXTS, ENTITIES)
    assert "words in column 3, tags in column 4 of 4; column 1 does not change within sentences" in said[0]
    assert "column 2 counts the words" in said[0]


def test_the_usual_columns_are_said_too(tmp_path):
    path = write(tmp_path / "d.conll", lambda n, w, t, _: f"{w} NN B-NP {t}")  # CoNLL-2003: chunks are tags too
    assert read(path) == (TEXTS, ENTITIES, [f"{path}: words in column 1, tags in column 4 of 4"])


def test_comments_are_counted(tmp_path):
    path = write(
        tmp_path / "d.conll", lambda n, w, t, _: f"{n}\t{w}\t{t}", before="# text = of type O\n#\thttp://x [1]\n"
    )
    texts, entities, said = read(path)
    assert (texts, entities) == (TEXTS, ENTITIES)
    assert said[1] == f"{path}: comments (lines that begin with #) left out: 6"
    path.write_text("# O\n#fun B-TAG\nday O\n\n#yes O\nno O\n")  # words
    assert read(path)[0] == ["# #fun day", "#yes no"]
    assert len(read(path)[2]) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "{w}\t{t}\t{i}",
            "columns 2 and 3 both hold tags.*[\n].*label='2'.*label='3'",
        ),  # an outer and an inner layer
        ("{n}\t{w}\t{t}\t{i}", "columns 3 and 4 both hold tags.*[\n].*label='3'.*label='4'"),  # GermEval 2014
        ("{w}\t{t}\t-\tme", "column 4 holds no tags, column 2 does[\n].*label='2'"),  # universal NER
        ("{n}\t{t}", "column 1 counts the words.*no column of words[\n].*text='1'"),
    ],
)
def test_what_cannot_be_known_names_the_option(tmp_path, line, message):
    path = write(tmp_path / "d.conll", lambda n, w, t, i: line.format(n=n, w=w, t=t, i=i))
    with pytest.raises(UserError, match=message):
        read(path)


def test_numbers_that_nearly_count_are_refused(tmp_path):
    path = write(tmp_path / "d.conll", lambda n, w, t, _: f"{n}\t{w}\t{t}")
    path.write_text(path.read_text().replace("2\tvisited", "7\tvisited"))
    with pytest.raises(UserError, match=r"column 1 counts the words of 1 of 2 sentences[^\n]*[\n].*text="):
        read(path)
    assert read(path, text="2")[0] == TEXTS


def test_columns_are_told_by_number(tmp_path):
    path = write(tmp_path / "d.conll", lambda n, w, t, i: f"{n}\t{w}\t{t}\t{i}")
    assert read(path, label="3")[:2] == (TEXTS, ENTITIES)
    assert read(path, label="4")[1] == [[], ["Ulm"], []]
    assert read(path, text="1", label="3")[0] == ["1 2 3", "1 2 3 4", "1"]
    for given, message in (
        ({"label": "9"}, "no column 9"),
        ({"text": "word"}, "column 'word'"),
        ({"text": "3", "label": "3"}, "both"),
    ):
        with pytest.raises(UserError, match=message):
            read(path, **given)
    path = tmp_path / "d.jsonl"
    path.write_text('{"text": "a", "entities": []}\n')
    with pytest.raises(UserError, match=r"text='2'.*CoNLL"):
        read(path, text="2")


def test_a_line_with_more_columns_than_the_others_is_wrong(tmp_path):
    path = tmp_path / "d.conll"
    path.write_text("the O\nNew York B-LOC\nfox O\n")
    with pytest.raises(UserError, match=r"d\.conll:2: 3 columns, expected 2"):
        read(path)


PLAIN = [
    "Patient has blood type O",
    "She sent an E-mail",
    "Type O",
    "blood type O\nblood type O",
    "He sent it\nby E-mail",
]


@pytest.mark.parametrize("text", ["Patient has blood type O\nShe sent an E-mail\n", *[p + "\n" for p in PLAIN[:2]]])
def test_texts_that_end_like_tags_are_texts(tmp_path, text):
    path = tmp_path / "d.txt"
    path.write_text(text)
    assert read(path, labelled=False)[0] == text.splitlines()


@pytest.mark.parametrize(
    "text", ["fox O\nriver B-LOC\n", "a DT O\nfox NN O\n\nan DT O\nox NN O\n", "fox\tO\nriver\tE-X\n"]
)
def test_columns_in_a_txt_are_columns(tmp_path, text):
    path = tmp_path / "d.txt"
    path.write_text(text)
    words = [" ".join(line.split()[0] for line in part.splitlines()) for part in text.strip().split("\n\n")]
    assert read(path, labelled=False)[0] == words


@pytest.mark.parametrize(
    "text", ["Type O\n", "blood type O\nblood type O\n", "fox O\nriver B-LOC\nox\nlake O\ncow O\n"]
)
def test_a_txt_that_may_be_either_is_refused(tmp_path, text):
    path = tmp_path / "d.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=r"d\.txt: words with tags.*or texts[\s\S]*text='1'[\s\S]*jsonl"):
        read(path, labelled=False)


def test_on_the_command_line(tmp_path, capsys):
    path = write(tmp_path / "d.conll", lambda n, w, t, i: f"{n}\t{w}\t{t}\t{i}")
    path.write_text(path.read_text() * 8)
    model, quick = folder(tmp_path / "model"), ["--steps", "1", "--set", "start=plain", "--precision", "fp32"]
    assert run(capsys, "finetune", "tag", model, path, "--out", tmp_path / "m", *quick)[0] == 2
    code, _, err = run(capsys, "finetune", "tag", model, path, "--label", "3", "--out", tmp_path / "m", *quick)
    assert code == 0
    assert "words in column 2, tags in column 3 of 4" in err
    code, _, err = run(capsys, "evaluate", tmp_path / "m", path, "--label", "3", "--precision", "fp32")
    assert code == 0
    assert "tags in column 3" in err
    code, _, err = run(capsys, "predict", tmp_path / "m", path, "--out", tmp_path / "p.jsonl")
    assert code == 0  # tags are not needed
    assert "words in column 2" in err
    assert len((tmp_path / "p.jsonl").read_text().splitlines()) == 24
