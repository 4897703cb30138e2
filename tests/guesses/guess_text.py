"""What the guesses of text.toml read: a masked model, a classifier, tags, answers; texts and labels in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import unmask
from tiny_folders import folder, sentiment
from unmask.text import finetune

TINY: dict[str, Any] = {"steps": 1, "start": "plain", "precision": "fp32", "device": "cpu"}


def names(home: Path) -> dict[str, Any]:
    folder(home / "lm")
    rows = sentiment(16)
    finetune(home / "lm", rows, home / "classifier", **TINY)
    words = ["the", "quick", "fox"]
    finetune(home / "lm", [{"tokens": words, "tags": ["O", "O", "B-ANIMAL"]}] * 4, home / "tagger", **TINY)
    answer = {"question": "who?", "context": "the quick fox", "answers": [{"text": "fox", "answer_start": 10}]}
    finetune(home / "lm", [answer] * 4, home / "qa", **TINY)
    texts, labels = map(list, zip(*rows, strict=True))
    (home / "corpus.txt").write_text("\n".join(texts))
    (home / "train.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    model, blank = unmask.load(home / "lm"), "the quick [MASK] jumps"
    return {"texts": texts[:2], "X": texts, "y": labels, "blank": blank, "model": model, "tiny": TINY}
