"""A tokenizer hears every file and language, whatever their order; what it does not know is said, and refused where it
is much."""

from __future__ import annotations

import pytest

from text_corpus import SENTENCES, tokenizer, write_corpus
from unmask.errors import UserError
from unmask.modalities.text.reading.documents import pieces
from unmask.modalities.text.recipes import TextSettings
from unmask.modalities.text.tokens import corpus as room
from unmask.modalities.text.tokens.cache import TokenCache
from unmask.modalities.text.tokens.scanning import PIECE, number_of, thinned


def languages(folder, sizes=(400, 80)):
    """English lines and Chinese lines, a document each."""
    for name, text, count in zip("ab", (SENTENCES[2], SENTENCES[5]), sizes, strict=True):
        rows = [f'{{"text": "{i} {text} {i * 7}"}}' for i in range(count)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return [str(folder / "a.jsonl"), str(folder / "b.jsonl")]


def sampled(texts, most):
    kept, _ = thinned(((number_of(piece), piece) for text in texts for piece in pieces(text, PIECE)), most)
    return [piece for _, piece in sorted(kept)]


def test_what_is_sampled_does_not_depend_on_order(rng):
    texts = [f"text number {i} " * int(rng.integers(1, 60)) for i in range(300)]
    found = sampled(texts, 20_000)
    assert found == sampled(texts[::-1], 20_000)
    assert 8_000 < sum(map(len, found)) <= 20_000
    assert sorted(sampled(texts, 10**9)) == sorted(texts)


def test_a_long_book_is_sampled_within():
    book = " ".join(f"word{i}" for i in range(40_000))
    found = sampled([book], 100_000)
    assert 40_000 < sum(map(len, found)) <= 100_000


def test_a_language_in_the_last_file_is_known_to_the_tokenizer(tmp_path, monkeypatch):
    """Its share was 0 where the first file filled the limit."""
    monkeypatch.setattr(room, "TOKENIZER_CHARACTERS", 12_000)
    files = languages(tmp_path)
    settings = TextSettings(vocabulary=200)
    made = [
        room.build_tokenizer(f, tmp_path / f"out{i}", settings, lambda text: None)
        for i, f in enumerate((files, files[::-1]))
    ]
    assert made[0].fingerprint() == made[1].fingerprint()
    for file in files:
        cache = TokenCache.build([file], made[0], tmp_path / f"cache-{file[-7]}", min_tokens=1)
        assert cache.meta["unknown"] < 0.005


def test_a_corpus_that_the_tokenizer_does_not_know_is_refused(tmp_path):
    from tokenizers import Tokenizer as Backend

    from unmask.modalities.text.tokens.tokenizer import Tokenizer

    english = Tokenizer.train([SENTENCES[0]] * 9, vocab_size=200, min_frequency=1)
    assert isinstance(english.backend, Backend)
    files = languages(tmp_path)
    cache = TokenCache.build(files[1:], english, tmp_path / "cache", min_tokens=1)
    assert cache.meta["unknown"] > 0.3
    with pytest.raises(UserError, match="unknown to the tokenizer"):
        room.check_unknown(cache.unknown, print)


def test_a_second_builder_of_a_cache_waits_and_takes_the_first_ones(tmp_path, capfd):
    """Both wrote into one folder before: FileNotFoundError, or offsets that do not fit the tokens."""
    import threading

    corpus = write_corpus(tmp_path / "corpus.txt", copies=400)
    found: list[TokenCache] = []

    def build() -> None:
        found.append(
            TokenCache.build([corpus], tokenizer("wordpiece"), tmp_path / "cache", settings=TextSettings(slots=32))
        )

    builders = [threading.Thread(target=build) for _ in range(3)]
    for b in builders:
        b.start()
    for b in builders:
        b.join()
    assert len({c.digest() for c in found}) == 1
    assert len(found) == 3
    assert TokenCache.open(tmp_path / "cache").digest() == found[0].digest()
