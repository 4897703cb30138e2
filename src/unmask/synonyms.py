"""Settings by their names in other libraries (transformers, sentence-transformers, scikit-learn, timm): taken as ours
where they mean the same, else named in the error."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from unmask.errors import UserError, setting

SAME: Mapping[str, str] = {
    **dict.fromkeys(("num_train_epochs", "num_epochs", "n_epochs", "max_epochs"), "epochs"),
    **dict.fromkeys(("max_steps", "num_train_steps", "n_steps"), "steps"),
    **dict.fromkeys(("per_device_train_batch_size", "train_batch_size", "batch_size"), "batch"),
    "lr": "learning_rate",
    "warmup_ratio": "warmup",
    "lr_scheduler_type": "schedule",
    "max_grad_norm": "clip",
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "adam_epsilon": "epsilon",
    "gradient_checkpointing": "checkpointing",
    "early_stopping_patience": "patience",
    **dict.fromkeys(("random_state", "random_seed"), "seed"),
    **dict.fromkeys(("hidden_size", "embed_dim", "d_model", "hidden_dim"), "width"),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layers", "depth"), "layers"),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_heads"), "heads"),
    "intermediate_size": "inner",
    **dict.fromkeys(("max_length", "max_seq_length", "max_seq_len", "block_size", "max_position_embeddings"), "slots"),
    "vocab_size": "vocabulary",
    **dict.fromkeys(("mlm_probability", "mask_ratio", "mask_prob"), "ratio"),
    **dict.fromkeys(("img_size", "input_size"), "image_size"),
    "patch_size": "patch",
    "hidden_dropout_prob": "dropout",
}
"""Name elsewhere -> our setting of the same meaning and unit; it counts where the verb has that setting."""


REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("fp16", "bf16", "torch_dtype", "use_amp"), "precision='bf16'"),
    **dict.fromkeys(("no_cuda", "use_cpu"), "device='cpu'"),
    **dict.fromkeys(("evaluation_strategy", "eval_strategy", "eval_steps"), "evaluate_every=100, in steps"),
    **dict.fromkeys(("warmup_steps", "num_warmup_steps"), "warmup=0.1, a share of the run"),
    **dict.fromkeys(("logging_steps", "save_steps", "save_strategy"), "checkpoints=True, checkpoint_seconds=300"),
    **dict.fromkeys(("text_column", "label_column"), "columns=unmask.text.Columns(text='COLUMN', label='COLUMN')"),
    "gradient_accumulation_steps": "a larger batch: a step is split by itself where memory is short",
    **dict.fromkeys(("tokenizer", "processing_class"), "nothing: the model's folder has its tokenizer"),
    **dict.fromkeys(("num_labels", "id2label", "label2id"), "nothing: the labels are counted in the data"),
    **dict.fromkeys(("data_collator", "compute_metrics", "callbacks"), "nothing: metrics are the task's own"),
}
"""Argument of trainers elsewhere -> what to give here; for `guessed.also_called` of verbs."""
ARGUMENTS: Mapping[str, str] = {
    **dict.fromkeys(("output_dir", "output_path", "save_dir", "save_path"), "out"),
    **dict.fromkeys(("eval_dataset", "validation_data", "eval_data"), "validation"),
    **dict.fromkeys(("train_dataset", "train_data", "dataset", "texts"), "data"),
    "resume_from_checkpoint": "resume",
}
"""Argument of trainers elsewhere -> ours of the same meaning."""


def ours(given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Settings by our names, of a verb that has the `known` ones.

    >>> ours({"num_train_epochs": 3, "seed": 1}, ["epochs", "seed"])
    {'epochs': 3, 'seed': 1}
    """
    found: dict[str, Any] = {}
    for key, value in given.items():
        name = SAME[key] if key not in known and SAME.get(key) in known else key
        if name in found:
            raise UserError(f"{key} and {name}: the same setting", hint=f"Give {setting(name)} alone.")
        found[name] = value
    return found
