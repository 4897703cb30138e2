"""FASTA files, and sequences as k-mers."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from unmask.core.batch import Example
from unmask.errors import UserError

BASES, UNSURE = "ATCG", "NRYSWKMBDHV"
SPECIAL = 5  # tokens as DNABERT has them: [PAD] [UNK] [CLS] [SEP] [MASK], then all k-mers


@dataclass(frozen=True, kw_only=True)
class Stretch(Example):
    """[CLS], all overlapping k-mers, [SEP]; a k-mer with an unsure base is [UNK], and counts as missing."""

    bases: str


def stretch(bases: str, k: int, identity: int) -> Stretch:
    windows = np.lib.stride_tricks.sliding_window_view([BASES.find(base) for base in bases], k)
    tokens = np.where((windows < 0).any(1), 1, SPECIAL + windows @ 4 ** np.arange(k)[::-1])
    values, special = {"token": np.concatenate([[2], tokens, [3]])}, np.pad(tokens < 0, 1, constant_values=True)
    return Stretch(values=values, identity=identity, special=special, observed=values["token"] != 1, bases=bases)


def bases_of(tokens: np.ndarray, k: int) -> np.ndarray:
    """The number of every base of a stretch, by the k-mer that begins with it (for the last ones by the last k-mer)."""
    at = np.arange(len(tokens) - 3 + k)
    first = np.minimum(at, len(tokens) - 3)
    return (tokens[1:-1][first] - SPECIAL) // 4 ** (k - 1 - at + first) % 4


def read_fasta(path: str) -> dict[str, str]:
    """Name -> sequence in capitals. Raises: UserError naming file and line."""
    try:
        lines = Path(path).read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}", hint="Expected a FASTA file.") from None
    found: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if line.startswith(">"):
            name = (line[1:].split() or [f"line {number}"])[0]
            if name in found:
                raise UserError(f"{path}:{number}: a second sequence named {name}", hint="Names must differ.")
            found[name] = ""
        elif line and not found:
            raise UserError(f"{path}:{number}: no '>' line above it", hint="Expected a FASTA file.")
        elif odd := set(line.upper()) - set(BASES + UNSURE):
            raise UserError(f"{path}:{number}: {min(odd)!r}", hint=f"Expected {BASES}, or {UNSURE} where unsure.")
        elif line:
            found[name] += line.upper()
    return found


def stretches(path: str, k: int, slots: int) -> list[tuple[str, Stretch]]:
    """The sequences of a file by name, cut evenly where they are longer than `slots`."""
    found: list[tuple[str, Stretch]] = []
    for name, bases in (read_fasta(path) or {"(none)": ""}).items():
        if len(bases) < k:
            raise UserError(f"{path}: {name} has {len(bases)} bases", hint=f"Expected {k} or more, for one {k}-mer.")
        ends = np.linspace(0, len(bases), -(-len(bases) // (slots - 3 + k)) + 1).astype(int)
        found += [(name, stretch(bases[a:b], k, len(found) + i)) for i, (a, b) in enumerate(pairwise(ends))]
    return found
