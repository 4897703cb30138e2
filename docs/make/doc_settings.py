"""The settings as a page: tables of the dataclasses that `--set key=value` fills, and the published recipes."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from typing import Any

from doc_reference import _hint, escaped
from unmask.modalities.events.recipes import RECIPES as EVENT_RECIPES
from unmask.modalities.events.recipes import EventSettings, OutcomeSettings
from unmask.modalities.images.classify.classifier_settings import ClassifierSettings
from unmask.modalities.images.recipes import RECIPES as IMAGE_RECIPES
from unmask.modalities.images.recipes import ImageSettings
from unmask.modalities.images.segment.settings import SegmenterSettings
from unmask.modalities.table.recipes import RECIPES as TABLE_RECIPES
from unmask.modalities.table.recipes import UNUSED, TableSettings
from unmask.modalities.text.recipes import RECIPES as TEXT_RECIPES
from unmask.modalities.text.recipes import TextSettings
from unmask.modalities.text.tasks.adapt_embedding import EmbeddingSettings
from unmask.modalities.text.tasks.settings import TaskSettings
from unmask.training.settings import TrainSettings

CLASSES = {
    "pretrain and adapt text": (TextSettings, TEXT_RECIPES),
    "adapt text for embedding": (EmbeddingSettings, {}),
    "finetune: text tasks": (TaskSettings, {}),
    "pretrain table": (TableSettings, TABLE_RECIPES),
    "pretrain images": (ImageSettings, IMAGE_RECIPES),
    "finetune: pictures": (ClassifierSettings, {}),
    "finetune: masks of pictures": (SegmenterSettings, {}),
    "pretrain events": (EventSettings, EVENT_RECIPES),
    "finetune outcome and next-visit": (OutcomeSettings, {}),
    "how a run is trained": (TrainSettings, {}),
}

INTRODUCTION = """# Settings

`--set key=value` on the command line, a TOML file by `--config`, fields of these classes in Python
(`unmask.text.Settings(width=128)`). Every value is checked before any work begins. Keys of
[how a run is trained](#how-a-run-is-trained) go with every `pretrain` (`--set learning_rate=1e-3`, or
`train.learning_rate`).
"""


def settings_page() -> str:
    """The page."""
    lines = [INTRODUCTION]
    for title, (settings, recipes) in CLASSES.items():
        lines += [f"## {title}", "", f"`{settings.__module__}.{settings.__name__}`", ""]
        if settings is EmbeddingSettings:
            lines += ["Beside those of [pretrain and adapt text](#pretrain-and-adapt-text):", ""]
        lines += ["| key | type | default | |", "|---|---|---|---|"]
        lines += [
            f"| `{name}` | {_type(hint)} | {default} | {_cell(text)} |"
            for name, hint, default, text in fields(settings)
        ]
        if settings is TableSettings:
            lines += ["", f"A table's fit has its own, or none, of {', '.join(f'`train.{n}`' for n in UNUSED)}."]
        if recipes:
            lines += ["", "Published settings, by `--recipe`:", "", "| recipe | sets |", "|---|---|"]
            lines += [f"| `{name}` | {_recipe(values)} |" for name, values in recipes.items()]
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def fields(settings: Any) -> list[tuple[str, Any, str, str]]:
    """(name, type, default, meaning) of the fields of a settings class, less those of a base that has a table of
    its own; "" for what the docstring does not say."""
    said, hints = meanings(settings), typing.get_type_hints(settings)
    found, tables = [], {table for table, _ in CLASSES.values()} - {settings}
    inherited = {field.name for base in tables & {*settings.__mro__} for field in dataclasses.fields(base)}
    of_bases = {name for base in settings.__mro__[1:-1] for name in base.__annotations__}
    for field in sorted(dataclasses.fields(settings), key=lambda field: field.name in of_bases):
        if field.name in inherited:
            continue
        if field.default is not dataclasses.MISSING:
            default = "none" if field.default is None else f"`{field.default}`"
        elif hints[field.name] is TrainSettings:
            default = "[below](#how-a-run-is-trained)"
        elif dataclasses.is_dataclass(hints[field.name]):
            default = "[below](#the-tuned-encoder-of-finetune-outcome)"
        else:
            default = f"`{field.default_factory()}`" if callable(field.default_factory) else "needed"
        found.append(
            (
                field.name,
                hints[field.name],
                default,
                said.get(field.name, "how a run is trained" if field.name == "train" else ""),
            )
        )
    return found


def meanings(settings: Any) -> dict[str, str]:
    """Field -> what the Args or Attributes of the docstring, or of its base's, say of it."""
    body = re.split(r"^(?:Args|Attributes):$", inspect.cleandoc(settings.__doc__ or ""), flags=re.M)
    found: dict[str, str] = {} if settings is object else meanings(settings.__base__)
    names: list[str] = []
    for line in body[1].split("\n") if len(body) > 1 else ():
        start = re.match(r"^    (\w[\w, ]*?): (.*)$", line)
        if start:
            names = [n.strip() for n in start[1].split(",")]
            found |= dict.fromkeys(names, start[2])
        elif line.startswith("     ") and names:
            found |= {n: f"{found[n]} {line.strip()}" for n in names}
        elif line.strip():
            names = []
    return found


def _type(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " ".join(f"`{value}`" for value in typing.get_args(hint))
    return _hint(str(hint) if not inspect.isclass(hint) else hint.__name__).replace("|", "or")


def _recipe(values: Any) -> str:
    pairs = [f"`{k}={v}`" for k, v in dict(values).items() if not isinstance(v, dict)]
    pairs += [f"`{k}={v}`" for inner in dict(values).values() if isinstance(inner, dict) for k, v in inner.items()]
    return " ".join(pairs) or "our own, the defaults"


def _cell(text: str) -> str:
    return escaped(text).replace("|", "\\|")
