import errno
import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from text_corpus import SENTENCES, tokenizer, write_corpus
from unmask.errors import UserError
from unmask.modalities.text.recipes import TextSettings, with_overrides
from unmask.modalities.text.tokens import cache
from unmask.modalities.text.tokens import tokenising as module
from unmask.modalities.text.tokens.building import MIN_TOKENS
from unmask.modalities.text.tokens.cache import TokenCache, content_key
from unmask.modalities.text.tokens.tokenising import cut
from unmask.modalities.text.tokens.tokenizer import Tokenizer


@given(starts=st.lists(st.booleans(), min_size=1, max_size=80), room=st.integers(1, 20), seed=st.integers(0, 9))
def test_pieces_are_the_document(starts, room, seed):
    starts = np.array([1, *starts[1:]], np.uint8)
    ids = np.random.default_rng(seed).integers(0, 5, len(starts))
    pieces = cut(ids, starts, room, np.array([0]))
    assert [i for begin, end in pieces for i in range(begin, end)] == list(range(len(ids)))
    assert all(0 < end - begin <= room for begin, end in pieces)


SMALL = TextSettings(slots=32, holdout=0.2)


def build(tmp_path, least=MIN_TOKENS, **options):
    path = tmp_path / "corpus.txt"
    path = path if path.exists() else write_corpus(path)
    return TokenCache.build(
        [str(path)],
        tokenizer("wordpiece"),
        tmp_path / "cache",
        settings=with_overrides(SMALL, options),
        min_tokens=least,
    )


def by_document(cache, tmp_path) -> list[tuple[list[int], list[int]]]:
    """(token ids, example numbers) of each document of the corpus, in order."""
    texts = (tmp_path / "corpus.txt").read_text(encoding="utf-8").split("\n\n")
    number, out = 0, []
    for e in tokenizer("wordpiece").encode(texts, specials=False):
        first, size = number, 0
        while size < len(e):
            size += len(cache.example(number)[0]) - 2
            number += 1
        out.append((e.ids.tolist(), list(range(first, number))))
    return out


def test_examples_are_the_documents_tokens(tmp_path):
    cache = build(tmp_path, least=1)
    documents = by_document(cache, tmp_path)
    assert documents[-1][1][-1] == len(cache) - 1
    for tokens, numbers in documents:
        mine = [cache.example(i) for i in numbers]
        assert np.concatenate([ids[1:-1] for ids, _ in mine]).tolist() == tokens
        for ids, units in mine:
            assert (ids[0], ids[-1], units[0], units[-1]) == (2, 3, -1, -1)
            assert len(ids) <= 32
            assert (np.diff(units[1:-1]) >= 0).all()


def test_no_document_is_in_both_splits(tmp_path):
    cache = build(tmp_path, least=1)
    assert len(cache.validation)
    for _, numbers in by_document(cache, tmp_path):
        assert len(set(np.isin(numbers, cache.train).tolist())) == 1
    assert sorted([*cache.train, *cache.validation]) == list(range(len(cache)))
    assert (cache.lengths == [len(cache.example(i)[0]) for i in range(len(cache))]).all()


