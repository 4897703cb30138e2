"""Tiny text model folders, made in milliseconds, for the task tests."""

from __future__ import annotations

from pathlib import Path

import torch

from text_corpus import tokenizer
from unmask.modalities.text.network.folder import new_text_model, save_folder


def folder(path: Path, *, recipe: str = "bert", kind: str = "wordpiece", seed: int = 0, layers: int = 2) -> Path:
    torch.manual_seed(seed)
    made = tokenizer(kind)
    model, family = new_text_model(
        recipe, vocabulary=made.vocab_size, width=32, layers=layers, heads=2, slots=64, tokenizer=made
    )
    save_folder(path, model=model.eval(), tokenizer=made, family=family)
    return path


def sentiment(rows: int = 48) -> list[tuple[str, str]]:
    words = {"good": "The quick brown fox jumps", "bad": "Readers rarely check the sources"}
    return [(f"{words[label]} {i % 7}", label) for i in range(rows) for label in ("good", "bad")][:rows]
