"""Names that other libraries have and unmask has not, each with our call: what an error says of them.

What costs a line is there under their name instead (`encode`, `from_pretrained`, `pipeline`); tests/guesses holds both.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

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
    "TaskExtractorConfig": "labels=folder of what ACES wrote: unmask.finetune(model, meds, labels=folder)",
    "query": "labels=folder of what ACES wrote: unmask.finetune(model, meds, labels=folder)",
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
    "from_pretrained": "unmask.load(folder)",
    "fill": "unmask.fill(model, texts)",
    "embed": "unmask.embed(model, data)",
    "score": "unmask.score(model, data)",
    "generate": "unmask.load(folder).generate(prefix=text)",
    "util": "unmask.load(folder).similarity(texts, others)",
    "fill_mask": "unmask.fill(model, texts)",
}
"""Pattern of a name in a module -> our call; the first that fits counts."""


def ours(name: str, calls: Mapping[str, R]) -> R | None:
    """What a name of another library stands for, by the first of the names and patterns that fits; None for none.

    >>> ours("BertTokenizerFast", FUNCTIONS)
    'unmask.load(folder).tokenizer'
    """
    return next((call for pattern, call in calls.items() if fnmatchcase(name, pattern)), None)
