"""Minimal pairs: what counts as right, how paradigms are averaged, and what is refused."""

import gzip
import json
import zipfile

import pytest

from commands import run
from text_corpus import made_model
from unmask.errors import UserError
from unmask.modalities.text.uses.minimal_pairs import (
    MinimalPair,
    evaluate_minimal_pairs,
    is_minimal_pairs,
    read_minimal_pairs,
    some_of_each,
)


class ByTable:
    """Scores that are looked up; slots are words."""

    def __init__(self, scores):
        self.scores, self.asked = scores, []

    def score(self, texts, *, mode):
        self.asked += texts
        return [{"score": self.scores[t], "slots": len(t.split())} for t in texts]


def pair(good, bad, paradigm="p", field="f"):
    return MinimalPair(good=good, bad=bad, paradigm=paradigm, field=field)


def test_paradigms_count_alike_and_ties_half():
    model = ByTable({"a": 1.0, "b": 0.0, "c": 0.0, "d d": 0.5})
    pairs = [pair("a", "b"), pair("a", "c"), pair("b", "a"), pair("b", "c"), pair("d d", "b", "q", "g")]
    found = evaluate_minimal_pairs(model, pairs)
    assert found["by_paradigm"] == {"p": 2.5 / 4, "q": 1.0}
    assert found["by_field"] == {"f": 2.5 / 4, "g": 1.0}
    assert found["accuracy"] == (2.5 / 4 + 1) / 2
    assert found["ties"] == 1
    assert found["shorter"] == (0.5 + 0) / 2  # equally long in p, longer in q
    assert found["low"] <= found["accuracy"] <= found["high"]
    assert sorted(model.asked) == ["a", "b", "c", "d d"]  # each sentence once


def test_the_interval_is_one_of_the_mean_over_paradigms():
    model = ByTable({"a": 1.0, "b": 0.0})
    pairs = [pair("a", "b")] * 100 + [pair("b", "a", "rare")] * 10
    found = evaluate_minimal_pairs(model, pairs)
    assert found["accuracy"] == 0.5
    assert 0.3 < found["low"] < 0.5 < found["high"] < 0.8
    assert evaluate_minimal_pairs(model, pairs[:1])["low"] is None  # one pair has no interval


def row(good, bad, **more):
    return json.dumps({"sentence_good": good, "sentence_bad": bad, **more})


def test_files_folders_and_archives_are_read_alike(tmp_path):
    one, two = row("The cat sleeps.", "The cat sleep.", UID="agreement", linguistics_term="verbs"), row("x y", "y x")
    folder = tmp_path / "pairs"
    folder.mkdir()
    (folder / "a.jsonl").write_text(one + "\n\n")
    (folder / "order.jsonl").write_text(two)
    with zipfile.ZipFile(tmp_path / "pairs.zip", "w") as archive:
        for file in folder.iterdir():
            archive.write(file, file.name)
    wanted = [
        MinimalPair(good="The cat sleeps.", bad="The cat sleep.", paradigm="agreement", field="verbs"),
        MinimalPair(good="x y", bad="y x", paradigm="order", field="order"),
    ]
    for source in (folder, tmp_path / "pairs.zip"):
        assert is_minimal_pairs(source)
        assert read_minimal_pairs(source) == wanted
    assert read_minimal_pairs(folder / "a.jsonl") == wanted[:1]
    (tmp_path / "text.jsonl").write_text('{"text": "no pair"}')
    (tmp_path / "text.txt").write_text(one)
    assert not is_minimal_pairs(tmp_path / "text.jsonl")
    assert not is_minimal_pairs(tmp_path / "text.txt")


def test_files_are_read_as_people_have_them(tmp_path):
    text = row("The cat\u2028 sleeps.", "The cat sleep.") + "\r\n"
    (tmp_path / "bom.jsonl").write_text("\ufeff" + text)
    (tmp_path / "LOUD.JSONL").write_text(text)
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    below = tmp_path / "folder" / "data"
    below.mkdir(parents=True)
    (below / "deep.jsonl").write_text(text)
    (below / "._deep.jsonl").write_bytes(b"\x00\x05\xb0")
    with zipfile.ZipFile(tmp_path / "mac.ZIP", "w") as archive:
        archive.writestr("__MACOSX/._a.jsonl", b"\x00\x05\xb0")
        archive.writestr("a.jsonl", text)
        archive.writestr("b.jsonl.gz", gzip.compress(text.encode()))
    names = ("bom.jsonl", "LOUD.JSONL", "packed.jsonl.gz", "folder", "mac.ZIP")
    assert [is_minimal_pairs(tmp_path / name) for name in names] == [True] * 5
    found = read_minimal_pairs(*(tmp_path / name for name in names))
    assert [pair.paradigm for pair in found] == ["bom", "LOUD", "packed", "deep", "a", "b"]
    assert {pair.good for pair in found} == {"The cat\u2028 sleeps."}


