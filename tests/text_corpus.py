"""A small, fixed corpus and tokenizers trained on it, for the text tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from unmask.modalities.text.network.folder import TextFolder, new_text_model
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.modalities.text.uses.model import TextModel

MODEL_SLOTS = 64
SENTENCES = [
    "The quick brown fox jumps over the lazy dog near the river bank.",
    "Don't stop pretraining: adapt language models to domains and tasks.",
    "A masked language model hides some words and predicts them back.",
    "Readers of unbelievable stories rarely check the sources, do they?",
    "Return the number of rows in the table, or None when it is empty.",
    "今天天气很好，我们去公园散步。",
    "日本語の文章を単語に分けるのは難しいです。",
    "The naïve café owner said: 'it's fine' — and smiled.",
]


@cache
def tokenizer(kind: str, *, folded: bool = False) -> Tokenizer:
    """
    Args:
        folded: small letters without accents, as BERT's uncased models read.
    """
    texts = [f"{s} ({i})" for i in range(12) for s in SENTENCES]
    return Tokenizer.train(texts, kind=kind, vocab_size=400, min_frequency=1, lowercase=folded, strip_accents=folded)  # type: ignore[arg-type]


def write_corpus(path: Path, copies: int = 60) -> Path:
    """Paragraphs, all different, separated by blank lines."""
    parts = [
        f"{SENTENCES[i % len(SENTENCES)]} Paragraph {i}. {SENTENCES[(i * 3 + 1) % len(SENTENCES)]}"
        for i in range(copies)
    ]
    path.write_text("\n\n".join(parts), encoding="utf-8")
    return path


def made_model(kind: str = "wordpiece", recipe: str = "bert", seed: int = 0, *, folded: bool = False) -> TextModel:
    """A model of random weights, wide enough that words differ."""
    torch.manual_seed(seed)
    t = tokenizer(kind, folded=folded)
    model, family = new_text_model(
        recipe, vocabulary=t.vocab_size, width=32, layers=2, heads=2, slots=MODEL_SLOTS, tokenizer=t
    )
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.15)
    folder = TextFolder(model=model.eval(), tokenizer=t, family=family, hf_config={})
    return TextModel(folder=folder, device=torch.device("cpu"), precision="fp32")
