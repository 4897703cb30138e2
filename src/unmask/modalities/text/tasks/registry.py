"""Which tasks there are: those of unmask, and those that installed packages add by entry points of the group
`unmask.tasks`.

A task is one class, a `task.TextTask`; its module is imported when the task is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unmask.errors import UserError
from unmask.plugins import Plugins

if TYPE_CHECKING:
    from unmask.modalities.text.tasks.task import TextTask

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