def test_files_of_one_name_are_paradigms_apart(tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "agr.jsonl").write_text(row("a", "b"))
    (tmp_path / "x" / "v1.jsonl.bak.jsonl").write_text(row("a", "b"))
    for sources in ([tmp_path], [tmp_path / "x", tmp_path / "y"]):
        names = [pair.paradigm.removeprefix(f"{tmp_path}/") for pair in read_minimal_pairs(*sources)]
        assert names == ["x/agr", "v1.jsonl.bak", "y/agr"]


def test_every_source_must_hold_pairs(tmp_path, capsys):
    made_model().save(tmp_path / "m")
    (tmp_path / "a.jsonl").write_text(row("The fox jumps.", "The fox jump."))
    (tmp_path / ".b.jsonl").write_text(row("The dog jumps.", "The dog jump."))
    (tmp_path / "held.txt").write_text("the quick fox\n")
    (tmp_path / "empty").mkdir()
    for other in ("held.txt", "nosuch.jsonl", "empty"):
        code, _, error = run(capsys, "evaluate", tmp_path / "m", tmp_path / "a.jsonl", tmp_path / other)
        assert (code, f"{other}: no such file" in error) == (2, True), error
        with pytest.raises(UserError, match=other):
            read_minimal_pairs(tmp_path / "a.jsonl", tmp_path / other)
    given = ["evaluate", tmp_path / "m", tmp_path / "*.jsonl", tmp_path / ".b.jsonl"]  # hidden, but named
    code, out, error = run(capsys, *given)
    assert (code, "2 pairs" in out) == (0, True), error


def test_rows_that_are_not_utf_8_and_files_that_are_damaged_are_named(tmp_path):
    (tmp_path / "latin.jsonl").write_bytes(
        row("a", "b").encode() + b'\n{"sentence_good": "caf\xe9", "sentence_bad": "b"}\n'
    )
    assert is_minimal_pairs(tmp_path / "latin.jsonl")
    with pytest.raises(UserError, match=r"latin\.jsonl:2: not UTF-8"):
        read_minimal_pairs(tmp_path / "latin.jsonl")
    (tmp_path / "text.jsonl").write_bytes(b'{"text": "caf\xe9"}\n')
    (tmp_path / "wide.jsonl").write_bytes(row("a", "b").encode("utf-16"))
    assert not is_minimal_pairs(tmp_path / "text.jsonl")
    assert not is_minimal_pairs(tmp_path / "wide.jsonl")
    for name, content in (("cut.jsonl.gz", gzip.compress(row("a", "b").encode() * 99)[:40]), ("no.zip", b"PK")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name}: cannot be read"):
            is_minimal_pairs(tmp_path / name)


def test_all_broken_rows_are_named_at_once(tmp_path):
    lines = [row("a", "b"), row("a", 3), "{", row("", "b"), "[]"]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError) as caught:
        read_minimal_pairs(tmp_path / "p.jsonl")
    assert [f"p.jsonl:{n}" in str(caught.value) for n in (1, 2, 3, 4, 5)] == [False, True, True, True, True]


def test_some_of_each_paradigm_are_drawn_by_the_seed():
    pairs = [pair(str(i), f"{i} x", f"p{i % 3}") for i in range(60)]
    some = some_of_each(pairs, 4)
    assert len(some) == 12
    assert some == some_of_each(pairs, 4)
    assert some != some_of_each(pairs, 4, seed=1)
    assert some_of_each(pairs, 100) == pairs


def test_a_file_that_is_named_twice_counts_once(tmp_path):
    (tmp_path / "g.jsonl").write_text(row("a", "b"))
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "g.jsonl")
    (tmp_path / "folders").mkdir()
    (tmp_path / "folders" / "real").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "more.jsonl").write_text(row("a", "b"))
    one = tmp_path / "g.jsonl"
    assert len(read_minimal_pairs(one, one, f"{tmp_path}/./g.jsonl", tmp_path / "link.jsonl")) == 1
    assert len(read_minimal_pairs(one, tmp_path)) == 2  # more.jsonl too, elsewhere
    assert is_minimal_pairs(tmp_path / "folders")  # behind a link, as folders of texts are read
    assert len(read_minimal_pairs(tmp_path / "folders", tmp_path)) == 2
    (tmp_path / "g.jsonl.gz").write_bytes(gzip.compress(row("a", "b").encode()))
    with pytest.raises(
        UserError, match=r"(?s)g\.jsonl and .*g\.jsonl\.gz: one name for the pairs of both.*one of them"
    ):
        read_minimal_pairs(tmp_path)


