"""The task language of ACES (Xu et al. 2024, arXiv 2406.19653; package es-aces 0.7), as data.

    predicates:                                 what an event is: a code, any of several, a regex, with its value in a
      admission: {code: {regex: "^ADM//.*"}}    range; or `and(...)`, `or(...)` of others at one time stamp
      death: {code: MEDS_DEATH}
    patient_demographics:                       facts without a time that a subject must have
      female: {code: SEX//F}
    trigger: admission                          each time stamp with it is a candidate
    windows:
      input:  {start: NULL, end: trigger + 24h, start_inclusive: True, end_inclusive: True, index_timestamp: end}
      target: {start: input.end, end: start -> death, start_inclusive: False, end_inclusive: True, label: death}

One of the ends of a window refers to the trigger or to an end of another window, the other end to the first: `+ 24h`
is so much later, `-> death` the next time stamp with a death, `<- death` the last one before, NULL the end (or the
start) of the record. `has: {death: (None, 0)}` bounds how often a predicate may occur in a window. A candidate whose
windows are all there and within their bounds is a point; `index_timestamp` is its prediction time, `label` the
predicate that makes it true where it occurs in that window.

The package itself asks for polars below 2 and for nine further packages; the language is read here instead, and labels
are compared with the package's in tests/modalities/events/test_aces.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.errors import UserError, either, first_of, suggest

ANY_EVENT, RECORD_START, RECORD_END = "_ANY_EVENT", "_RECORD_START", "_RECORD_END"
SPECIAL = (ANY_EVENT, RECORD_START, RECORD_END)
TRIGGER = "trigger"
SECOND = 1_000_000
"""Microseconds."""
UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
"""Seconds; a unit is known by its first letter, as in 2 days, 12h, 30 minutes."""
SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(weeks?|wks?|w|days?|d|hours?|hrs?|hr|h|minutes?|mins?|m|seconds?|secs?|s)[\s,]*")
UNFILLED = "???"
"""Of a predicate that each data set must fill in."""
KEYS = ("description", "metadata", "predicates", "patient_demographics", "trigger", "windows")
PLAIN = ("code", "value_min", "value_max", "value_min_inclusive", "value_max_inclusive", "static", "other_cols")
WINDOW = ("start", "end", "start_inclusive", "end_inclusive", "has", "label", "index_timestamp")


@dataclass(frozen=True, kw_only=True)
class Predicate:
    """What an event is, or (with `parts`) what a time stamp is.

    Attributes:
        codes, regex: the codes it has; a regex is searched anywhere in a code.
        least, most: bounds of its value, None for none; a value that is null lies in no bounds.
        least_inclusive, most_inclusive: whether the bounds themselves count.
        static: a fact without a time.
        parts: predicates of which any (`every`: each) is at the time stamp.
    """

    name: str
    codes: tuple[str, ...] = ()
    regex: str | None = None
    least: float | None = None
    most: float | None = None
    least_inclusive: bool = False
    most_inclusive: bool = False
    static: bool = False
    parts: tuple[str, ...] = ()
    every: bool = False


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """One end of a window, seen from another moment.

    Attributes:
        of: "trigger", "WINDOW.start" or "WINDOW.end".
        offset: microseconds after it.
        event: predicate of the time stamp nearest to it, None for none.
        before: whether that is looked for before it.
    """

    of: str
    offset: int = 0
    event: str | None = None
    before: bool = False


@dataclass(frozen=True, kw_only=True)
class Window:
    """A window: both ends, whether these count, how often predicates may occur (least, most; None for no bound)."""

    name: str
    start: Boundary
    end: Boundary
    start_inclusive: bool
    end_inclusive: bool
    has: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    label: str | None = None
    index: str | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task file: predicates in an order in which each comes after its parts, windows after those they refer to."""

    path: str
    predicates: Mapping[str, Predicate]
    demographics: tuple[str, ...]
    trigger: str
    windows: Mapping[str, Window]
    text: Mapping[str, Any]

    @property
    def labelled(self) -> Window | None:
        """The window that has the label."""
        return next((w for w in self.windows.values() if w.label), None)

    @property
    def indexed(self) -> Window:
        """The window that has the prediction time."""
        return next(w for w in self.windows.values() if w.index)

    def plain_parts(self, name: str) -> list[Predicate]:
        """The predicates of codes that one is made of."""
        found = self.predicates[name]
        return [p for part in found.parts for p in self.plain_parts(part)] if found.parts else [found]


