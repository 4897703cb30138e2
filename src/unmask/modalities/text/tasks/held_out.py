"""Which training rows are held out where no validation data is given, and how many rows two sets share."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from unmask.errors import first_of, option, setting
from unmask.evaluation.metrics import share_interval
from unmask.evaluation.resampling import percentile_interval
from unmask.modalities.text.tasks.settings import TaskSettings
from unmask.names import groups_alike

SHARE, LEAST, MOST = 0.15, 40, 2000
"""Share of the training rows held out; below `LEAST` rows none are; never more than `MOST`."""
JUDGING_FOLDS = 5
"""Of held-out rows, for judging what is fitted on held-out rows."""


def key_of(item: Any) -> str:
    """What makes a row the same as another: its texts, blanks and case normalised, without its label."""
    parts = (getattr(item, name, None) for name in ("question", "context", "text", "text2", "negative"))
    return "\0".join(re.sub(r"\s+", " ", p).strip().lower() for p in parts if p is not None)


def overlap(training: Sequence[Any], held: Sequence[Any], key: Callable[[Any], str | None] = key_of) -> int:
    """Held-out rows that are training rows too, or have the same `key` otherwise; None is no key."""
    seen = {key(item) for item in training} - {None}
    return sum(key(item) in seen for item in held)


LABELS = {"label": "labels", "spans": "entities", "answers": "answers"}
"""What an item is labelled with, and how people call it."""


def several_labels(items: Sequence[Any]) -> list[str]:
    """A line on texts (pairs, questions) that are in several rows with different labels, if there are any; blanks and
    case aside."""
    part = next((part for part in LABELS if items and getattr(items[0], part, None) is not None), None)
    if part is None:
        return []
    found: dict[str, dict[Any, Any]] = {}
    for item in items:
        value = getattr(item, part)
        names = isinstance(value, tuple) and all(isinstance(v, str) for v in value)
        found.setdefault(key_of(item), {}).setdefault(tuple(sorted(set(value))) if names else value, item)
    several = [list(rows.items()) for rows in found.values() if len(rows) > 1]
    if not several:
        return []

    def row(label: Any, item: Any) -> str:
        shown = ", ".join(map(repr, label)) if isinstance(label, tuple) else repr(label)
        return f"{item.where} ({shown})" if part == "label" else str(item.where)

    named = first_of((" and ".join(row(*one) for one in rows[:2]) for rows in several), 3, between="; ")
    count = "1 text is" if len(several) == 1 else f"{len(several):,} texts are"
    return [f"warning: {count} there with different {LABELS[part]}: {named}"]


def kept_together(items: Sequence[Any]) -> np.ndarray:
    """(items,) the number of what must be on one side of every split: exact copies, questions about one context, and
    rows of one group with all that these join."""
    keys = [getattr(item, "context", None) or key_of(item) for item in items]
    raw = [key.encode() for key in keys]
    hashes = np.array([zlib.crc32(r) << 32 | zlib.adler32(r) for r in raw])  # the same in every process
    number = np.unique(hashes, return_inverse=True)[1].ravel()
    group = groups_of(items)
    if group is None:
        return number
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = int(group.max()) + 1
    joined = coo_array((np.ones(len(items)), (group, size + number)), shape=(size + len(items),) * 2)
    return np.unique(connected_components(joined, directed=False)[1][group], return_inverse=True)[1].ravel()


def dependent(items: Sequence[Any]) -> np.ndarray | None:
    """(items,) the number of what an interval counts once, as it is `kept_together`; None where each row stands for
    itself."""
    number = kept_together(items)
    return None if number.max(initial=-1) + 1 == len(items) else number


def groups_of(items: Sequence[Any]) -> np.ndarray | None:
    """(items,) the number of the group of each row; None where no row has one. A row without is a group of its own."""
    names = [getattr(item, "group", None) for item in items]
    if not any(name is not None for name in names):
        return None
    marked = [f"row {i}" if name is None else f"group {name}" for i, name in enumerate(names)]
    return np.unique(marked, return_inverse=True)[1].ravel()


def group_notes(items: Sequence[Any]) -> list[str]:
    """A line on groups of the rows that may be one by their names, if there are any."""
    return groups_alike({group for item in items if (group := getattr(item, "group", None)) is not None})


def resamples(items: Sequence[Any], rng: np.random.Generator, draws: int) -> Iterator[list[int]]:
    """Numbers of rows drawn with replacement, as many as there are; what is `dependent` is drawn as a
    whole. No draws of one row, or of one group."""
    group = dependent(items)
    members = None if group is None else [np.flatnonzero(group == g) for g in range(int(group.max()) + 1)]
    n = len(items) if members is None else len(members)
    for _ in range(draws if n > 1 else 0):
        drawn = rng.integers(n, size=n)
        yield (drawn if members is None else np.concatenate([members[g] for g in drawn])).tolist()


def interval(
    drawn: Sequence[float], metric: str, value: float, items: Sequence[Any], top: float = 1.0
) -> tuple[float | None, ...]:
    """(low, high) 95 % percentiles of a metric over resamples, (None, None) of none; of an accuracy, F1 or share of
    exact answers of 0 or `top`, which never varies, Wilson's interval of as many examples as there are, `dependent`
    ones counted once."""
    if not metric.startswith(("accuracy", "f1", "exact")):
        return tuple(percentile_interval(drawn) or (None, None))
    group = dependent(items)
    independent = len(items) if group is None else int(group.max()) + 1
    found = share_interval(np.divide(drawn, top), value / top, independent)
    return tuple(top * end for end in found) if found else (None, None)


def judging_folds(items: Sequence[Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(numbers of the rows to fit on, of those to judge) of each fold; every row is judged once, and what is
    `kept_together` stays together. Where all rows do, there is none to fit on."""
    fold = kept_together(items) % JUDGING_FOLDS
    for part in np.unique(fold):
        yield np.flatnonzero(fold != part), np.flatnonzero(fold == part)


