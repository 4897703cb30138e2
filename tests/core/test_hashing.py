"""Hashed numbers look random, never change, and every use has a salt of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import unmask
from unmask.core.hashing import Salt, hash_keys, uniform

SOURCE = Path(unmask.__file__).parent
SHARED = {
    "CELL_HOLES_COPIED",
    "CELL_DONOR",
    "LINEAR_PART_ROWS",
    "SAVED_HOLES",
    "CELL_NUMBER",
    "CELL_WITHIN",
    "CELL_BROAD",
    "HELD_OUT_SUBJECT",
    "SYNTHETIC_MEMBER",
    "SYNTHETIC_COLUMN_ORDER",
    "SKETCH_HALF",
    "PREDICTION_TIME_SHOWN",
    "PREDICTION_TIME_GAP",
}
"""Names that share a number with another since version 0.1: this set never grows."""
WITHOUT = {
    "training/processes.py": 1,
    "modalities/images/network/codec.py": 1,
    "modalities/table/schema/values.py": 1,
    "modalities/events/audit/audit_people.py": 1,
}
"""Calls without a salt: seeds of processes (their other keys are no data), noise made from bits that were salted, and
what nothing is drawn by: the digest of a table's rows, fingerprints of events."""


def test_hashed_numbers_are_uniform_and_uncorrelated():
    n = 100_000
    x = uniform(7, 3, np.arange(n), 1)
    assert x.min() >= 0
    assert x.max() < 1
    counts = np.histogram(x, 20, (0, 1))[0]
    assert ((counts - n / 20) ** 2 / (n / 20)).sum() < 50  # chi-square with 19 degrees of freedom
    for other in (
        x[1:],
        uniform(7, 3, np.arange(n), 2),
        uniform(7, 4, np.arange(n), 1),
        uniform(8, 3, np.arange(n), 1),
    ):
        assert abs(np.corrcoef(x[: len(other)], other)[0, 1]) < 5 / np.sqrt(n)


def test_hash_keys_broadcast_and_their_order_counts():
    table = hash_keys(1, np.arange(3)[:, None], np.arange(4))
    assert table.shape == (3, 4)
    assert len(np.unique(table)) == 12
    assert table[2, 3] == hash_keys(1, 2, 3)
    assert hash_keys(-1) != hash_keys(1)


def test_numbers_of_version_0_1_are_still_the_same():
    assert hash_keys(0, 1, 2).item() == 6768782832058643234
    assert uniform(7, 3, np.arange(2), Salt.SLOT_ORDER).tolist() == [0.5607990538409088, 0.15325129995947906]
    assert {int(s) for s in Salt} == {
        *range(1, 8),
        *range(11, 17),
        21,
        22,
        23,
        *range(30, 34),
        *range(40, 55),
        56,
        57,
        58,
        *range(60, 65),
        *range(66, 72),
        73,
        79,
        82,
        *range(201, 208),
        *range(209, 212),
        *range(230, 233),
    }


def test_no_number_is_the_salt_of_two_uses():
    members = Salt.__members__
    assert {name for name, salt in members.items() if name != salt.name} == SHARED


def test_every_hashed_number_is_salted_by_a_name_that_no_other_module_uses():
    where: dict[str, set[str]] = {}
    bare: dict[str, int] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        file = path.relative_to(SOURCE).as_posix()
        if file == "core/hashing.py":
            continue
        tree = ast.parse(path.read_text())
        for name in _salts(tree):
            where.setdefault(name, set()).add(file)
        for call in _calls(tree):
            numbers = [
                n.value for n in ast.walk(call) if isinstance(n, ast.Constant) and isinstance(n.value, int) and n.value
            ]
            if not any("salt" in ast.unparse(a).lower() for a in call.args):
                bare[file] = bare.get(file, 0) + 1
                assert file in WITHOUT, f"{file}:{call.lineno}: {ast.unparse(call)}"
            else:
                assert not numbers, f"{file}:{call.lineno}: {ast.unparse(call)} has a number where a Salt belongs"
    assert bare == WITHOUT
    assert set(where) == set(Salt.__members__)
    assert {name: files for name, files in where.items() if len(files) > 1} == {}


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hash_keys", "uniform"):
            yield node


def _salts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Salt":
            yield node.attr