def is_task(given: Any) -> bool:
    """Whether what is given as labels is the path of a task file."""
    return isinstance(given, str | Path) and Path(given).suffix.lower() in (".yaml", ".yml")


def read_task(path: str | Path, predicates: str | Path | None = None) -> Task:
    """A task file.

    Args:
        predicates: a second file, whose predicates (and patient_demographics) take the place of those of the same name:
            what MEDS-DEV keeps for each data set.

    Raises:
        UserError: naming the file and all that is wrong in it.
    """
    content = _loaded(path)
    given, facts = dict(_part(content, "predicates", path)), dict(_part(content, "patient_demographics", path))
    if predicates is not None:
        other = _loaded(predicates)
        given |= _part(other, "predicates", predicates)
        facts |= _part(other, "patient_demographics", predicates)
    wrong: list[str] = []
    windows, wanted = {}, set[str]()
    for name, window in _part(content, "windows", path).items():
        try:
            windows[str(name)] = w = _window(str(name), window)
        except ValueError as error:
            wrong.append(f"window {name}: {error}")
            continue
        wanted |= {*w.has, *(b.event for b in (w.start, w.end) if b.event), *([w.label] if w.label else [])}
    trigger = content.get("trigger")
    if not isinstance(trigger, str):
        wrong.append("no trigger: the predicate at whose time stamps a point may be")
    wanted |= {trigger} if isinstance(trigger, str) else set()
    found: dict[str, Predicate] = {}
    both = given | facts
    for name in sorted(wanted - set(SPECIAL)) + sorted(facts):
        _take(name, both, facts, found, wrong, ())
    wrong += [] if wrong else [*_tied(windows), *_marks(windows)]  # of whole windows only
    if wrong:
        shown = "".join(f"\n  {line}" for line in dict.fromkeys(wrong))
        unfilled = any(UNFILLED in line for line in wrong) and predicates is None
        fill = either("--predicates FILE.yaml (unmask events labels)", "predicates='file.yaml' (unmask.events.labels)")
        hint = f"Give the predicates of this data set with {fill}." if unfilled else "Mend the file."
        raise UserError(f"{path}: no task:{shown}", hint=hint)
    return Task(
        path=str(path),
        predicates=found,
        demographics=tuple(facts),
        trigger=str(trigger),
        windows=dict(_ordered(windows)),
        text={k: v for k, v in content.items() if k in ("description", "metadata")}
        | {"predicates": {n: given[n] for n in given if n in found}}
        | ({"patient_demographics": facts} if facts else {})
        | {"trigger": trigger, "windows": content.get("windows")},
    )


