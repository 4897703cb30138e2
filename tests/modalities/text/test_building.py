"""Caching side by side and after a kill gives the same cache; where documents of plain text end is said and
can be set."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from commands import run
from text_corpus import tokenizer, write_corpus
from unmask.engines.local import LocalEngine, Pool
from unmask.errors import UserError
from unmask.modalities.text.reading.documents import ReadReport
from unmask.modalities.text.reading.sources import iter_documents
from unmask.modalities.text.recipes import TextSettings
from unmask.modalities.text.tokens import building, scanning
from unmask.modalities.text.tokens.cache import TokenCache, content_key
from unmask.modalities.text.tokens.corpus import build_tokenizer
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.modalities.text.uses.model import load


@pytest.fixture
def small_portions(monkeypatch):
    monkeypatch.setattr(scanning, "LEAST", 2_000)
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)  # a pipeline of transformers sets it for good


def build(tmp_path, name, holdout=0.01, **more):
    settings = TextSettings(slots=32, holdout=holdout)
    return TokenCache.build(
        str(tmp_path / "corpus.txt"), tokenizer("wordpiece"), tmp_path / name, settings=settings, **more
    )


def contents(cache: TokenCache) -> dict[str, bytes]:
    return {str(p.relative_to(cache.folder)): p.read_bytes() for p in cache.folder.rglob("*") if p.is_file()}


def test_processes_side_by_side_give_the_same_cache(tmp_path, small_portions, monkeypatch):
    write_corpus(tmp_path / "corpus.txt", copies=400)
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    alone, said = build(tmp_path, "alone"), []
    assert alone.meta["shards"] > 2
    monkeypatch.setenv("RAYON_NUM_THREADS", "2")
    assert contents(build(tmp_path, "two", say=said.append)) == contents(alone)
    assert any("tokens/s with 2 workers" in line for line in said)


def test_portions_change_no_example(tmp_path, monkeypatch):
    write_corpus(tmp_path / "corpus.txt", copies=400)
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    whole = build(tmp_path, "whole")
    assert whole.meta["shards"] == 1
    monkeypatch.setattr(scanning, "LEAST", 2_000)
    many = build(tmp_path, "many")
    assert many.digest() == whole.digest()
    assert (many.train.tolist(), many.meta["report"]) == (whole.train.tolist(), whole.meta["report"])


def test_a_process_that_is_killed_is_said_and_what_was_done_is_kept(tmp_path, small_portions, monkeypatch):
    write_corpus(tmp_path / "corpus.txt", copies=400)
    monkeypatch.setenv("RAYON_NUM_THREADS", "2")
    started, run_of = Pool._started, LocalEngine.run

    def killed(self):
        process = started(self)
        process.kill()
        return process

    def some(self, function, common, tasks):
        yield from run_of(self, function, common, tasks if function.endswith(":scan") else tasks[:2])
        if not function.endswith(":scan"):
            with monkeypatch.context() as patch:
                patch.setattr(Pool, "_started", killed)
                yield from run_of(self, function, common, tasks[2:])

    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "run", some)
        with pytest.raises(UserError, match="a worker has ended 4 times at the same work") as error:
            build(tmp_path, "cache")
    assert "RAYON_NUM_THREADS=1" in str(error.value)
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    said: list[str] = []
    again = build(tmp_path, "cache", say=said.append)
    assert f"tokenising goes on: 2 of {again.meta['shards']} shards are there" in said
    assert contents(again) == contents(build(tmp_path, "clean"))
    assert not (tmp_path / "cache.part").exists()


KILLED = """
import sys
sys.path.insert(0, {tests!r})
from text_corpus import tokenizer
from unmask.modalities.text.tokens import scanning, shards
from unmask.modalities.text.tokens.cache import TokenCache
from unmask.modalities.text.recipes import TextSettings
scanning.LEAST = 2_000
tokenise = shards.tokenise
def slow(*given):
    __import__("time").sleep(0.1)
    return tokenise(*given)
