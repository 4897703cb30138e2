"""States as features: one vector per text, or one per token, to .npy or .parquet; and search among a few texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unmask.core.inference import inference_mode, packed_batches
from unmask.errors import UserError, option
from unmask.modalities.text.uses.model import TextModel
from unmask.writing import written


def token_features(model: TextModel, texts: Sequence[str]) -> list[dict[str, Any]]:
    """For each text its tokens, their character offsets and their (tokens, width) states, special ones left out."""
    encoded = model.tokenizer.encode(list(texts), max_slots=model.slots)
    examples = model.examples(texts, max_slots=model.slots)
    out: list[dict[str, Any]] = [{} for _ in texts]
    with inference_mode(model.model), model.context():
        for batch, numbers in packed_batches(examples, model.slots):
            states = model.model.states(batch.to(model.device)).float().cpu().numpy()
            states, index = states.reshape(-1, states.shape[-1]), batch.index.numpy().ravel()
            for i, number in enumerate(numbers.tolist()):
                e = encoded[number]
                keep = ~e.special
                out[number] = {
                    "tokens": [model.tokenizer.token(t) for t in e.ids[keep]],
                    "offsets": e.offsets[keep],
                    "states": states[index == i][keep],
                }
    return out


def write_features(
    model: TextModel, texts: Sequence[str], out: str | Path, *, per_token: bool = False, pooling: str | None = None
) -> Path:
    """Write features: .npy (texts, width), or .parquet with text, and vector or tokens, starts, ends and vectors."""
    if per_token and pooling is not None:
        raise UserError(f"{option('pooling', pooling)} per token: nothing reads this", hint="Leave it out.")
    path = Path(out)
    if path.suffix not in (".npy", ".parquet") or (per_token and path.suffix == ".npy"):
        raise UserError(f"{out}", hint="Per-token features go to .parquet, pooled ones to .npy or .parquet.")
    with written(path) as temporary:
        if path.suffix == ".npy":
            np.save(temporary, model.embed(list(texts), pooling=pooling))
        else:
            import polars

            table: dict[str, Any] = {"text": list(texts)}
            if per_token:
                found = token_features(model, texts)
                table |= {
                    "tokens": [f["tokens"] for f in found],
                    "start": [f["offsets"][:, 0].tolist() for f in found],
                    "end": [f["offsets"][:, 1].tolist() for f in found],
                    "states": [f["states"].tolist() for f in found],
                }
            else:
                table["vector"] = model.embed(list(texts), pooling=pooling).tolist()
            polars.DataFrame(table).write_parquet(temporary)
    return path


class Index:
    """Search among texts that fit into memory: exact, by cosine or as the model's folder compares vectors.

    Args:
        model: a text model; one fine-tuned for similarity gives the better vectors.
        prompt_name: the folder's name of the prompt of these texts ("passage"); default as `TextModel.embed`.
    """

    def __init__(
        self, model: TextModel, texts: Sequence[str], *, pooling: str | None = None, prompt_name: str | None = None
    ) -> None:
        self.model, self.texts, self.pooling = model, list(texts), pooling
        self.vectors = model.embed(self.texts, pooling=pooling, prompt_name=prompt_name)

    def search(
        self, queries: Sequence[str], *, top: int = 10, prompt_name: str | None = None
    ) -> list[list[dict[str, Any]]]:
        """For each query its nearest texts: number, text, score (cosine, or see `Sentences.alike`), best first.

        Args:
            prompt_name: the folder's name of the prompt of queries ("query"); default as `TextModel.embed`.
        """
        vectors = self.model.embed(list(queries), pooling=self.pooling, prompt_name=prompt_name)
        found = self.model.folder.sentences.alike(vectors, self.vectors)
        top = min(top, len(self.texts))
        out = []
        for row in found:
            best = np.argpartition(-row, top - 1)[:top]
            best = best[np.argsort(-row[best], kind="stable")]
            out.append([{"number": int(i), "text": self.texts[i], "score": float(row[i])} for i in best])
        return out