def _loaded(path: str | Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise UserError(f"{path}: not read ({reason})", hint="Give an ACES task file, .yaml.") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: no YAML ({' '.join(str(error).split())})", hint="Mend the file.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: no mapping of {', '.join(KEYS[2:])}", hint="Give an ACES task file.")
    other = [str(k) for k in content if k not in KEYS]
    if other:
        raise UserError(f"{path}: {first_of(other)}: not a key of a task", hint=suggest(other[0], KEYS))
    return content


def _part(content: Mapping[str, Any], key: str, path: str | Path) -> dict[str, Any]:
    found = content.get(key) or {}
    if not isinstance(found, dict):
        raise UserError(f"{path}: {key} is {found!r}", hint="Expected names, each with what it is.")
    return {str(k): v for k, v in found.items()}


def _take(
    name: str,
    given: Mapping[str, Any],
    facts: Mapping[str, Any],
    found: dict[str, Predicate],
    wrong: list[str],
    above: tuple[str, ...],
) -> None:
    """Put a predicate into `found`, its parts before it; what is wrong with it into `wrong`."""
    if name in found:
        return
    if name in above:
        wrong.append(f"predicate {name}: a part of itself ({' of '.join((*above, name))})")
        return
    if name not in given:
        wrong.append(f"predicate {name}: not among the predicates ({suggest(name, [*given, *SPECIAL])})")
        return
    try:
        predicate = _predicate(name, given[name], static=name in facts)
    except ValueError as error:
        wrong.append(f"predicate {name}: {error}")
        return
    for part in predicate.parts:
        _take(part, given, facts, found, wrong, (*above, name))
    found[name] = predicate


def _predicate(name: str, given: Any, *, static: bool) -> Predicate:
    if given == UNFILLED or (isinstance(given, dict) and given.get("code") == UNFILLED):
        raise ValueError(f"{UNFILLED}: each data set fills it in")
    if not re.fullmatch(r"\w+", name):
        raise ValueError("a name has letters, digits and _ alone")
    if not isinstance(given, dict):
        raise ValueError(f"{given!r}, expected code: or expr:")
    if "expr" in given:
        expression = re.fullmatch(r"(and|or)\((.*)\)", str(given["expr"]).strip(), flags=re.DOTALL)
        parts = [p.strip() for p in expression[2].split(",")] if expression else []
        if expression is None or len(parts) < 2 or not all(re.fullmatch(r"\w+", p) for p in parts):
            raise ValueError(f"expr {given['expr']!r}, expected or(A, B, ...) or and(A, B, ...)")
        return Predicate(name=name, parts=tuple(parts), every=expression[1] == "and", static=bool(given.get("static")))
    other = [k for k in given if k not in PLAIN] + [str(k) for k in given.get("other_cols") or {}]
    if other:
        raise ValueError(f"{', '.join(map(str, other))}: only code and numeric_value are read here, no other column")
    code, codes, regex = given.get("code"), tuple[str, ...](), None
    if isinstance(code, dict):
        if len(code) == 1 and isinstance(code.get("regex"), str) and code["regex"]:
            regex = str(code["regex"])
        elif len(code) == 1 and isinstance(code.get("any"), list) and code["any"]:
            codes = tuple(map(str, code["any"]))
        else:
            raise ValueError(f"code {code!r}, expected a code, {{any: [A, B]}} or {{regex: ...}}")
    elif code is None:
        raise ValueError("neither code nor expr")
    else:
        codes = (str(code),)
    bounds = {k: given.get(f"value_{k}") for k in ("min", "max")}
    for k, bound in bounds.items():
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int | float)):
            raise ValueError(f"value_{k} {bound!r}, expected a number")
    return Predicate(
        name=name,
        codes=codes,
        regex=regex,
        least=bounds["min"],
        most=bounds["max"],
        least_inclusive=bool(given.get("value_min_inclusive")),
        most_inclusive=bool(given.get("value_max_inclusive")),
        static=static or bool(given.get("static")),
    )


def _window(name: str, given: Any) -> Window:
    if not isinstance(given, dict):
        raise ValueError(f"{given!r}, expected start and end")
    if not re.fullmatch(r"\w+", name) or name == TRIGGER:
        raise ValueError("a name has letters, digits and _ alone, and is not trigger")
    other = [str(k) for k in given if k not in WINDOW]
    if other:
        raise ValueError(f"{', '.join(other)}: not a key of a window ({suggest(other[0], WINDOW)})")
    for key in ("start_inclusive", "end_inclusive"):
        if not isinstance(given.get(key), bool):
            raise ValueError(f"{key} is {given.get(key)!r}, expected True or False")
    if given.get("start") is None and given.get("end") is None:
        raise ValueError("start and end are both NULL: one must refer to the trigger or to another window")
    if given.get("start") is None:
        start = Boundary(of="end", event=RECORD_START, before=True)
    else:
        start = _boundary(str(given["start"]))
    end = Boundary(of="start", event=RECORD_END) if given.get("end") is None else _boundary(str(given["end"]))
    if (start.of == "end") == (end.of == "start"):
        raise ValueError(f"{given.get('start')} to {given.get('end')}: exactly one end must refer to the other")
    inner = start if start.of == "end" else end
    late = inner.before or inner.offset < 0
    if (inner.event or inner.offset) and late != (inner is start):
        raise ValueError(f"{given.get('start')} to {given.get('end')}: the start is not before the end")
    index = given.get("index_timestamp")
    if index not in (None, "start", "end"):
        raise ValueError(f"index_timestamp is {index!r}, expected start or end")
    has = {}
    for predicate, bounds in (given.get("has") or {}).items():
        has[str(predicate)] = _bounds(str(predicate), bounds)
    return Window(
        name=name,
        start=start,
        end=end,
        start_inclusive=given["start_inclusive"],
        end_inclusive=given["end_inclusive"],
        has=has,
        label=given.get("label") or None,
        index=index,
    )


