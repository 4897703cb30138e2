"""Tiny random models of every family, made and saved by transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from text_corpus import tokenizer

transformers = pytest.importorskip("transformers")

VOCABULARY = 400
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
V3 = {
    "max_position_embeddings": 64,
    "relative_attention": True,
    "position_buckets": 16,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "type_vocab_size": 0,
}
LONG = {"pad_token_id": 1, "max_position_embeddings": 66, "type_vocab_size": 1, "bos_token_id": 0, "eos_token_id": 2}
CASES = {
    "bert": ("Bert", {"max_position_embeddings": 64}),
    "bert-relu": ("Bert", {"max_position_embeddings": 64, "hidden_act": "relu", "layer_norm_eps": 1e-5}),
    "roberta": ("Roberta", {"pad_token_id": 1, "max_position_embeddings": 66, "type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", {"pad_token_id": 1, "max_position_embeddings": 66}),
    "camembert": ("Camembert", {"pad_token_id": 1, "max_position_embeddings": 66}),
    "electra-projected": ("Electra", {"embedding_size": 16, "max_position_embeddings": 64}),
    "electra": ("Electra", {"embedding_size": 32, "max_position_embeddings": 64}),
    "distilbert": (
        "DistilBert",
        {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 64},
    ),
    "albert": ("Albert", {"embedding_size": 16, "max_position_embeddings": 64}),
    "albert-groups": (
        "Albert",
        {"embedding_size": 16, "max_position_embeddings": 64, "num_hidden_groups": 2, "inner_group_num": 2},
    ),
    "mpnet": ("MPNet", {"max_position_embeddings": 66}),
    "deberta-v3": ("DebertaV2", {**V3, "legacy": False}),
    "deberta-legacy": ("DebertaV2", V3),
    "deberta-v2": (
        "DebertaV2",
        {
            **V3,
            "conv_kernel_size": 3,
            "conv_act": "gelu",
            "share_att_key": False,
            "position_buckets": -1,
            "norm_rel_ebd": "none",
            "position_biased_input": True,
            "type_vocab_size": 2,
        },
    ),
    "deberta-c2p": ("DebertaV2", {**V3, "pos_att_type": "c2p", "share_att_key": False, "embedding_size": 16}),
    "longformer": ("Longformer", {**LONG, "attention_window": [8, 16, 8, 4]}),
    "longformer-wide": ("Longformer", {**LONG, "attention_window": 64}),
    "bigbird": ("BigBird", {"max_position_embeddings": 64, "block_size": 4, "num_random_blocks": 1}),
    "bigbird-full": (
        "BigBird",
        {"max_position_embeddings": 64, "attention_type": "original_full", "rescale_embeddings": True},
    ),
    "eurobert": ("EuroBert", {"num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}),
    "eurobert-tied": ("EuroBert", {"tie_word_embeddings": True, "max_position_embeddings": 64, "pad_token_id": 0}),
    "modernbert-long": ("ModernBert", {"local_attention": 4, "max_position_embeddings": 64, **IDS}),
    "modernbert": ("ModernBert", {"local_attention": 16, "max_position_embeddings": 64, **IDS}),
}


def published(name: str, folder: Path):
    kind, extra = CASES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SMALL, **extra)
    model = getattr(transformers, f"{kind}ForMaskedLM")(config).eval()
    for parameter in model.parameters():
        # Larger than at initialisation, and biases and norms too, so that nothing can hide.
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    model.save_pretrained(folder)
    tokenizer("wordpiece").save(folder)
    return model


def task_head(name: str, task: str, folder: Path):
    """A tiny model with a task head (three classes), weights drawn."""
    kind, extra = CASES[name]
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**SMALL, **extra)
    if task.endswith("Classification"):
        config.num_labels = 3
    theirs = getattr(transformers, f"{kind}For{task}")(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    theirs.save_pretrained(folder)
    tokenizer("wordpiece").save(folder)
    return theirs


def unswitched(theirs):
    """A BigBird of transformers that has seen a short text has full attention for good: put its blocks back."""
    if theirs.config.model_type == "big_bird" and theirs.config.attention_type == "block_sparse":
        theirs.bert.set_attention_type("block_sparse")
    return theirs.eval()