def split(items: Sequence[Any], share: float, seed: int) -> tuple[list[Any], list[Any]]:
    """(rows to train on, rows held out), a pure function of rows, share and seed.

    What is `kept_together` stays so. Classes are spread evenly (less so where groups are large), and the last row of a
    class is never held out. Too few rows, or too few that are different, leave none held out; groups never more than
    half of them.
    """
    n = len(items)
    if n < LEAST or share <= 0:
        return list(items), []
    wanted = min(MOST, max(1, round(n * share)))
    number = kept_together(items)
    labels = [str(getattr(item, "label", "")) for item in items]
    graded = len(set(labels)) > n / 2
    stratum = np.zeros(n, np.int64) if graded else np.unique(labels, return_inverse=True)[1].ravel()
    rng = np.random.default_rng([seed, 23])
    order = rng.permutation(number.max() + 1)
    members: list[list[int]] = [[] for _ in range(number.max() + 1)]
    for i, g in enumerate(number.tolist()):
        members[g].append(i)
    left = np.bincount(stratum)
    quota = np.floor(left * wanted / n + rng.random(len(left)))
    chosen = np.zeros(n, bool)
    for even in (True, False) if groups_of(items) is not None else (True,):
        for g in order.tolist():
            rows = members[g]
            here = np.bincount(stratum[rows], minlength=len(left))
            fits = (quota >= here).all() if even else not chosen[rows].any() and chosen.sum() + len(rows) <= n / 2
            if chosen.sum() < wanted and fits and (left - here > 0)[here > 0].all():
                chosen[rows] = True
                quota -= here
                left = left - here
    if not chosen.any():
        return list(items), []
    return [x for x, c in zip(items, chosen, strict=True) if not c], [
        x for x, c in zip(items, chosen, strict=True) if c
    ]


def hold_out(
    items: list[Any], held: list[Any] | None, settings: TaskSettings, say: Callable[[str], None]
) -> tuple[int, tuple[list[Any], list[Any]] | None]:
    """How many validation rows are training rows too, and (rows to train on, rows held out) where none were given and
    some are taken."""
    if held is not None:
        if shared := overlap(items, held):
            say(
                f"warning: {shared:,} of {len(held):,} validation rows are training rows too (blanks and case aside): "
                "scores on them are too good"
            )
        if known := overlap(items, held, lambda item: getattr(item, "group", None)):
            say(
                f"warning: {known:,} of {len(held):,} validation rows are of groups that have training rows: scores on "
                "them are too good"
            )
        return shared, None
    if settings.start == "plain" or settings.held == 0:
        return 0, None
    rest, out = split(items, settings.held, settings.seed)
    if not out:
        say(
            f"{len(items):,} rows: too few to hold some out; nothing is compared ({option('validation', 'DATA')} "
            "gives others)"
        )
        return 0, None
    if hasattr(out[0], "label") and any(item.label is None for item in items):
        return 0, None  # similarity without grades: there is no score to hold rows out for
    names = {group for item in items if (group := getattr(item, "group", None))}
    whole = f", {len({item.group for item in out}):,} of {len(names):,} groups whole," if names else ""
    say(f"no validation data: {len(out):,} of {len(items):,} rows{whole} are held out ({setting('held', 0)} for none)")
    return 0, (rest, out)