def _bounds(predicate: str, given: Any) -> tuple[int | None, int | None]:
    parts = [p.strip() for p in str(given).strip("()").split(",")]
    if len(parts) != 2 or not all(p in ("None", "") or p.isdigit() for p in parts):
        raise ValueError(f"has {predicate}: {given!r}, expected (least, most) as in (1, None)")
    least, most = (None if p in ("None", "") else int(p) for p in parts)
    if (least is None and most is None) or (least is not None and most is not None and most < least):
        raise ValueError(f"has {predicate}: {given!r} bounds nothing")
    return least, most


def _boundary(text: str) -> Boundary:
    """One end of a window, of its words.

    >>> _boundary("trigger + 24h")
    Boundary(of='trigger', offset=86400000000, event=None, before=False)
    >>> _boundary("end <- admission")
    Boundary(of='end', offset=0, event='admission', before=True)
    """
    parts = re.fullmatch(r"\s*(\w+(?:\.(?:start|end))?)\s*(?:(->|<-|\+|-)\s*(.*?))?\s*", text, flags=re.DOTALL)
    if parts is None:
        raise ValueError(f"{text!r}: expected trigger, or WINDOW.end, with + 24h, - 7d, -> predicate or <- predicate")
    of, sign, what = parts[1], parts[2], parts[3] or ""
    if sign in ("->", "<-"):
        if not re.fullmatch(r"\w+", what):
            raise ValueError(f"{text!r}: {what!r} is no name of a predicate")
        if what == (RECORD_START if sign == "->" else RECORD_END):
            raise ValueError(f"{text!r}: nothing of the record lies there")
        return Boundary(of=of, event=what, before=sign == "<-")
    if sign is None:
        return Boundary(of=of)
    places = list(SPAN.finditer(what))
    if not places or "".join(p[0] for p in places) != what:
        raise ValueError(f"{text!r}: {what!r} is no time, expected such as 24h, 30 days, 90 minutes")
    seconds = sum(float(p[1]) * UNITS[p[2][0]] for p in places)
    return Boundary(of=of, offset=round(seconds * SECOND) * (1 if sign == "+" else -1))


def _ends(window: Window) -> Iterator[Boundary]:
    """The ends that refer to another window, or to the trigger."""
    yield from (b for b in (window.start, window.end) if b.of not in ("start", "end"))


def _tied(windows: Mapping[str, Window]) -> list[str]:
    """Windows that refer to what is not there."""
    known = {TRIGGER} | {f"{name}.{end}" for name in windows for end in ("start", "end")}
    return [
        f"window {w.name}: {b.of} is neither the trigger nor an end of a window ({suggest(b.of, sorted(known))})"
        for w in windows.values()
        for b in _ends(w)
        if b.of not in known
    ]


def _marks(windows: Mapping[str, Window]) -> list[str]:
    """Whether one window has the prediction time, and at most one the label."""
    labels, times = [w.name for w in windows.values() if w.label], [w.name for w in windows.values() if w.index]
    wrong = [f"windows {', '.join(labels)}: all have a label, one may"] if len(labels) > 1 else []
    if len(times) > 1:
        wrong.append(f"windows {', '.join(times)}: all have an index_timestamp, one may")
    if windows and not times:
        wrong.append("no window has an index_timestamp (start or end): when is the prediction made?")
    if not windows:
        wrong.append("no windows: when is the prediction made, and of what?")
    if len(list(_ordered(windows))) < len(windows) and not _tied(windows):
        wrong.append(f"windows {', '.join(windows)}: they refer to each other in a circle")
    return wrong


def _ordered(windows: Mapping[str, Window]) -> Iterator[tuple[str, Window]]:
    """The windows, each after those it refers to; those in a circle are left out."""
    done = {TRIGGER}
    left = dict(windows)
    while ready := [n for n, w in left.items() if all(b.of.split(".")[0] in done for b in _ends(w))]:
        for name in ready:
            yield name, left.pop(name)
            done.add(name)
