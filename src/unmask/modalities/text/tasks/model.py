"""An encoder with a task head, and the Hugging Face folder it lives in."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unmask.core.embed import Pooling
from unmask.errors import UserError, either
from unmask.families.heads import CLASSES, new_head, tempered
from unmask.modalities.text.network.card import NEW
from unmask.modalities.text.network.folder import LoadedText, TextFolder, find_folder, load_folder, save_folder
from unmask.modalities.text.tasks.baselines import Baseline, load_baseline
from unmask.modalities.text.tasks.encoding import ExampleMaker
from unmask.modalities.text.tasks.network import TaskModel
from unmask.modalities.text.tasks.registry import task_class, task_in, task_of
from unmask.modalities.text.tasks.task import TextTask
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.training.precision import precision_of, resolve_device
from unmask.verbs import Usable


@dataclass(repr=False)
class TaskFolder(Usable):
    """A loaded task model. `about` is the task's own part of unmask.json (name, labels, thresholds and so on);
    `baseline` is what predicts, where one was saved in place of a head."""

    kind = "text"

    text: TextFolder
    model: TaskModel
    about: dict[str, Any]
    baseline: Baseline | None = None

    def __repr__(self) -> str:
        baseline = "" if self.baseline is None else f", by its baseline {self.baseline.kind!r}"
        return f"TaskFolder({self.about.get('name')}{baseline}: {self.text!r}, {self.precision} on {self.device})"

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of its encoder."""
        return self.text.tokenizer

    @property
    def slots(self) -> int:
        """Longest input in tokens."""
        return int(self.about.get("slots") or self.text.slots)

    @functools.cached_property
    def task(self) -> TextTask:
        """What it was fine-tuned for."""
        encoder = ExampleMaker(self.tokenizer, slots=self.slots, types=self.types)
        return task_class(self.about["name"])(encoder, self.about)

    @property
    def types(self) -> bool:
        """Whether the encoder tells a pair's two texts apart by token types."""
        return bool(self.text.model.codec.config.types)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.model.device

    @property
    def precision(self) -> str:
        """What it computes in."""
        return self.model.precision


def text_folder(model: str | Path | LoadedText | TaskFolder) -> TextFolder:
    """What a folder holds, or a copy of what is loaded, to be trained."""
    if isinstance(model, str | Path):
        return load_folder(model)
    found = copy.deepcopy(model.text if isinstance(model, TaskFolder) else model.folder)
    found.model.encoder.batch_invariant = False
    return found


def task_named(model: str | Path | LoadedText | TaskFolder) -> str | None:
    """What a model was fine-tuned for; None for nothing."""
    if isinstance(model, TaskFolder):
        return str(model.about["name"])
    return task_in(model.folder.settings, model.folder.hf_config) if isinstance(model, LoadedText) else task_of(model)


def place_of(model: str | Path | LoadedText | TaskFolder) -> str | Path:
    """The folder of a model, as it was given, or as a loaded one remembers it."""
    if isinstance(model, str | Path):
        return model
    return (model.text if isinstance(model, TaskFolder) else model.folder).path or "a model in memory"


def build(
    text: TextFolder, kind: str | None, outputs: int, *, pooling: Pooling | None = None
) -> tuple[TaskModel, list[str]]:
    """An encoder with a head of `outputs` outputs, whatever head weights the folder holds read; (model,
    random names)."""
    if kind is None:
        return TaskModel(text.model, None, pooling or "mean"), []
    head = new_head(text.family, kind, text.model, text.hf_config, outputs)
    return TaskModel(text.model, head), head.read(text.passengers)


def load(path: str | Path | LoadedText | TaskFolder, *, device: str = "auto", precision: str = "auto") -> TaskFolder:
    """A fine-tuned folder, ready to predict: ours, or one that transformers wrote; a loaded one stays as it is."""
    if isinstance(path, TaskFolder):
        return path
    if isinstance(path, LoadedText):
        precision = "auto" if path.precision == "int8" else path.precision
        found: TaskFolder = vars(path).get("tuned") or _with_head(path.folder, place_of(path), path.device, precision)
        vars(path)["tuned"] = found
        return found
    if task_of(path) is None:
        raise not_tuned(path)
    return _with_head(load_folder(path), path, resolve_device(device), precision)


def not_tuned(model: Any) -> UserError:
    """What is said of a model without a task."""
    return UserError(
        f"{model}: not a fine-tuned model",
        hint=f"Make one: {either('unmask finetune classify MODEL TRAIN --out DIR', 'unmask.finetune(model, data)')}.",
    )


