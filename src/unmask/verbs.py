"""The verbs that all kinds of data share: the kind is that of the model, or is told by the data.

A loaded model has them as methods (`Usable`).
"""

from __future__ import annotations

import csv
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from unmask.elsewhere import ARGUMENTS
from unmask.engines.folder import ABOUT
from unmask.errors import UserError, either
from unmask.files import files_below, read_object
from unmask.guessed import Guessed, also_called
from unmask.plugins import resolve
from unmask.registry import kind_of, load, modalities, modality, names
from unmask.writing import with_labels

TEXT_COLUMNS, EVENT_COLUMNS = {"text", "label", "labels", "id"}, {"subject_id", "time", "code"}
EXAMINED = 200
"""Files of a folder that are looked at."""


@also_called({}, **ARGUMENTS)
def pretrain(data: Any, out: Any = None, *, kind: str | None = None, **options: Any) -> Any:
    """Pretrain a model of any kind of data.

    Args:
        data: texts, a cohort (a frame or a file), pictures (a folder, arrays), or patients' events (a MEDS folder or
            frame), as files or in memory.
        out: run folder; left out, a temporary one, which lives as long as the result.
        kind: text, table, images or events, where the data does not tell.
        options: settings of that kind as keywords (`steps=60`), and what else its `pretrain` takes.

    Returns:
        What the kind's own `pretrain` does: `.model`, `.folder` and figures.
    """
    return function(kind or kind_of_data(data), "pretrain")(data, out, **options)


@also_called({}, **ARGUMENTS)
@with_labels
def finetune(model: Any, data: Any, out: Any = None, **options: Any) -> Any:
    """Fine-tune a model of any kind on labelled data: `unmask.text.finetune` and so on.

    Args:
        model: a folder, a hub name or a loaded model.
        data: a file, a frame, rows or (X, y); `finetune(model, X, y)` is taken too.
        out: where the fine-tuned folder goes; left out, a temporary one, which lives as long as the result.
        options: task=, validation=, settings as keywords, and what else the kind takes.
    """
    return _of(model, "finetune")(data, out, **options)


def predict(model: Any, data: Any, out: str | Path | None = None, **options: Any) -> Any:
    """What a fine-tuned model of any kind says of data; `out`: a file for it too."""
    return _of(model, "predict")(data, **options, **({} if out is None else {"out": out}))


def evaluate(model: Any, data: Any, labels: Any = None, **options: Any) -> Any:
    """Figures of a model of any kind on data, beside those of a rule without a model; `labels`: where the data does not
    bring them."""
    return _of(model, "evaluate")(data, **options, **({} if labels is None else {"labels": labels}))


def fill(model: Any, data: Any, **options: Any) -> Any:
    """What a model of any kind puts in place of what is hidden."""
    return _of(model, "fill")(data, **options)


def embed(model: Any, data: Any, **options: Any) -> Any:
    """A vector per text, row, picture or patient."""
    return _of(model, "embed")(data, **options)


def score(model: Any, data: Any, **options: Any) -> Any:
    """How probable a model of any kind holds data to be."""
    return _of(model, "score")(data, **options)


def function(kind: str, verb: str) -> Any:
    """What a modality announces for a verb."""
    if reference := getattr(modality(kind), verb):
        return resolve(reference)
    having = [name for name in names() if getattr(modality(name), verb)]
    raise UserError(f"{verb}: not for {modality(kind).plural}", hint=f"It is there for {', '.join(having)}.")


def _of(model: Any, verb: str) -> Any:
    """A verb of a model, loaded or to be loaded."""
    if isinstance(model, str | Path):
        kind = kind_of(model)
        if getattr(modality(kind), verb, None):
            return lambda *data, **options: function(kind, verb)(model, *data, **options)
        model = load(model)
    if not hasattr(model, verb):
        raise UserError(f"{verb}: not for a {type(model).__name__}", hint="Models of other kinds of data have it.")
    return getattr(model, verb)