def test_rows_and_archives_that_cannot_be_read_are_named(tmp_path, capsys):
    made_model().save(tmp_path / "m")
    deep, long = "[" * 100_000, '{"sentence_good": ' + "1" * 5000 + "}"
    for name, bad in (("deep", deep), ("long", long)):
        (tmp_path / f"{name}.jsonl").write_text(f"{bad}\n")
        assert not is_minimal_pairs(tmp_path / f"{name}.jsonl")
        (tmp_path / f"{name}.jsonl").write_text(f"{row('a', 'b')}\n{bad}\n")
        with pytest.raises(UserError, match=rf"{name}\.jsonl:2: "):
            read_minimal_pairs(tmp_path / f"{name}.jsonl")
    with zipfile.ZipFile(tmp_path / "locked.zip", "w") as archive:
        archive.writestr("a.jsonl", row("a", "b"))
    raw = bytearray((tmp_path / "locked.zip").read_bytes())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(mark) + at] |= 1  # the bit that says encrypted
    (tmp_path / "locked.zip").write_bytes(raw)
    with pytest.raises(UserError, match=r"(?s)locked\.zip: cannot be read .*encrypted.*Unpack it"):
        read_minimal_pairs(tmp_path / "locked.zip")
    code, _, error = run(capsys, "evaluate", tmp_path / "m", "word " * 2000)
    assert (code, "no such file" in error) == (2, True), error


def test_a_pattern_of_texts_is_read_as_everywhere(tmp_path, capsys):
    """Other kinds and folders that it matches are passed over, and told."""
    made_model().save(tmp_path / "m")
    (tmp_path / "d" / "sub").mkdir(parents=True)
    (tmp_path / "d" / "a.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 3)
    (tmp_path / "d" / "sub" / "b.txt").write_text("the fox\n")
    (tmp_path / "d" / "b.pdf").write_bytes(b"%PDF")
    code, _, error = run(capsys, "evaluate", tmp_path / "m", tmp_path / "d" / "*", "--nelbo-draws", 0)
    assert (code, "1 file was not read: 1 of a kind" in error) == (0, True), error


def test_a_paradigm_may_be_called_zero(tmp_path):
    rows = [json.dumps({"sentence_good": "a", "sentence_bad": "b", "UID": uid}) for uid in (0, "0", None, "")]
    (tmp_path / "p.jsonl").write_text("\n".join(rows))
    assert [pair.paradigm for pair in read_minimal_pairs(tmp_path / "p.jsonl")] == ["0", "0", "p", "p"]


def test_what_is_for_texts_is_refused_with_pairs(tmp_path, capsys):
    made_model().save(tmp_path / "m")
    (tmp_path / "p.jsonl").write_text(row("The fox jumps.", "The fox jump."))
    for more in (["--column", "text"], ["--document", "line"], ["--ratio", 0.3], ["--nelbo-draws", 0]):
        code, _, error = run(capsys, "evaluate", tmp_path / "m", tmp_path / "p.jsonl", *more)
        assert (code, f"{more[0]}: for texts" in error) == (2, True), error


def test_texts_of_many_are_drawn_and_told(tmp_path, capsys):
    made_model().save(tmp_path / "m")
    (tmp_path / "t.txt").write_text("".join(f"the quick brown fox {n}\n" for n in range(60)))
    more = ["--most", 20, "--document", "line", "--nelbo-draws", 0]
    code, _, error = run(capsys, "evaluate", tmp_path / "m", tmp_path / "t.txt", *more)
    assert (code, "evaluated: 20 of 60 texts, drawn by the seed (--most N takes more)" in error) == (0, True), error


def test_tables_of_pairs_are_read(tmp_path, capsys):
    (tmp_path / "agreement.csv").write_text(
        '\ufeffsentence_bad,sentence_good\n"The fox, it jump.","The fox, it jumps."\n'
    )
    (tmp_path / "order.tsv.gz").write_bytes(gzip.compress(b"sentence_good\tsentence_bad\na b\tb a\na\n"))
    (tmp_path / "texts.csv").write_bytes(b"text,label\ncaf\xe9,1\n")
    assert not is_minimal_pairs(tmp_path / "texts.csv")
    [pair] = read_minimal_pairs(tmp_path / "agreement.csv")
    assert (pair.good, pair.bad, pair.paradigm) == ("The fox, it jumps.", "The fox, it jump.", "agreement")
    with pytest.raises(UserError, match=r"order\.tsv\.gz:3: sentence_bad is None"):
        read_minimal_pairs(tmp_path / "order.tsv.gz")
    (tmp_path / "latin.csv").write_bytes(b"sentence_good,sentence_bad\ncaf\xe9,b\n")
    with pytest.raises(UserError, match=r"latin\.csv:2: not UTF-8"):
        read_minimal_pairs(tmp_path / "latin.csv")
    made_model().save(tmp_path / "m")
    code, out, error = run(capsys, "evaluate", tmp_path / "m", tmp_path / "agreement.csv")
    assert (code, "1 pairs" in out) == (0, True), error
    (tmp_path / "graded.csv").write_text("sentence1,sentence2,score\na,b,1\n")
    code, _, error = run(capsys, "evaluate", tmp_path / "m", tmp_path / "graded.csv")
    assert (code, "rows with labels are for a fine-tuned model" in error) == (2, True), error
