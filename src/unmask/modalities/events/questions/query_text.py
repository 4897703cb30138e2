"""Questions in words: "LAB//glucose > 10 within 30 days"; and conditions on patients, which are the same without a
horizon.

    QUESTION  = CONDITION within NUMBER UNIT
    CONDITION = ITEM | not ITEM | any of ITEM [, ITEM]... | none of ITEM [, ITEM]...
    ITEM      = CODE [> NUMBER | >= NUMBER | < NUMBER | <= NUMBER]

A code that holds a comma, > or <, or the words and or within, stands in double quotes. `none of` is the complement of
`any of`; both are answered for the set as a whole, as sets were trained, not from answers to its parts. Units are
hours, days, weeks, months (30.4375 days) and years (365.25).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmask.errors import UserError
from unmask.modalities.events.questions.queries import ABOVE, BELOW, MOST_ITEMS, Queries, made
from unmask.modalities.events.questions.query_head import QueryHead
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.vocabulary import FIRST, Vocabulary

DAY, YEAR = 24.0, 24 * 365.25
UNITS = {"hour": 1.0, "day": DAY, "week": 7 * DAY, "month": YEAR / 12, "year": YEAR}
"""Hours."""
EXAMPLE = 'For example: "LAB//glucose > 10 within 30 days", or "any of A, B within 1 year".'
GRAMMAR = (
    'Such as LAB//glucose > 10, not A, any of A, B, or none of A, B; a code with a comma in double quotes: "A, B".'
)
MOST_CHARACTERS = 8_000
"""Of a question."""
SLACK = 1e-3
"""Share by which a horizon may pass the longest that was trained: 5 years are 5 years, however they were rounded."""


@dataclass(frozen=True, kw_only=True)
class CodeCondition:
    """A code, and the value that must be passed: `side` is `queries.ABOVE`, `BELOW`, or 0 for none."""

    code: str
    side: int = 0
    cut: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Query:
    """A question: does any of the items (or, with `none`, no one) come within `hours` after the time of asking?"""

    text: str
    items: tuple[CodeCondition, ...]
    hours: float
    none: bool = False


def parsed(text: str) -> Query:
    """A question from its words.

    >>> parsed("LAB//glucose > 10 within 30 days").items
    (CodeCondition(code='LAB//glucose', side=1, cut=10.0),)
    >>> parsed('none of "a, b", C within 1 day').none
    True
    """
    if len(text) > MOST_CHARACTERS:
        raise UserError(
            f"question {text[:40]!r}...: {len(text):,} characters", hint=f"{MOST_CHARACTERS:,} at most: ask in parts."
        )
    what, horizon, unit = _horizon(text)
    hours = UNITS.get(unit.lower()) or UNITS.get(unit.lower().removesuffix("s"))
    if hours is None:
        raise UserError(f"question {text!r}: {unit!r} is not a unit of time", hint=f"Use {', '.join(UNITS)}.")
    hours *= _number(horizon, f"question {text!r}", "a horizon")
    if hours <= 0:
        raise UserError(f"question {text!r}: a horizon of {horizon}", hint="Give a number above 0.")
    items, none = condition(what, f"question {text!r}")
    if len(items) > MOST_ITEMS:
        raise UserError(f"question {text!r}: {len(items)} codes", hint=f"{MOST_ITEMS} at most: ask in parts.")
    return Query(text=text.strip(), items=items, hours=hours, none=none)


def condition(words: str, prefix: str) -> tuple[tuple[CodeCondition, ...], bool]:
    """Any of which items are meant, or (True) none of them; `prefix`: what messages call the words.

    >>> condition("not A >= 2", "condition")
    ((CodeCondition(code='A', side=1, cut=1.9999998807907104),), True)
    """
    head = re.match(r"(any\s+of|none\s+of|not)\s+", words, flags=re.IGNORECASE)
    parts = _split(words if head is None else words[head.end() :], prefix)
    several = head is not None and head[1].lower() != "not"
    if len(parts) > 1 and not several:
        raise UserError(f"{prefix}: several codes", hint="Say whether any of them or none of them is meant.")
    return tuple(_item(part, prefix) for part in parts), head is not None and head[1][0] not in "aA"


def _horizon(text: str) -> tuple[str, str, str]:
    """What is asked for, the number and the unit of its horizon: cut at the last `within` between spaces."""
    places = list(re.finditer(r"(?<=\s)within(?=\s)", text, flags=re.IGNORECASE))
    what, tail = (text[: places[-1].start()].strip(), text[places[-1].end() :].split()) if places else ("", [])
    if len(tail) == 1:  # "30days"
        number = tail[0].rstrip("".join(c for c in set(tail[0]) if c.isalpha()))
        tail = [number, tail[0][len(number) :]]
    if not what or len(tail) != 2 or not all(tail):
        raise UserError(f"question {text!r}: it does not end with: within NUMBER UNIT", hint=EXAMPLE)
    return what, tail[0], tail[1]


def _split(words: str, prefix: str) -> list[str]:
    """Parts between commas that are not within quotes."""
    if words.count('"') % 2:
        raise UserError(f'{prefix}: a " that is not closed', hint=GRAMMAR)
    parts = re.findall(r'(?:[^,"]|"[^"]*")+', words)
    parts = [part.strip() for part in parts]
    if not parts or not all(parts) or len(parts) != len(re.sub(r'"[^"]*"', "", words).split(",")):
        raise UserError(f"{prefix}: a code is missing between commas", hint=GRAMMAR)
    return parts


def _item(part: str, prefix: str) -> CodeCondition:
    mark = re.search(r"[<>=]", part[part.rfind('"') + 1 :])
    end = len(part) if mark is None else part.rfind('"') + 1 + mark.start()
    code, rest = part[:end].strip(), part[end:].strip()
    if len(code) > 2 and code[0] == code[-1] == '"':
        code = code[1:-1]
    if not code or '"' in code:
        raise UserError(f"{prefix}: {part!r} is not a code, or a code beyond a value", hint=GRAMMAR)
    if not rest:
        return CodeCondition(code=code)
    beyond = re.fullmatch(r"([<>])(=?)\s*([^<>=\s]+)", rest)
    if beyond is None:
        raise UserError(f"{prefix}: {rest!r} after {code}", hint="Values are given as > NUMBER, >=, < or <=.")
    cut, side = _number(beyond[3], prefix, f"the value of {code}"), ABOVE if beyond[1] == ">" else BELOW
    if beyond[2]:  # a bound that counts itself is the next number, in the precision of values, that does not
        cut = float(np.nextafter(np.float32(cut), np.float32(-side * np.inf)))
    return CodeCondition(code=code, side=side, cut=cut)


def _number(word: str, prefix: str, of: str) -> float:
    try:
        found = float(word)
    except ValueError:
        found = float("nan")
    if not np.isfinite(found):
        raise UserError(f"{prefix}: {of} is {word!r}, not a number", hint=GRAMMAR)
    return found


def checked(queries: Sequence[Query], histories: Histories, head: QueryHead) -> Queries:
    """The questions as numbers."""
    vocabulary = histories.vocabulary
    shape = (len(queries), max(len(query.items) for query in queries))
    code, side, cut = np.full(shape, -1, np.int64), np.zeros(shape, np.int64), np.zeros(shape)
    share = head.share.cpu().numpy()
    edges = head.edges.cpu().numpy()
    for q, query in enumerate(queries):
        for i, item in enumerate(query.items):
            number = int(vocabulary.numbers([item.code])[0])
            if number < FIRST or not share[number]:
                raise _unknown(query, item, vocabulary, share, number)
            with np.errstate(over="ignore"):
                code[q, i], side[q, i], cut[q, i] = number, item.side, np.float32(item.cut)  # as values are kept
            ends = vocabulary.knots[number, [0, -1]].astype(np.float32)
            low, high = np.nextafter(
                ends, np.array([-np.inf, np.inf], np.float32)
            )  # where ends that count themselves lie
            if item.side and not low <= cut[q, i] <= high:
                raise _no_value_near(query, item, vocabulary.knots[number])
        if not edges[0] * (1 - SLACK) <= query.hours <= edges[-1] * (1 + SLACK):
            raise UserError(
                f"question {query.text!r}: a horizon of {spoken(query.hours)}",
                hint=f"The model was trained on horizons from {spoken(edges[0])} to {spoken(edges[-1])}.",
            )
    return made(histories, code, side, cut)


def _no_value_near(query: Query, item: CodeCondition, knots: np.ndarray) -> UserError:
    if not np.isfinite(knots[0]):
        return UserError(f"question {query.text!r}: {item.code} comes without numbers", hint="Ask for the code alone.")
    return UserError(
        f"question {query.text!r}: no value of {item.code} in training was near {item.cut:g}",
        hint=f"All but one in 1,000 at either end were from {knots[0]:g} to {knots[-1]:g}.",
    )


def _unknown(query: Query, item: CodeCondition, vocabulary: Vocabulary, share: np.ndarray, number: int) -> UserError:
    if number >= FIRST:
        return UserError(
            f"question {query.text!r}: {item.code} never came at a time in training",
            hint="It is a fact without a time.",
        )
    if number == -1:
        return UserError(f"question {query.text!r}: {item.code} is a birth", hint="Ask for what comes after it.")
    known = [c for c, s in zip(vocabulary.codes, share[FIRST:], strict=True) if s]
    lower = {c.lower(): c for c in known}
    near = [c for low, c in lower.items() if item.code.lower() in low][:3]
    near += [
        lower[c] for c in difflib.get_close_matches(item.code.lower(), lower, n=3, cutoff=0.5) if lower[c] not in near
    ]
    hint = f"Did you mean {' or '.join(near[:4])}?" if near else f"The most frequent are {', '.join(known[:5])}."
    return UserError(f"question {query.text!r}: the model knows no code {item.code!r}", hint=hint)


def example_question(vocabulary: Vocabulary, head: QueryHead) -> str | None:
    """A question that the model answers: the code asked for most often in training, at the middle of the horizons;
    None where every code holds a double quote."""
    order = np.argsort(-head.share.cpu().numpy(), kind="stable")[: len(vocabulary.codes)]
    names = (vocabulary.codes[n - FIRST] for n in order.tolist() if n >= FIRST)
    code = next((name for name in names if '"' not in name), None)
    edges = head.edges.cpu().numpy()
    hours = float(np.sqrt(edges[0] * edges[-1]))
    unit = next((u for u in ("day", "hour") if hours >= UNITS[u]), "hour")
    return None if code is None else f'"{code}" within {max(1, round(hours / UNITS[unit]))} {unit}s'


def spoken(hours: float) -> str:
    """A horizon in words, in the largest unit that it has one of.

    >>> spoken(36.0), spoken(24 * 365.25 * 5)
    ('1.5 days', '5 years')
    """
    unit = next((u for u in ("year", "day") if hours >= UNITS[u]), "hour")
    number = f"{hours / UNITS[unit]:.3g}"
    return f"{number} {unit}" + ("" if number == "1" else "s")
