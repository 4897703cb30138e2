"""How the labels of a tagger say what an entity is: B-PER and I-PER, B_PER, PER-B, or PER alone (IO)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unmask.errors import UserError, first_of, quoted

_DASH = re.compile(r"(?P<mark>[BIESLUM])-(?P<kind>.+)", re.DOTALL)
_UNDERSCORE = re.compile(r"(?P<mark>[BIESLUM])_(?P<kind>.+)", re.DOTALL)
_BEHIND = re.compile(r"(?P<kind>.+)[-_](?P<mark>[BIESLUM])", re.DOTALL)
_BARE = re.compile(r"(?P<mark>[BIESLUM])(?P<kind>)")
_NUMBERED = re.compile(r"LABEL_\d+")
OUTSIDE = "O"
EXPECTED = "Expected O and B-TYPE, I-TYPE (or O and TYPE alone) in id2label of config.json: write them there."


def as_tags(labels: Sequence[str], where: str) -> list[str]:
    """Labels of a tagger in one spelling: O, B-TYPE, I-TYPE, and E, S, L, U likewise.

    M ("middle") is I. Where no label has a mark, each but O is a type by itself (IO): neighbours of one type are one
    entity.

    Args:
        where: what has these labels, for the message.

    >>> as_tags(["O", "PER", "LOC"], "model")
    ['O', 'I-PER', 'I-LOC']
    >>> as_tags(["B_PER", "M_PER", "O"], "model")
    ['B-PER', 'I-PER', 'O']
    """
    named = [label for label in labels if label != OUTSIDE]
    if len(named) == len(labels) or any(_NUMBERED.fullmatch(label) for label in named):
        raise UserError(
            f"{where}: labels {first_of(map(quoted, labels), 8)} do not say what is an entity", hint=EXPECTED
        )
    for pattern in (_DASH, _UNDERSCORE, _BEHIND, _BARE):
        found = [pattern.fullmatch(label) for label in named]
        if all(found):
            marks = iter([(m["mark"].replace("M", "I"), m["kind"] or "_") for m in found if m is not None])
            return [label if label == OUTSIDE else "-".join(next(marks)) for label in labels]
    odd = [label for label in named if not _DASH.fullmatch(label)]
    if len(odd) < len(named) or any(_BARE.fullmatch(label) for label in named):
        raise UserError(f"{where}: labels {', '.join(odd[:8])} have no mark (B-, I-) and others have", hint=EXPECTED)
    return [label if label == OUTSIDE else f"I-{label}" for label in labels]