shards.tokenise = slow
made = tokenizer("wordpiece").load({folder!r})
TokenCache.build({corpus!r}, made, {folder!r} + "/cache", settings=TextSettings(slots=32))
"""


def test_sigkill_while_caching_damages_nothing_and_the_next_build_goes_on(tmp_path, small_portions, monkeypatch):
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    corpus = write_corpus(tmp_path / "corpus.txt", copies=600)
    tokenizer("wordpiece").save(tmp_path)
    code = KILLED.format(tests=str(Path(__file__).parents[2]), folder=str(tmp_path), corpus=str(corpus))
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "RAYON_NUM_THREADS": "1"})
    index, deadline = tmp_path / "cache.part" / "index", time.monotonic() + 60
    while not (index / "000001.json").exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "cache").exists()
    done = len(list(index.glob("*.json")))
    said: list[str] = []
    made = type(tokenizer("wordpiece")).load(tmp_path)
    again = TokenCache.build(str(corpus), made, tmp_path / "cache", settings=TextSettings(slots=32), say=said.append)
    assert f"tokenising goes on: {done} of {again.meta['shards']} shards are there" in said
    assert contents(again) == contents(
        TokenCache.build(str(corpus), made, tmp_path / "clean", settings=TextSettings(slots=32))
    )


def test_a_build_of_other_settings_is_not_gone_on_with(tmp_path, small_portions, monkeypatch):
    write_corpus(tmp_path / "corpus.txt", copies=100)
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(building, "write_index", stopped)
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path, "cache")
    assert (tmp_path / "cache.part" / "index" / "000000.json").exists()
    said: list[str] = []
    other = build(tmp_path, "cache", holdout=0.3, say=said.append)
    assert contents(other) == contents(build(tmp_path, "clean", holdout=0.3))
    assert not any("goes on" in line for line in said)


def test_a_data_set_of_the_hub_is_cached_as_a_file_is(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus.txt", copies=20)
    rows = [{"text": d.text} for d in iter_documents(corpus)]
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda *_, **__: iter(rows)))
    made = TokenCache.build(
        ["hf:org/name", "hf:org/name"], tokenizer("wordpiece"), tmp_path / "hub", settings=TextSettings(slots=32)
    )
    assert made.digest() == build(tmp_path, "files").digest()


def test_copies_are_known_from_long_ago(tmp_path):
    texts = [f"text {i}" for i in range(20)]
    (tmp_path / "a.txt").write_text("\n".join(texts * 2))
    report = ReadReport()
    assert [d.text for d in iter_documents(tmp_path / "a.txt", report=report)] == texts
    assert report.duplicates == 20


PLAIN = "one line of text that is long enough\nanother line of text that is long enough\n"


@pytest.mark.parametrize(
    ("text", "document", "found", "way"),
    [
        (PLAIN, "auto", 2, "line"),
        (PLAIN + "\n\n \n", "auto", 2, "line"),
        ("\n\n" + PLAIN + "\nthird paragraph\n", "auto", 2, "blank"),
        (PLAIN, "blank", 1, "blank"),
        (PLAIN + "\nthird", "line", 3, "line"),
        (PLAIN + "\nthird", "file", 1, "file"),
    ],
)
def test_where_documents_of_plain_text_end(tmp_path, text, document, found, way):
    (tmp_path / "a.txt").write_text(text)
    report = ReadReport()
    assert len(list(iter_documents(tmp_path / "a.txt", report=report, document=document))) == found
    assert report.parted == {way: 1}


def test_a_way_that_nothing_is_read_by_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "hello"}')
    with pytest.raises(UserError, match=r"document=line: no \.txt or \.md file"):
        list(iter_documents(tmp_path / "a.jsonl", document="line"))
    with pytest.raises(UserError, match="document=page"):
        list(iter_documents(tmp_path / "a.jsonl", document="page"))


def test_where_documents_end_and_what_is_too_short_is_said(tmp_path):
    (tmp_path / "corpus.txt").write_text(
        "\n".join(f"{i} the quick brown fox jumps over it" for i in range(30)) + "\nfox"
    )
    said: list[str] = []
    cache = build(tmp_path, "cache", say=said.append)
    assert len(cache) == cache.meta["documents"] - 1 == 30
    assert "documents of plain text end at every line in 1 file (document= blank, line or file)" in said
    assert "1 pieces of fewer than 8 tokens are left out" in said


def save_tiny(folder):
    from unmask.modalities.text.network.folder import new_text_model, save_folder

    made = tokenizer("wordpiece")
    model, family = new_text_model(
        "bert",
        vocabulary=made.vocab_size,
        width=16,
        layers=1,
        heads=2,
        inner=16,
        slots=32,
        tokenizer=made,
        dropout=0.0,
        decoder=None,
    )
    save_folder(folder, model=model, tokenizer=made, family=family, settings={})


def test_one_file_of_lines_has_intervals(tmp_path):
    """It was one document: the intervals over documents were null."""
    save_tiny(tmp_path / "model")
    (tmp_path / "held.txt").write_text("\n".join(f"{i} the quick brown fox jumps over it" for i in range(12)))
    texts = [d.text for d in iter_documents(tmp_path / "held.txt")]
    found = load(tmp_path / "model", precision="fp32").evaluate(texts)
    assert None not in found["intervals"]["loss"]


def test_a_tokenizer_of_the_same_files_is_not_trained_again(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.txt")
    said: list[str] = []

    def made(**more):
        settings = TextSettings(vocabulary=200, tokenizer_kind="unigram", **more)
        return build_tokenizer([str(corpus)], tmp_path / "run", settings, said.append).fingerprint()

    def trained() -> int:
        return sum(line.startswith("training a unigram tokenizer") for line in said)

    assert made() == made()
    assert trained() == 1
    made(holdout=0.3)
    corpus.write_text(corpus.read_text()[:-300])
    made(holdout=0.3)
    assert trained() == 3


def test_what_was_left_out_of_a_corpus_is_told(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"a text of some words\n\na text of some words\n\nl'\xe9t\xe9\n\nanother text of a few words\n")
    lines: list[str] = []
    TokenCache.build(
        path, tokenizer("wordpiece"), tmp_path / "cache", settings=TextSettings(slots=32, holdout=0.0), say=lines.append
    )
    assert "1 lines or rows are not UTF-8: the documents around them are left out, the first: " in "\n".join(lines)
    assert "a.txt:5 not UTF-8 (byte 0xe9)" in "\n".join(lines)
    assert "1 exact copies are left out" in lines


def test_what_a_folder_holds_and_is_not_read_is_told(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    write_corpus(data / "corpus.txt")
    alone = content_key([str(data)])
    (data / "notes.pdf").write_text("%PDF")
    (data / ".corpus.txt").write_text("an older copy")
    (data / "gone.txt").symlink_to("nowhere")
    assert content_key([str(data)]) == alone
    lines: list[str] = []
    TokenCache.build(
        data, tokenizer("wordpiece"), tmp_path / "cache", settings=TextSettings(slots=32), say=lines.append
    )
    assert lines[0] == (
        "3 files were not read: 1 link to nothing (gone.txt), 1 of a kind that is not read (.pdf), "
        "1 hidden (.corpus.txt)"
    )


def test_the_advice_on_where_documents_end_is_one_that_evaluate_takes(tmp_path, capsys):
    save_tiny(tmp_path / "model")
    (tmp_path / "held.txt").write_text("\n".join(f"{i} the quick brown fox jumps over it" for i in range(12)))
    for more in ((), ("--document", "line")):
        code, _, err = run(capsys, "evaluate", tmp_path / "model", tmp_path / "held.txt", "--precision", "fp32", *more)
        assert code == 0
        assert "documents of plain text end at every line in 1 file (--document blank, line or file)" in err


def test_every_command_that_reads_a_folder_says_what_it_does_not_read(tmp_path, capsys):
    data, small = tmp_path / "data", ("--set", "vocabulary=200", "--set", "slots=32", "--set", "batch_slots=64")
    data.mkdir()
    write_corpus(data / "corpus.txt")
    (data / "notes.pdf").write_text("%PDF")
    save_tiny(tmp_path / "model")
    for command in (
        ("pretrain", "text", data, "--out", tmp_path / "run", "--steps", 1, *small),
        ("prepare", "text", data, "--out", tmp_path / "prepared", "--workers", 1, *small[:4]),
        ("adapt", tmp_path / "model", data, "--out", tmp_path / "adapted", "--steps", 1),
        ("evaluate", tmp_path / "model", data),
    ):
        code, _, err = run(capsys, *command)
        assert code == 0, err
        assert err.count("1 file was not read: 1 of a kind that is not read (.pdf)") == 1, command[0]


@pytest.mark.parametrize("general", [(), ("--general", "general.txt")])
def test_of_one_text_nothing_can_be_held_out(tmp_path, capsys, monkeypatch, general):
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "model")
    Path("one.txt").write_text("the quick brown fox jumps over the lazy dog today\n" * 1000)
    write_corpus(Path("general.txt"))
    code, _, err = run(capsys, "adapt", "model", "one.txt", "--out", "adapted", "--steps", 2, *general)
    assert code == 2
    assert "999 exact copies are left out" in err
    assert "of which nothing can be held out to stop early by" in err
    assert "Give more" in err
    assert "(holdout)" not in err


TELLING = (
    "Dr. Smith came home at 3 p.m. yesterday and slept well. He had walked all the way from the station! "
    'Had anybody else at all seen him there by then? "Nobody did," said the keeper of the old inn. Oh. It was very '
    "late, and the road was dark.\nA new line begins here without a stop\nThen J. Jones arrived with the "
    "other guests, as they had said."
)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_sentences_are_examples_of_their_own_and_nothing_is_lost(tmp_path, kind):
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"text": TELLING}))
    made = Tokenizer.train([TELLING] * 9, kind=kind, vocab_size=400)
    found = {
        share: TokenCache.build(
            str(tmp_path / "corpus.jsonl"),
            made,
            tmp_path / str(share),
            settings=TextSettings(slots=512, sentences=share),
        )
        for share in (0.0, 1.0)
    }
    inside = {
        share: [cache.example(i)[0][len(made.before) : -len(made.after)] for i in range(len(cache))]
        for share, cache in found.items()
    }
    assert np.concatenate(inside[1.0]).tolist() == np.concatenate(inside[0.0]).tolist()
    assert all(cache.example(i)[1].max() >= 0 for cache in found.values() for i in range(len(cache)))
    starts = [made.decode(ids.tolist()).strip(' "')[:7] for ids in inside[1.0]]
    assert starts == ["Dr. Smi", "He had ", "Had any", "Nobody ", "Oh. It ", "A new l", "Then J."]
    assert len(inside[0.0]) == 1


def test_a_share_of_the_pieces_is_cut_into_sentences(tmp_path):
    write_corpus(tmp_path / "corpus.txt", copies=400)
    made, examples = tokenizer("wordpiece"), {}
    for share in (0.0, 0.5, 1.0):
        settings = TextSettings(slots=128, sentences=share)
        told = []
        files = str(tmp_path / "corpus.txt"), made, tmp_path / str(share)
        examples[share] = len(TokenCache.build(*files, settings=settings, say=told.append))
        cuts = examples[share] - examples[0.0]
        assert any(f"cut into sentences at {cuts:,} places" in line for line in told) == (share > 0)
    assert examples[0.0] < examples[0.5] < examples[1.0]
    expected = (examples[0.0] + examples[1.0]) / 2
    assert abs(examples[0.5] - expected) < 0.1 * expected


def test_a_corpus_without_ends_of_sentences_is_told(tmp_path):
    (tmp_path / "corpus.txt").write_text("and so it went on and on without a stop " * 90)
    told, settings = [], TextSettings(slots=32, sentences=1.0)
    TokenCache.build(
        str(tmp_path / "corpus.txt"), tokenizer("wordpiece"), tmp_path / "c", settings=settings, say=told.append
    )
    assert any("cut into sentences nowhere: none of those to be cut holds" in line for line in told)


@pytest.mark.parametrize("stop", [*".!?", "؟", "۔", "。", "｡", "।", "॥"])
@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_a_row_ends_behind_the_last_stop_that_fits(tmp_path, kind, stop):
    text = f"the river is near my home{stop} " * 90  # the rows hold no whole number of these
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"text": text}))
    made = Tokenizer.train([text, *text.split()] * 9, kind=kind, vocab_size=290 if kind == "bpe" else 60)
    cache = TokenCache.build(
        str(tmp_path / "corpus.jsonl"), made, tmp_path / "c", settings=TextSettings(slots=32, holdout=0.01)
    )
    last = [cache.example(i)[0][-1 - len(made.after)] for i in range(len(cache))]
    assert len(last) > 5
    assert {made.decode([token]).strip() for token in last} == {made.decode(made.encode([stop])[0].ids).strip()}