class Usable(Guessed):
    """The verbs as methods of a loaded model, and `from_pretrained` and `save_pretrained` as transformers has them."""

    kind: ClassVar[str]
    """Its modality."""
    guesses: ClassVar[Mapping[str, Any]] = {
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
        "eval": lambda model: lambda: model,  # it predicts as it is
        "to": "unmask.load(folder, device='cuda')",
        "cuda": "unmask.load(folder, device='cuda')",
        "half": "unmask.load(folder, precision='bf16')",
        "parameters": "model.model.parameters(): model.model is the module of torch",
        "num_parameters": "model.inspect()['parameters']",
        "state_dict": "model.model.state_dict(): model.model is the module of torch",
        "config": "model.inspect()",
        "summary": "print(model), or model.inspect()",
    }

    @with_labels
    def finetune(self, data: Any, out: Any = None, **options: Any) -> Any:
        """Fine-tune a copy of this model: see `finetune` of its kind."""
        return function(self.kind, "finetune")(self, data, out, **options)

    def predict(self, data: Any, out: str | Path | None = None, **options: Any) -> Any:
        """What this model, fine-tuned, says of data: see `predict` of its kind."""
        return function(self.kind, "predict")(self, data, **options, **({} if out is None else {"out": out}))

    @classmethod
    def from_pretrained(cls, model: str | Path, **options: Any) -> Self:
        """`unmask.load` of a model of this kind."""
        found: Self = load(model, kind=cls.kind, **options)
        return found

    def save_pretrained(self, folder: str | Path, **options: Any) -> None:
        """`save`."""
        self.save(folder, **options)  # type: ignore[attr-defined]

    if not TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            name = type(self).__name__
            raise TypeError(f"a {name} is not called: use its verbs, as model.predict(data); model.model is of torch")


def kind_of_data(data: Any) -> str:
    """Which modality data is of: 'text', 'table', 'images', 'events' or another's.

    Files tell by their endings (`Modality.endings`), tables by their columns: subject_id, time and code are events,
    texts alone or with labels are text.

    Raises:
        UserError: where it cannot be told; the hint lists the kinds.
    """
    found = _of_place(data) if isinstance(data, str | os.PathLike) else _in_memory(data)
    if found is None:
        shown = str(data) if isinstance(data, str | os.PathLike) else f"data of type {type(data).__name__}"
        kinds = ", ".join(names())
        raise UserError(
            f"{shown:.200}: data of which kind?",
            hint=f"Say it: {either(f'one of {kinds} before the data', f'kind=, one of {kinds}')}.",
        )
    return found


def _in_memory(data: Any) -> str | None:
    if isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], str):
        return _in_memory(data[0])  # X and y
    if isinstance(data, Mapping) or hasattr(data, "columns"):
        columns = list(data if isinstance(data, Mapping) else data.columns)
        alone = columns[0] if len(columns) == 1 and len(data[columns[0]]) else None
        texts = alone is not None and all(isinstance(value, str) for value in itertools.islice(data[alone], EXAMINED))
        return "text" if texts else _by_columns(columns)
    if hasattr(data, "subject_id"):
        return "events"
    shape = getattr(data, "shape", None)
    if shape is not None and len(shape) != 1:
        return "images" if len(shape) > 2 else None
    first = next(iter(data), None) if isinstance(data, Sequence) or shape else None
    if isinstance(first, str | os.PathLike):
        return _of_place(first) if os.path.exists(first) else "text"
    of_one = getattr(first, "shape", getattr(first, "size", ()))  # of an array, or a picture of PIL
    return "images" if isinstance(of_one, tuple) and len(of_one) > 1 else None


def _of_place(place: str | os.PathLike[str]) -> str | None:
    if str(place).startswith("hf:"):
        return "text"
    path = Path(place)
    if not os.path.isdir(path):
        return _by_endings([path])
    if about := read_object(path / ABOUT):
        return str(about.get("kind"))
    if os.path.isdir(path / "data") and os.path.isdir(path / "metadata"):  # MEDS
        return "events"
    return _by_endings(itertools.islice(files_below(path), EXAMINED))


def _by_endings(files: Iterable[Path]) -> str | None:
    """By the endings of most files, or by the columns of the first where these leave it open."""
    ours = {ending: one.name for one in modalities().values() for ending in one.endings}
    listed = list(files)
    kinds = Counter(ours.get(Path(str(file).lower().removesuffix(".gz")).suffix) for file in listed)
    if kinds.pop(None, 0) == len(listed):
        return _by_columns(_header(listed[0])) if listed and os.path.isfile(listed[0]) else None
    return kinds.most_common(1)[0][0]


def _header(file: Path) -> list[str]:
    """The names of the columns of a parquet, csv or tsv file; none of another."""
    if file.suffix.lower() == ".parquet":
        import pyarrow.parquet

        return list(pyarrow.parquet.read_schema(file).names)
    if file.suffix.lower() not in (".csv", ".tsv"):
        return []
    with file.open(encoding="utf-8", errors="replace", newline="") as lines:
        line = lines.readline(1_000_000).lstrip("\ufeff").rstrip("\r\n")
    return next(csv.reader([line], delimiter=max(",;\t|", key=line.count)), [])


def _by_columns(columns: Iterable[Any]) -> str | None:
    found = {str(name).strip().lower() for name in columns}
    if found >= EVENT_COLUMNS:
        return "events"
    if "text" in found:
        return "text" if found <= TEXT_COLUMNS else None
    return "table" if len(found) > 1 else None
