"""Names of other libraries: functions that unmask has not, each with our call, which an error says; and settings and
arguments, taken as ours where they mean the same, else answered too.

What costs a line is there under their name instead (`encode`, `from_pretrained`, `pipeline`); tests/guesses holds both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from unmask.errors import UserError, setting

R = TypeVar("R")

FUNCTIONS: Mapping[str, str] = {
    "*ForPreTraining": "unmask.load(folder)",
    "*ForImageClassification": "unmask.finetune(model, pictures, labels), then unmask.load(folder)",
    "*ImageProcessor*": "nothing, pictures are read as they are: unmask.load(folder).embed(pictures)",
    "*FeatureExtractor": "nothing, pictures are read as they are: unmask.load(folder).embed(pictures)",
    "create_model": "unmask.images.pretrain(pictures, out), or unmask.load(file) of timm's weights",
    "Image[FD]*": "the folder itself as data: unmask.images.pretrain('photos')",
    "transforms": "settings as keywords: unmask.images.pretrain(pictures, image_size=224, crop=(0.6, 1.0), flip=False)",
    "DataLoader": "a folder, arrays or a data set as data: unmask.images.finetune(model, data)",
    "*_learner": "unmask.images.finetune(model, pictures, labels)",
    "MIMIC*Dataset": "unmask.events.convert(folder, out)",
    "OMOPDataset": "unmask.events.convert(folder, out)",
    "MEDS*Dataset": "unmask.events.read_meds(folder)",
    "*Database": "unmask.events.read_meds(folder)",
    "load_meds": "unmask.events.read_meds(folder)",
    "TaskExtractorConfig": "the task file as labels: unmask.finetune(model, meds, labels='task.yaml')",
    "query": "unmask.events.labels(meds, 'task.yaml'), or the file as labels=",
    "compute_features": "unmask.load(model).embed(meds, labels), a vector per prediction time",
    "tabularize*": "unmask.load(model).embed(meds, labels), a vector per prediction time",
    "describe_codes": "unmask.events.audit(meds)",
    "RETAIN": "unmask.events.pretrain(meds, out), then unmask.finetune(out, meds, labels=task)",
    "split_by_patient": "metadata/subject_splits.parquet in the MEDS folder, or holdout=0.2: patients are kept whole",
    "IterativeImputer": "unmask.MaskedImputer().fit_transform(X), or unmask.impute(frame)",
    "SimpleImputer": "unmask.MaskedImputer().fit_transform(X), or unmask.impute(frame)",
    "KNNImputer": "unmask.MaskedImputer().fit_transform(X), or unmask.impute(frame)",
    "MissForest": "unmask.MaskedImputer().fit_transform(X), or unmask.impute(frame)",
    "ImputationKernel": "unmask.MultipleImputation(5).fit(frame), then .pool('y ~ x')",
    "[Mm][Ii][Cc][Ee]*": "unmask.MultipleImputation(5).fit(frame), then .pool('y ~ x')",
    "complete": "unmask.MultipleImputation(5).fit(frame).complete(1)",
    "pool": "unmask.MultipleImputation(5).fit(frame).pool('y ~ x')",
    "*Synthesizer": "unmask.synthesize(frame, rows=500)",
    "CTGAN": "unmask.synthesize(frame, rows=500)",
    "*Metadata": "unmask.table.describe(frame), which says what each column is",
    "evaluate_quality": "unmask.table.evaluate(model, frame); of patients unmask.events.compare(new, meds)",
    "run_diagnostic": "unmask.table.evaluate(model, frame)",
    "CoxPHFitter": "unmask.MultipleImputation(20, duration='time', event='event').fit(frame).pool_cox(['age'])",
    "sample": "unmask.synthesize(frame, rows=500); of patients unmask.events.generate(meds, 500, out)",
    "synthesize": "unmask.events.generate(meds, 500, out); of a table unmask.synthesize(frame, rows=500)",
    "read_csv": "the path as data: unmask.impute('cohort.csv')",
    "*ForMaskedLM": "unmask.load(folder)",
    "*ForSequenceClassification": "unmask.finetune(model, data, task='classify'), then unmask.load(folder)",
    "*ForTokenClassification": "unmask.finetune(model, data, task='tag'), then unmask.load(folder)",
    "*ForQuestionAnswering": "unmask.finetune(model, data, task='answer'), then unmask.load(folder)",
    "*ForCausalLM": "unmask.load(folder).generate(prefix=text)",
    "AutoModel*": "unmask.load(folder)",
    "*TokenizerTrainer": "unmask.text.pretrain(texts, out, vocabulary=16384), which trains the tokenizer too",
    "*Tokenizer*": "unmask.load(folder).tokenizer",
    "*Config": "settings as keywords: unmask.text.pretrain(texts, out, width=128, layers=4)",
    "SentenceTransformer": "unmask.load(folder).encode(texts)",
    "CrossEncoder": "unmask.finetune(model, pairs, task='classify')",
    "InputExample": "rows as tuples: (text, text2, score)",
    "losses": "unmask.finetune(model, pairs, task='similarity', loss='multiple_negatives')",
    "*Trainer": "unmask.finetune(model, data, out), or unmask.text.pretrain(texts, out)",
    "*TrainingArguments": "settings as keywords: unmask.finetune(model, data, out, epochs=3)",
    "DataCollator*": "unmask.text.pretrain(texts, out, ratio=0.15), which hides tokens itself",
    "load_dataset": "the name itself as data: unmask.text.pretrain('hf:NAME', out)",
    "Dataset": "a list, a frame or a file as data",
    "train*": "unmask.finetune(model, data, out), or unmask.text.pretrain(texts, out)",
    "fit": "unmask.finetune(model, data, out)",
    "set_seed": "the setting seed=: unmask.finetune(model, data, seed=1)",
    "load_model": "unmask.load(folder)",
    "from_pretrained": "unmask.load(folder)",
    "fill": "unmask.fill(model, texts)",
    "embed": "unmask.embed(model, data)",
    "score": "unmask.score(model, data)",
    "generate": "unmask.load(folder).generate(prefix=text)",
    "util": "unmask.load(folder).similarity(texts, others)",
    "fill_mask": "unmask.fill(model, texts)",
}
"""Pattern of a name in a module -> our call; the first that fits counts."""


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
FITTING: Mapping[str, str] = {
    "duration_col": "duration",
    "event_col": "event",
    "entry_col": "entry",
    "random_state": "seed",
}
"""Argument of what is fitted to a table elsewhere (lifelines, scikit-learn) -> ours of the same meaning."""


def ours(name: str, calls: Mapping[str, R]) -> R | None:
    """What a name of another library stands for, by the first of the names and patterns that fits; None for none.

    >>> ours("BertTokenizerFast", FUNCTIONS)
    'unmask.load(folder).tokenizer'
    """
    return next((call for pattern, call in calls.items() if fnmatchcase(name, pattern)), None)


def own_settings(given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Settings by our names, of a verb that has the `known` ones.

    >>> own_settings({"num_train_epochs": 3, "seed": 1}, ["epochs", "seed"])
    {'epochs': 3, 'seed': 1}
    """
    found: dict[str, Any] = {}
    for key, value in given.items():
        name = SAME[key] if key not in known and SAME.get(key) in known else key
        if name in found:
            raise UserError(f"{key} and {name}: the same setting", hint=f"Give {setting(name)} alone.")
        found[name] = value
    return found
