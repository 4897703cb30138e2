"""Random ACES tasks and records, and a plain evaluation of them: one candidate and one event after another."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import polars as pl
from event_data import DAY, table

STEP = timedelta(hours=6)
SPANS = {"6h": 6, "24h": 24, "2 days": 48, "18 hours": 18, "5d": 120, "36h": 36}
PREDICATES: dict[str, Any] = {
    "admission": {"code": {"regex": "^ADM//.*"}},
    "discharge": {"code": "DIS//h"},
    "death": {"code": "MEDS_DEATH"},
    "lab": {"code": {"any": ["LAB//k", "LAB//na"]}},
    "high": {"code": "LAB//k", "value_min": 2.5, "value_min_inclusive": True},
    "low": {"code": "LAB//k", "value_max": 2.5, "value_max_inclusive": False},
    "left": {"expr": "or(discharge, death)"},
    "both": {"expr": "and(lab, discharge)"},
    "nested": {"expr": "or(left, both)"},
}
CODES = ["ADM//x", "ADM//y", "DIS//h", "LAB//k", "LAB//k", "LAB//na", "MEDS_DEATH", "OTHER"]


def random_records(seed: int) -> pl.DataFrame:
    """Eight subjects with ties, values or none, and most of them with a sex."""
    rng, rows = random.Random(seed), []
    for subject in range(1, 9):
        if rng.random() < 0.8:
            rows.append((subject, None, rng.choice(["SEX//F", "SEX//M"]), None))
        for at in sorted(rng.choice(range(60)) for _ in range(rng.randint(1, 14))):
            rows.append((subject, DAY + at * STEP, rng.choice(CODES), rng.choice([None, 1.0, 2.5, 3.0, 7.0])))
    return table(rows)


def random_task(seed: int) -> dict[str, Any]:
    """One to three windows, of times and of events, before and after each other."""
    rng = random.Random(-1 - seed)
    windows: dict[str, Any] = {}
    moments, names = ["trigger"], [*PREDICATES, "_ANY_EVENT"]
    for i in range(rng.randint(1, 3)):
        of, span = rng.choice(moments), rng.choice([*SPANS])
        far = [f"{of} + {span}", f"{of} - {span}", f"{of} -> {rng.choice(names)}", f"{of} <- {rng.choice(names)}"]
        outer = rng.choice([of, of, of, *far])
        span, event = rng.choice([*SPANS]), rng.choice(names)
        if rng.random() < 0.5:
            window = {"start": outer, "end": rng.choice([f"start + {span}", f"start -> {event}", None])}
        else:
            window = {"start": rng.choice([f"end - {span}", f"end <- {event}", None]), "end": outer}
        bounds = ["(None, 0)", "(1, None)", "(0, 3)", "(1, 4)"]
        window |= {key: rng.random() < 0.5 for key in ("start_inclusive", "end_inclusive")}
        window["has"] = {rng.choice(names): rng.choice(bounds) for _ in range(rng.choice([0, 0, 1, 2]))}
        windows[f"w{i}"] = window
        moments += [f"w{i}.start", f"w{i}.end"]
    windows[rng.choice([*windows])]["label"] = rng.choice([*PREDICATES])
    windows[rng.choice([*windows])]["index_timestamp"] = rng.choice(["start", "end"])
    task = {"predicates": PREDICATES, "trigger": rng.choice(["admission", "lab", "_ANY_EVENT"]), "windows": windows}
    if rng.random() < 0.3:
        task["patient_demographics"] = {"female": {"code": "SEX//F"}}
    return task


def exchanged(task: dict[str, Any]) -> bool:
    """Whether es-aces 0.7.3 takes the other end for the prediction time: it exchanges the ends of windows that begin so
    long before their end."""
    return any(w.get("index_timestamp") and str(w["start"]).startswith("end - ") for w in task["windows"].values())


def points(frame: pl.DataFrame, task: dict[str, Any]) -> list[tuple[int, datetime, bool]]:
    """Subject, prediction time and label of each candidate that is a point."""
    out = []
    for (subject,), rows in frame.group_by("subject_id", maintain_order=True):
        facts = rows.filter(pl.col("time").is_null())["code"].to_list()
        if any(p["code"] not in facts for p in task.get("patient_demographics", {}).values()):
            continue
        stamps: dict[datetime, list[tuple[str, float | None]]] = {}
        for _, time, code, value in rows.drop_nulls("time").iter_rows():
            stamps.setdefault(time, []).append((code, value))
        for time in stamps:
            if count("_ANY_EVENT" if task["trigger"] == "_ANY_EVENT" else task["trigger"], stamps[time]):
                found = point(time, stamps, task["windows"])
                out += [] if found is None else [(int(str(subject)), *found)]
    return out


def count(name: str, events: list[tuple[str, float | None]]) -> int:
    """How often a predicate is at a time stamp."""
    if name == "_ANY_EVENT":
        return 1
    p = PREDICATES[name]
    if "expr" in p:
        kind, _, parts = p["expr"].rstrip(")").partition("(")
        return int({"or": any, "and": all}[kind](count(part.strip(), events) for part in parts.split(",")))
    code = p["code"]
    codes = {"ADM//x", "ADM//y"} if "regex" in code else code["any"] if isinstance(code, dict) else [code]
    return sum(
        c in codes
        and ("value_min" not in p or (v is not None and v >= p["value_min"]))
        and ("value_max" not in p or (v is not None and v < p["value_max"]))
        for c, v in events
    )


def point(
    trigger: datetime, stamps: dict[datetime, list[tuple[str, float | None]]], windows: dict[str, Any]
) -> tuple[datetime, bool] | None:
    """Prediction time and label of a candidate; None where it is no point."""
    moments, when, label = {"trigger": trigger}, None, None
    for name, w in windows.items():
        inner = "end" if str(w["end"] or "start").startswith("start") else "start"
        outer = "start" if inner == "end" else "end"
        for which in (outer, inner):
            words = w[which] or ("start -> _END" if which == "end" else "end <- _START")
            of, *rest = words.split(" ", 2)
            base = moments[f"{name}.{of}" if of in ("start", "end") else of]
            found = moved(base, rest, stamps, inclusive=which == inner and w[f"{which}_inclusive"])
            if found is None:
                return None
            moments[f"{name}.{which}"] = found
        start, end = moments[f"{name}.start"], moments[f"{name}.end"]
        inside = [
            events
            for t, events in stamps.items()
            if (t >= start if w["start_inclusive"] else t > start) and (t <= end if w["end_inclusive"] else t < end)
        ]
        for predicate, bounds in w["has"].items():
            least, most = (None if b.strip() == "None" else int(b) for b in bounds.strip("()").split(","))
            total = sum(count(predicate, events) for events in inside)
            if (least is not None and total < least) or (most is not None and total > most):
                return None
        if "label" in w:
            label = any(count(w["label"], events) for events in inside)
        when = moments[f"{name}.{w['index_timestamp']}"] if "index_timestamp" in w else when
    assert when is not None
    assert label is not None
    return when, label


def moved(
    base: datetime, rest: list[str], stamps: dict[datetime, list[tuple[str, float | None]]], *, inclusive: bool
) -> datetime | None:
    """A moment so long after another, or at the nearest time stamp with a predicate; None where there is none."""
    if not rest:
        return base
    sign, what = rest
    if sign in "+-":
        return base + timedelta(hours=SPANS[what]) * (1 if sign == "+" else -1)
    hits = list(stamps)[:: -1 if sign == "<-" else 1]
    if what.startswith("_") and what != "_ANY_EVENT":
        hits = hits[-1:]
    for t in hits:
        reached = (t >= base if sign == "->" else t <= base) and (inclusive or t != base)
        if reached and (what in ("_END", "_START") or count(what, stamps[t])):
            return t
    return None
