"""Which tasks there are: those of unmask, and those that installed packages add by entry points of the group
`unmask.tasks`.

A task is one class, a `task.TextTask`; its module is imported when the task is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from unmask.errors import UserError
from unmask.plugins import Plugins

if TYPE_CHECKING:
    from unmask.modalities.text.tasks.task import TextTask
from pathlib import Path
from typing import Any

from unmask.files import read_object
from unmask.writing import brought_to_an_end

_HERE = "unmask.modalities.text.tasks"
TASKS = Plugins(
    group="unmask.tasks",
    noun="task",
    built_in={
        "classify": f"{_HERE}.classify:Classify",
        "tag": f"{_HERE}.tag:Tag",
        "answer": f"{_HERE}.answer:Answer",
        "similarity": f"{_HERE}.similarity:Similarity",
    },
)


def task_class(name: str) -> type[TextTask]:
    """The class of a task."""
    from unmask.modalities.text.tasks.task import TextTask  # with torch, which the names do not need

    found = TASKS.load(name)
    if not (isinstance(found, type) and issubclass(found, TextTask) and found.name == name):
        raise UserError(
            f"task {name!r}: {found!r} is announced under that name",
            hint=f"Expected a subclass of unmask.modalities.text.tasks.task.TextTask whose name is {name!r}.",
        )
    return found


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
    return task_in(_entries(folder / "unmask.json"), _entries(folder / "config.json"))


def task_in(about: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """The task by what unmask.json and config.json of a text folder hold; None for no task."""
    task = about.get("task")
    if isinstance(task, dict) and "name" in task and about.get("kind", "text") == "text":
        return str(task["name"])
    classes = config.get("architectures")
    first = str(classes[0]) if isinstance(classes, list) and classes else ""
    return next((task for ending, task in TASK_ENDINGS.items() if first.endswith(ending)), None)


def _entries(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none: loading the folder says what is wrong with it."""
    try:
        return read_object(path) or {}
    except UserError:
        return {}
