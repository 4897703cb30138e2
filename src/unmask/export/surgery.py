"""Changes of a model's shape that keep what it says: longer positions, a smaller or a rounder vocabulary."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.core.token_codec import TokenCodec
from unmask.encoder.build import make_encoder
from unmask.encoder.config import Disentangled, Learned, Rotary
from unmask.errors import UserError, option
from unmask.modalities.text.tokens.tokenizer import Tokenizer


def extend_positions(model: Any, slots: int) -> None:
    """Let a model take longer texts, in place; what it says of texts up to its old length stays the same.

    A learned table is continued with copies of itself (as Longformer was begun: Beltagy et al. 2020, sec. 5): a start
    to train from. Rotary and disentangled positions only get the new number.
    """
    config = model.model.encoder.config
    old = config.longest
    if old is None or slots <= old:
        raise UserError(f"positions={slots}: the model takes {old}", hint="Give a larger number.")
    positions = dataclasses.replace(config.positions, slots=slots)
    if isinstance(positions, Disentangled) and (positions.absolute or positions.decoder_steps):
        raise UserError(
            "absolute positions beside disentangled ones cannot be extended", hint=f"Leave {option('positions')} out."
        )
    encoder = make_encoder(dataclasses.replace(config, positions=positions))
    state = model.model.encoder.state_dict()
    if isinstance(positions, Learned):
        name, offset = "stem.positions.weight", positions.offset
        table = state[name]
        state[name] = torch.cat([table[:offset], table[offset:].repeat(-(-slots // old), 1)[:slots]])
    encoder.load_state_dict(state)
    model.model.encoder = encoder.eval()
    key = "max_length" if model.folder.family.name == "neobert" else "max_position_embeddings"
    extra = positions.offset if isinstance(positions, Learned) else 0
    model.folder.hf_config[key] = slots + extra
    if isinstance(positions, Disentangled):  # a file may say -1, "as far as the context": that would grow with it
        model.folder.hf_config["max_relative_positions"] = positions.furthest
    _forget_layout(model)
    assert isinstance(positions, Learned | Rotary | Disentangled)


def pad_vocabulary(model: Any, multiple: int = 64) -> int:
    """Round the tables up to a multiple of rows, in place; new rows are zero and never predicted. Returns the rows."""
    if multiple < 1:
        raise UserError(f"pad_vocabulary={multiple}", hint="Expected 1 or more, such as 64.")
    codec = model.model.codec
    size = -(-codec.config.vocabulary // multiple) * multiple
    added = size - codec.config.vocabulary
    if added:
        spare = tuple(range(codec.config.vocabulary, size))
        _replace_tables(model, size, lambda t, value: torch.cat([t, t.new_full((added, *t.shape[1:]), value)]), spare)
    return added


def prune_vocabulary(model: Any, texts: Iterable[str]) -> dict[str, int]:
    """Keep the tokens that some texts need (and the special ones), in place.

    These texts are cut into the same tokens as before, and get the same probabilities among kept tokens.

    Returns:
        kept, before, and bytes saved (fp32).
    """
    data = json.loads(model.tokenizer.backend.to_str())
    used: set[int] = set()
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == 1000:
            used.update(int(i) for ids in model.tokenizer.ids(batch) for i in np.unique(ids))
            batch = []
    used.update(int(i) for ids in model.tokenizer.ids(batch) for i in np.unique(ids))
    if not used:
        raise UserError("no text to prune to", hint="Give a corpus.")
    keep = _closed(data, used | {int(i) for i in model.tokenizer.special_ids if i < model.tokenizer.vocab_size})
    number = {old: new for new, old in enumerate(keep)}
    before, width = model.model.codec.config.vocabulary, model.model.codec.config.width
    backend = type(model.tokenizer.backend).from_str(json.dumps(_renumber(data, number)))
    model.folder.tokenizer = Tokenizer(backend, dict(model.tokenizer.tokens))
    index = torch.tensor(keep)
    _replace_tables(model, len(keep), lambda t, _: t[index], ())
    for key, value in list(model.folder.hf_config.items()):
        if key.endswith("_token_id") and isinstance(value, int) and value in number:
            model.folder.hf_config[key] = number[value]
    return {"kept": len(keep), "before": before, "bytes_saved": 4 * (before - len(keep)) * (width + 1)}


def _replace_tables(model: Any, size: int, change: Any, spare: tuple[int, ...]) -> None:
    """A codec whose vocabulary tables are changed; the encoder stays."""
    old: TokenCodec = model.model.codec
    tokenizer = model.folder.tokenizer
    unused = set(range(size)) - set(tokenizer.backend.get_vocab(with_added_tokens=True).values())
    special = tuple(sorted(unused | set(spare) | {int(i) for i in tokenizer.special_ids}))
    mask = tokenizer.mask_id if tokenizer.mask_id is not None else 0
    new = TokenCodec(dataclasses.replace(old.config, vocabulary=size, special_ids=special, mask_id=mask))
    state: dict[str, Tensor] = dict(old.state_dict())
    for name in ("word.weight", "output.weight", "bias"):
        if name in state:
            # A row that must never be proposed gets no chance by its bias; without one it gets a score of 0.
            state[name] = change(state[name], -1e4 if name == "bias" else 0.0)
    new.load_state_dict(state)
    model.model.codec = new.eval()
    model.folder.hf_config["vocab_size"] = size
    _forget_layout(model)


def _forget_layout(model: Any) -> None:
    """Drop what a used model keeps of its old shape."""
    model.__dict__.pop("padding_free", None)


def _closed(data: dict[str, Any], used: set[int]) -> list[int]:
    """Ids to keep, ascending: the used ones, and for BPE what they are merged from, and single characters or bytes."""
    model = data["model"]
    kind = model.get("type")
    if kind == "Unigram":
        unknown = model.get("unk_id")
        return sorted(used | ({int(unknown)} if unknown is not None else set()))
    if kind not in ("WordPiece", "BPE"):
        raise UserError(f"a {kind} tokenizer cannot be pruned", hint="Known: WordPiece, BPE, Unigram.")
    vocabulary: dict[str, int] = model["vocab"]
    prefix = model.get("continuing_subword_prefix") or ""
    used = used | {i for t, i in vocabulary.items() if len(t.removeprefix(prefix)) == 1}
    if kind == "WordPiece":
        return sorted(used)
    token = {i: t for t, i in vocabulary.items()}
    for merge in reversed(model["merges"]):
        left, right = merge if isinstance(merge, list) else merge.split(" ")
        made = vocabulary.get(left + right.removeprefix(prefix) if prefix else left + right)
        if made in used and made in token:
            used |= {vocabulary[left], vocabulary[right]}
    return sorted(used)


def _renumber(data: dict[str, Any], number: dict[int, int]) -> dict[str, Any]:
    """tokenizer.json with other ids; entries without one are left out."""
    data = copy.deepcopy(data)
    model = data["model"]
    if isinstance(model["vocab"], list):
        model["vocab"] = [entry for i, entry in enumerate(model["vocab"]) if i in number]
        if model.get("unk_id") is not None:
            model["unk_id"] = number[model["unk_id"]]
    else:
        model["vocab"] = {t: number[i] for t, i in model["vocab"].items() if i in number}
    if "merges" in model:
        vocabulary, prefix = model["vocab"], model.get("continuing_subword_prefix") or ""
        pairs = [m if isinstance(m, list) else m.split(" ") for m in model["merges"]]
        model["merges"] = [
            [a, b]
            for a, b in pairs
            if a in vocabulary and b in vocabulary and a + (b.removeprefix(prefix) if prefix else b) in vocabulary
        ]
    data["added_tokens"] = [t | {"id": number[t["id"]]} for t in data.get("added_tokens", []) if t["id"] in number]
    data["post_processor"] = _renumber_processor(data.get("post_processor"), number)
    return data


def _renumber_processor(processor: Any, number: dict[int, int]) -> Any:
    """Ids within a post-processor: BERT's and RoBERTa's pairs, templates' lists, sequences of such."""
    if not isinstance(processor, dict):
        return processor
    out = dict(processor)
    for key in ("sep", "cls"):
        if isinstance(out.get(key), list):
            out[key] = [out[key][0], number[out[key][1]]]
    if isinstance(out.get("special_tokens"), dict):
        out["special_tokens"] = {
            name: entry | {"ids": [number[i] for i in entry["ids"]]} for name, entry in out["special_tokens"].items()
        }
    if isinstance(out.get("processors"), list):
        out["processors"] = [_renumber_processor(p, number) for p in out["processors"]]
    return out
