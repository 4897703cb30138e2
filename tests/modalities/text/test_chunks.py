"""Documents tokenised by their runs between white space have the tokens, units and ends of whole documents."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import AddedToken, pre_tokenizers

from text_corpus import tokenizer
from unmask.modalities.text.reading.documents import Document
from unmask.modalities.text.recipes import TextSettings
from unmask.modalities.text.tokens.building import recipe_of
from unmask.modalities.text.tokens.chunks import Chunks, never_over_white_space
from unmask.modalities.text.tokens.tokenising import tokenise
from unmask.modalities.text.tokens.tokenizer import Tokenizer

CONTROLS = "\x00\x0b\x0c\x1c\x1f\x85\x7f"
PARTS = [
    *["the", "Quick", "brown", "fox", "don't", "a'", "'", "3.14", "U.S.", "e-mail", "\u00e9t\u00e9", "\u00ad", "_x_"],
    *["e\u0301", "\u0301", "\u0308a", "\u200d", "\u200b", "\u2026", "\u2014", "\u201cso\u201d", "\u00a8"],
    *["\u1e9b\u0323", "\u4eca\u5929", "\u3002", "\u0e01\u0e33", "\u0e44\u0e17\u0e22", "\u0915\u094d\u0937\u093f"],
    *["\u0964", "\u0645\u0631\u062d\u0628\u0627\u064b", "\ud55c\u1100\u1161", "[MASK]", "[SEP]", "[mask]", "x" * 130],
    *["\U0001f468\u200d\U0001f469", "\ufb01", "\u0130", "\u03a3\u03c2"],
    *[*24 * " ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u2028", "\u3000", "\u1680", ". ", "! "],
]  # fmt: skip


def made(**settings):
    texts = ["".join(PARTS), "the quick brown fox jumps over 3.14 dogs"] * 3
    return Tokenizer.train(texts, kind="wordpiece", vocab_size=300, min_frequency=1, **settings)


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("folded", [{}, {"lowercase": True}, {"lowercase": True, "strip_accents": True}])
@pytest.mark.parametrize("most", [10**9, 200])
def test_runs_between_white_space_give_what_whole_documents_give(folded, share, most, monkeypatch):
    monkeypatch.setattr("unmask.modalities.text.tokens.chunks.MOST", most)
    draw = np.random.default_rng(0)
    group = []
    for number in range(600):
        parts = [PARTS[i] for i in draw.integers(0, len(PARTS), draw.integers(0, 80))]
        if number % 2:
            parts += ["quick", CONTROLS[number // 2 % len(CONTROLS)], "fox"]
        text = "".join(parts)
        group.append(Document(text=text, source="a.txt", line=1, entities=[(0, 3)] * (number % 5 == 0)))
    recipe = recipe_of(made(**folded), TextSettings(slots=32, sentences=share), min_tokens=1)
    chunks = Chunks(recipe.tokenizer)
    assert never_over_white_space(recipe.tokenizer)
    first = {}
    for part in (group[:200], group[200:]):
        expected, found = tokenise(part, recipe), tokenise(part, recipe, chunks)
        for name in expected.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
        first = first or chunks.numbers
    assert len(first) > 200
    assert (chunks.numbers is first) == (most > 200)


def test_tokenizers_whose_tokens_may_reach_over_white_space_are_known():
    assert not never_over_white_space(tokenizer("bpe"))
    assert not never_over_white_space(tokenizer("unigram"))
    spaced, eating, split = made(), made(), made()
    spaced.backend.add_tokens(["brown fox"])
    eating.backend.add_special_tokens([AddedToken("[X]", lstrip=True)])
    split.backend.pre_tokenizer = pre_tokenizers.Punctuation()
    assert not any(map(never_over_white_space, (spaced, eating, split)))
