"""Names that other libraries have and unmask has not, each with our call: what an error says of them.

What costs a line is there under their name instead (`encode`, `from_pretrained`, `pipeline`); tests/guesses holds both.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

FUNCTIONS: Mapping[str, str] = {
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
    "evaluate_quality": "unmask.table.evaluate(model, frame)",
    "run_diagnostic": "unmask.table.evaluate(model, frame)",
    "CoxPHFitter": "unmask.MultipleImputation(20, duration='time', event='event').fit(frame).pool_cox(['age'])",
    "sample": "unmask.synthesize(frame, rows=500)",
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
    "util": "unmask.load(folder).similarity(texts, others)",
    "fill_mask": "unmask.fill(model, texts)",
}
"""Pattern of a name in a module -> our call; the first that fits counts."""

METHODS: Mapping[str, str] = {
    "fill_mask": "model.fill(texts)",
    "unmask": "model.fill(texts)",
    "predict_mask*": "model.fill(texts)",
    "transform": "model.embed(texts)",
    "fit*": "model.finetune(data, out)",
    "train*": "model.finetune(data, out)",
    "perplexity": "model.score(texts), whose rows have a perplexity",
    "log_prob*": "model.score(texts)",
    "classify": "model.predict(texts), or model.zero_shot(texts, labels) without training",
    "push_to_hub": "model.save(folder), which the package huggingface_hub uploads: HfApi().upload_folder",
    "resize_token_embeddings": "unmask surgery, on the command line",
    "eval": "nothing: a loaded model predicts; model.model is the module of torch",
    "to": "unmask.load(folder, device='cuda')",
    "cuda": "unmask.load(folder, device='cuda')",
    "half": "unmask.load(folder, precision='bf16')",
    "parameters": "model.model.parameters(): model.model is the module of torch",
    "num_parameters": "model.inspect()['parameters']",
    "state_dict": "model.model.state_dict(): model.model is the module of torch",
    "config": "model.inspect()",
    "summary": "print(model), or model.inspect()",
}
"""Pattern of an attribute of a loaded model -> our call."""


def ours(name: str, calls: Mapping[str, str]) -> str:
    """Our call for a name of another library; "" where it is none."""
    return next((call for pattern, call in calls.items() if fnmatchcase(name, pattern)), "")


def missing(owner: str, name: str, calls: Mapping[str, str], known: Iterable[str]) -> str:
    """What an AttributeError says: our call where the name is one of another library, else the closest of the known.

    >>> missing("module 'unmask'", "BertTokenizerFast", FUNCTIONS, [])
    "module 'unmask' has no attribute 'BertTokenizerFast': here it is unmask.load(folder).tokenizer"
    >>> missing("module 'unmask'", "finetun", FUNCTIONS, ["finetune"])
    "module 'unmask' has no attribute 'finetun': did you mean 'finetune'?"
    """
    what = f"{owner} has no attribute {name!r}"
    if call := ours(name, calls):
        return f"{what}: here it is {call}"
    close = difflib.get_close_matches(name, known, n=1)
    return f"{what}: did you mean {close[0]!r}?" if close else what