@pytest.mark.parametrize("adds", [None, "[CLS] $A", "$A [SEP]"])
def test_an_example_begins_and_ends_as_a_text_in_use_does(adds, tmp_path):
    backend = Backend.from_str(tokenizer("wordpiece").backend.to_str())
    backend.post_processor = adds and TemplateProcessing(single=adds, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    made = Tokenizer(backend)
    text = " ".join(SENTENCES[:2])
    (tmp_path / "one.txt").write_text(text, encoding="utf-8")
    cache = TokenCache.build(str(tmp_path / "one.txt"), made, tmp_path / "cache", settings=TextSettings(slots=64))
    assert len(cache) == 1
    assert cache.example(0)[0].tolist() == made.encode([text])[0].ids.tolist()


def test_a_file_without_permission_is_named(tmp_path, monkeypatch):
    path = write_corpus(tmp_path / "corpus.txt")

    def refused(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(type(path), "open", refused)
    with pytest.raises(UserError, match=r"corpus\.txt: cannot be read"):
        build(tmp_path)


@pytest.mark.parametrize("piece", [500_000, 12])
def test_an_entity_is_one_unit(piece, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PIECE_CHARACTERS", piece)
    text = "  The quick brown fox jumps over the lazy dog."
    start = text.index("brown")
    row = {"text": text, "entities": [{"start": start, "end": start + len("brown fox"), "label": "animal"}]}
    (tmp_path / "one.jsonl").write_text(json.dumps(row), encoding="utf-8")

    def words(hide):
        made, settings = tokenizer("wordpiece"), TextSettings(hide=hide)
        cache = TokenCache.build(str(tmp_path / "one.jsonl"), made, tmp_path / "cache", settings=settings)
        ids, units = cache.example(0)
        return [tokenizer("wordpiece").decode(ids[units == unit]) for unit in range(units.max() + 1)]

    assert words("word")[2:4] == ["brown", "fox"]
    assert words("entity")[2:4] == ["brown fox", "jumps"]
    (tmp_path / "one.jsonl").write_text(json.dumps(row | {"entities": [3]}))
    with pytest.raises(UserError, match=r"one\.jsonl:1: entities is \[3\]"):
        words("entity")
    (tmp_path / "one.jsonl").write_text(json.dumps({"text": text}))
    with pytest.raises(UserError, match="no entity is marked"):
        words("entity")


def test_one_document_holds_out_its_end(tmp_path):
    (tmp_path / "corpus.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60, encoding="utf-8")
    cache = build(tmp_path)
    assert cache.meta["held_out_by"] == "tail"
    held = list(cache.validation)
    assert held == list(range(len(cache) - len(held), len(cache)))
    assert len(held) == -(-len(cache) // 5)
    assert [*cache.train, *held] == list(range(len(cache)))


def test_frequencies_count_training_tokens_only(tmp_path):
    cache = build(tmp_path)
    ids = np.concatenate([cache.example(int(i))[0][1:-1] for i in cache.train])
    assert (cache.frequencies() == np.bincount(ids, minlength=tokenizer("wordpiece").vocab_size)).all()


def test_reused_when_nothing_changed_and_rebuilt_when_something_did(tmp_path, monkeypatch):
    first = build(tmp_path)
    stamp = (tmp_path / "cache" / "shards" / "000000.tokens.bin").stat().st_mtime_ns
    assert build(tmp_path).meta == first.meta
    assert (tmp_path / "cache" / "shards" / "000000.tokens.bin").stat().st_mtime_ns == stamp
    assert build(tmp_path, seed=1).meta["key"] != first.meta["key"]


def test_a_copy_is_the_same_corpus_and_an_edit_within_is_another(tmp_path, monkeypatch):
    corpus = tmp_path / "corpus.txt"
    corpus.write_bytes(b"a" * 3_000_000)
    about = corpus.stat()
    first = content_key([str(corpus)])
    os.utime(corpus, ns=(1, 1))
    assert content_key([str(corpus)]) == first
    corpus.write_bytes(b"a" * 1_500_000 + b"b" + b"a" * 1_499_999)
    os.utime(corpus, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert content_key([str(corpus)]) != first

    monkeypatch.setattr(cache, "READ_WHOLE", 2_000_000)  # of files too large to be read whole, the time tells
    large = content_key([str(corpus)])
    os.utime(corpus, ns=(1, 1))
    assert content_key([str(corpus)]) != large


@pytest.mark.parametrize("error", [RuntimeError("killed"), OSError(errno.ENOSPC, "No space left on device")])
def test_a_crash_half_way_leaves_nothing_and_the_next_run_builds(tmp_path, monkeypatch, error):
    def broken(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(module, "cut", broken)
        with pytest.raises((RuntimeError, UserError), match=r"killed|disk full"):
            build(tmp_path)
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "cache.part").exists()
    assert len(build(tmp_path))


@pytest.mark.parametrize(
    "name", ["shards/000000.tokens.bin", "shards/000000.starts.bin", "offsets.bin", "split.bin", "meta.json"]
)
def test_a_damaged_cache_is_named(tmp_path, name):
    build(tmp_path)
    path = tmp_path / "cache" / name
    whole = bytearray(path.read_bytes())
    # The split, and the digits of meta.json, are what would be taken for others.
    at = whole.index(b'"documents": ') + 13 if name == "meta.json" else len(whole) // 2
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(UserError, match=f"{name}: altered since it was written"):
        TokenCache.open(tmp_path / "cache")
    path.write_bytes(whole[:-5])
    with pytest.raises(UserError, match=f"{name}: .* bytes, .* were written|not a token cache"):
        TokenCache.open(tmp_path / "cache")


def test_pieces_are_cut_between_units(tmp_path):
    starts = np.array([1, 1, 0, 0, 1, 1, 1, 0], np.uint8)
    # The stop (token 9) inside a unit is not a sentence's end.
    ids = np.array([1, 2, 3, 9, 9, 4, 5, 6])
    assert cut(ids, starts, 3, np.array([9])) == [(0, 1), (1, 4), (4, 6), (6, 8)]


def test_a_long_document_is_tokenised_in_pieces_and_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PIECE_CHARACTERS", 50)
    monkeypatch.setattr(module, "GROUP_CHARACTERS", 300)
    test_examples_are_the_documents_tokens(tmp_path)


def test_a_half_built_folder_is_cleared_away(tmp_path):
    (tmp_path / "cache.part" / "shards").mkdir(parents=True)
    (tmp_path / "cache.part" / "shards" / "000000.tokens.bin").write_bytes(b"half")
    assert len(build(tmp_path))
    assert not (tmp_path / "cache.part").exists()


def test_a_cache_of_another_version_is_replaced(tmp_path):
    build(tmp_path)
    meta = tmp_path / "cache" / "meta.json"
    whole = meta.read_text()
    meta.write_text(json.dumps(json.loads(whole) | {"key": "of another version"}))
    assert len(build(tmp_path))
    assert json.loads(meta.read_text())["key"] == json.loads(whole)["key"]


def test_a_folder_with_other_things_is_not_removed(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match=r"not a token cache, it holds thesis\.txt"):
        build(tmp_path)
    assert (tmp_path / "cache" / "thesis.txt").exists()


def test_metadata_that_does_not_fit_is_named(tmp_path):
    import json

    build(tmp_path)
    path = tmp_path / "cache" / "meta.json"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps(meta | {"version": 0}))
    with pytest.raises(UserError, match="another version"):
        TokenCache.open(tmp_path / "cache")
