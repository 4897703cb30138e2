"""The folder of prepared data of any kind: how it is started, continued after an interruption, finished and recognised.

plan.json       until it is finished: the key of the preparation, made of data and settings
prepared.json   from then on: "kind", "key", the "settings" that decided what was prepared, and size and CRC-32 of files
                that do not have them elsewhere
.lock           one process at a time prepares in it
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import UserError, option, setting
from unmask.files import check_files, check_folder, read_json, unsealed
from unmask.writing import LOCK, locked, remove, remove_left

ABOUT, PLAN = "prepared.json", "plan.json"
DAMAGED = "Prepare it again, or copy the folder again."


def prepared_at(data: str | Path | Sequence[str | Path], kind: str) -> Path | None:
    """The folder of prepared data, if `data` is one; None where it is anything else."""
    items = [Path(i) for i in ([data] if isinstance(data, str | Path) else data)]
    for folder in items:
        about = read_json(folder / ABOUT) if folder.is_dir() else None
        if about is None:
            if (folder / PLAN).is_file():
                raise UserError(
                    f"{folder}: its preparation has not ended", hint="Run the same `unmask prepare` again: it goes on."
                )
            continue
        if not isinstance(about, dict) or about.get("kind") != kind:
            there = about.get("kind") if isinstance(about, dict) else about
            raise UserError(f"{folder}: prepared from {there}, not from {kind}", hint=f"Give data of {kind}.")
        about = unsealed(about, folder / ABOUT, hint=DAMAGED)
        check_files(folder, about.get("files", {}), hint=DAMAGED)
        if len(items) > 1:
            raise UserError(
                f"{folder} is prepared, and stands beside other data", hint="Prepare all of it together in one folder."
            )
        return folder
    return None


def prepared_with(folder: Path) -> dict[str, Any]:
    """The settings that decided what was prepared."""
    return dict(json.loads((folder / ABOUT).read_text())["settings"])


def prepared_settings(data: str | Path | Sequence[str | Path], kind: str) -> dict[str, Any]:
    """The settings that data was prepared with, to be changed by what is asked for; none where it is not prepared.

    >>> prepared_settings("corpus.txt", "text")
    {}
    """
    folder = prepared_at(data, kind)
    return {} if folder is None else prepared_with(folder)


def refuse_changed(folder: Path, name: str, requested: Any, was: Any) -> None:
    """Refuse a setting that differs from the one the folder was prepared with."""
    if requested != was:
        raise UserError(
            f"{name}={requested}, and {folder} was prepared with {name}={was}",
            hint=f"Leave {setting(name)} out, or prepare the data with it in another {option('out')}.",
        )


@contextlib.contextmanager
def preparing(out: Path, own: Sequence[str]) -> Iterator[None]:
    """Within, this process alone prepares data in `out`.

    Args:
        own: names of what a preparation writes there.

    What was done stays where an error ends it; where nothing was, nothing is left there.
    """
    check_folder(out)
    remove_left(out)
    other = sorted(p.name for p in out.iterdir() if p.name not in (*own, ABOUT, PLAN, LOCK)) if out.is_dir() else []
    if other:
        raise UserError(
            f"{out}: not the folder of a preparation, it holds {', '.join(other[:3])}",
            hint="Choose a folder that is empty or does not exist yet.",
        )
    new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        with locked(out / LOCK, busy="is preparing data in it"):
            try:
                yield
            except UserError:
                if not any(p.is_file() for name in (ABOUT, *own) for p in (out / name, *(out / name).glob("*"))):
                    for name in (*own, PLAN):  # it has not begun, and may not have been meant
                        remove(out / name)
                    if new:
                        remove(out)
                raise
    except OSError as error:
        raise UserError(
            f"{out}: cannot be written ({error.strerror or error})",
            hint=f"Free space, or choose another {option('out')}; what is done is kept.",
        ) from None


def is_finished(out: Path, key: str, settings: Mapping[str, Any]) -> bool:
    """Whether this very preparation is there already."""
    about = read_json(out / ABOUT)
    if about is None:
        return False
    if about.get("key") != key:
        was = about.get("settings", {})
        found = [
            f"{name}={was.get(name)} (now {settings.get(name)})"
            for name in dict.fromkeys((*was, *settings))
            if was.get(name) != settings.get(name)
        ]
        raise UserError(
            f"{out} holds another preparation: {', '.join(found) or 'of other files, or files that have changed'}",
            hint=f"Choose another {option('out')}, or remove the folder.",
        )
    return True


def begin_or_resume(
    out: Path, key: str, own: Sequence[str], folders: Sequence[str], say: Callable[[str], None]
) -> dict[str, Any]:
    """What is known of a preparation that was begun, {"key": ...} of a new one; what another one left is removed.

    Args:
        own: names of what a preparation writes.
        folders: names of folders that are made.
    """
    there = read_json(out / PLAN)
    if there is None or there.get("key") != key:
        if there is not None:
            say(f"{out}: other data or settings than before; it is begun anew")
        for name in own:
            remove(out / name)
        there = {"key": key}
    for name in folders:
        (out / name).mkdir(exist_ok=True)
        remove_halves(out / name)
    return dict(there)


def remove_halves(folder: Path) -> None:
    """What workers that were killed had begun to write."""
    for rest in folder.glob(".*.new*"):
        rest.unlink(missing_ok=True)


def check_seen(folder: str, key: str) -> None:
    """Refuse to go on where this machine does not see the output folder."""
    try:
        there = json.loads((Path(folder) / PLAN).read_text())["key"]
    except (OSError, ValueError, KeyError):
        there = None
    if there != key:
        raise UserError(
            f"{folder}: not seen from {socket.gethostname()}, or another one there",
            hint="All machines of a cluster write into the folder: choose one on a disk that they share.",
        )
