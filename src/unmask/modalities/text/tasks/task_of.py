"""Which task a folder of a text model is fine-tuned for; read without loading it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.files import read_object
from unmask.writing import brought_to_an_end

TASK_ENDINGS = {
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
    "ForQuestionAnswering": "answer",
}
"""How the names of transformers classes end, and the task that a folder of theirs is for."""


def task_of(model: str | Path) -> str | None:
    """The task that a text folder was fine-tuned for, by unmask.json or else by config.json; None for no task."""
    folder = Path(model).expanduser()
    brought_to_an_end(folder)
    about = _entries(folder / "unmask.json")
    task = about.get("task")
    if isinstance(task, dict) and "name" in task and about.get("kind", "text") == "text":
        return str(task["name"])
    classes = _entries(folder / "config.json").get("architectures")
    first = str(classes[0]) if isinstance(classes, list) and classes else ""
    return next((task for ending, task in TASK_ENDINGS.items() if first.endswith(ending)), None)


def _entries(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none: loading the folder says what is wrong with it."""
    try:
        return read_object(path) or {}
    except UserError:
        return {}