def _with_head(text: TextFolder, path: str | Path, where: torch.device, precision: str) -> TaskFolder:
    """An encoder with the head of its task."""
    name = task_in(text.settings, text.hf_config)
    if name is None:
        raise not_tuned(path)
    about = dict(text.settings.get("task") or {})
    task = task_class(name)
    names = text.hf_config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}  # as transformers has it
    labels = [str(v) for _, v in sorted(names.items(), key=lambda kv: int(kv[0]))]
    if not about:
        about = {"name": name, "labels": labels, "slots": text.model.encoder.config.longest}
        about |= _published(text.hf_config, labels, path) if name == "classify" else {}
    outputs = task.outputs_of({"labels": labels} | about)
    saved = about.get("baseline")
    model, random = build(text, None if saved else task.head, outputs, pooling=about.get("pooling"))
    if random:
        raise UserError(
            f"{path}: no trained tensor {random[0]}", hint="The folder holds no trained head for this task."
        )
    model.to(where).eval()
    model.precision = precision_of(model, precision, where)
    text.model.encoder.batch_invariant = True
    baseline = load_baseline(find_folder(path), *task.simpler_of({"labels": labels} | about)) if saved else None
    return TaskFolder(text=text, model=model, about=about, baseline=baseline)


ACTIVATIONS = {"Sigmoid": "sigmoid", "sigmoid": "sigmoid", "Identity": "identity", "none": "identity"}
"""How config.json calls what is applied to the one output of a head -> what we do."""


def _published(config: Mapping[str, Any], labels: list[str], path: Any) -> dict[str, Any]:
    """What config.json of a classifier that others wrote says: its `problem`; the `activation` of a single output, as
    sentence-transformers' CrossEncoder kept it, or else as transformers' pipeline has it."""
    stated = str(config.get("problem_type"))
    single = len(labels) == 1 and stated != "multi_label_classification"
    about: dict[str, Any] = {"problem": "multi" if stated == "multi_label_classification" else "single"}
    if single or stated == "regression":
        about = {"problem": "regression", "activation": _transformers_activation(config)}
        if not single:
            raise UserError(f"{path}: {len(labels)} numbers (problem_type regression)", hint="One can be predicted.")
        kept = (config.get("sentence_transformers") or {}).get("activation_fn")
        kept = kept or config.get("sbert_ce_default_activation_function")
        if given := kept or config.get("function_to_apply"):
            about["activation"] = ACTIVATIONS.get(str(given).rpartition(".")[2])
            if about["activation"] is None:
                raise UserError(f"{path}: config.json applies {given} to the output", hint="Known: Sigmoid, Identity.")
    return about


def _transformers_activation(config: Mapping[str, Any]) -> str:
    """What transformers' pipeline applies to a single output."""
    return "identity" if config.get("problem_type") == "regression" else "sigmoid"


def as_transformers(folder: TaskFolder) -> TaskFolder:
    """A folder whose single output is that of transformers' pipeline, whatever sentence-transformers kept."""
    activation = _transformers_activation(folder.text.hf_config)
    return dataclasses.replace(folder, about=folder.about | {"activation": activation})


def save(
    folder: Path,
    text: TextFolder,
    model: TaskModel,
    *,
    kind: str | None,
    about: Mapping[str, Any],
    config: Mapping[str, Any],
    baseline: Baseline | None = None,
) -> None:
    """Write a folder that `transformers` loads with the task's class (or as a plain encoder, without a head). A
    classifier's temperature goes into its last layer, so that its probabilities are the same wherever it is loaded."""
    passengers, about = dict(text.passengers), dict(about)
    hf = dict(text.hf_config) | dict(config)
    temperature = about.pop("temperature", 1.0) if about["name"] == "classify" else 1.0
    if model.head is not None and kind is not None:
        own = tempered(model.head.published(), model.head.head, temperature)
        passengers |= own
        for name in [n for n in passengers if n.startswith("classifier") and n not in own]:
            del passengers[name]  # of another task
        stem = text.family.architecture.removesuffix("ForMaskedLM")
        hf["architectures"] = [stem + CLASSES[kind]]
    settings = {k: v for k, v in text.settings.items() if k not in ("task", *NEW)}
    settings |= {"kind": "text", "task": about}
    save_folder(
        folder,
        model=text.model,
        tokenizer=text.tokenizer,
        family=text.family,
        hf_config=hf,
        passengers=passengers,
        settings=settings,
        without=text.random,
    )
    if baseline is not None:
        baseline.save(folder)
