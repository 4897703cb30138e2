"""Engines: independent pieces of work done on the cores of this machine or on a Ray cluster.

An engine is given a function by name, what all calls share, and a task per call. Results come as they are ready; a
worker that dies is replaced, and its task done again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from unmask.errors import UserError, check_choice, option

if TYPE_CHECKING:
    from unmask.engines.local import Engine

ENGINES = ("local", "ray")


def engine(name: str, workers: int | None, say: Callable[[str], None]) -> Engine:
    """The engine of a name, to be entered with `with`.

    Args:
        name: 'local' (processes of this machine) or 'ray' (the cluster that RAY_ADDRESS names, or one that is begun
            on this machine and ended with the work).
        workers: how many work side by side; default all cores that there are.
        say: called with where the work is done.
    """
    check_choice("engine", name, ENGINES)
    if workers is not None and workers < 1:
        raise UserError(f"{option('workers', workers)}: nobody to do the work", hint="Expected 1 or more.")
    if name == "ray":
        from unmask.engines.on_ray import RayEngine

        return RayEngine(workers, say)
    from unmask.engines.local import LocalEngine

    return LocalEngine(workers)
