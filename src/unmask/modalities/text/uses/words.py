"""Words by their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unmask.modalities.text.network.loaded import LoadedText
from unmask.modalities.text.uses.blanks import marks_spaces


def nearest_words(model: LoadedText, words: Sequence[str], k: int = 8) -> list[dict[str, Any]]:
    """Nearest vocabulary entries of each word; see `TextModel.nearest_words`."""
    table = model.model.codec.word.weight.detach().float().cpu().numpy()
    table = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    names = [model.tokenizer.token(i).lstrip("Ġ▁") for i in range(model.tokenizer.vocab_size)]
    names += [""] * (len(table) - len(names))
    alone = np.array([n.isalpha() and len(n) > 1 for n in names], bool)
    out = []
    for word in words:
        spellings = (f"Ġ{word}", f"▁{word}", word) if marks_spaces(model.tokenizer) else (word, word.lower())
        number = next((i for s in spellings if (i := model.tokenizer.id(s)) is not None), None)
        if number is None:
            continue
        cosine = np.where(alone & (np.array(names) != names[number]), table @ table[number], -2)
        best = np.argsort(-cosine)[:k]
        out.append({"word": word, "neighbours": [(names[i], float(cosine[i])) for i in best]})
    return out
