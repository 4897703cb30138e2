"""The checkers of the code find what they are there to find."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import checker

ROOT = Path(__file__).parents[1]
PLANTED = '''"""A module with an undefined name."""

from typing import Annotated as Float  # as jaxtyping shows it to checkers

Array = list[float]


def total(rows: int, x: Float[Array, " hidden"], y: Float[Array, "rows hidden"]) -> int:
    """Names of a shape are not names of values."""
    return rows + {name}
'''


def errors(name: str, command: list[str], path: Path) -> str:
    """What a checker says of the module with this name planted."""
    path.write_text(PLANTED.replace("{name}", name), encoding="utf-8")
    return subprocess.run([*command, str(path)], capture_output=True, text=True, cwd=ROOT).stdout


@pytest.mark.parametrize(
    ("module", "options", "code"),
    [
        ("ruff", ["check", "--config=pyproject.toml", "--no-cache"], "F821"),
        ("mypy", ["--config-file=pyproject.toml", "--cache-dir=/dev/null"], "name-defined"),
    ],
)
def test_a_shape_name_used_as_a_value_is_found(module: str, options: list[str], code: str, tmp_path: Path):
    """They were once exempted as names of shapes: `n`, `hidden`, `values` passed everywhere."""
    if shutil.which(module, path=str(Path(sys.executable).parent)) is None:
        pytest.skip(f"{module} is not installed")
    command = [sys.executable, "-m", module, *options]
    assert code in errors("hidden", command, tmp_path / "planted.py")
    assert code not in errors("1", command, tmp_path / "planted.py")


SHAPES = """
from __future__ import annotations
from collections.abc import Iterator
from dataclasses import dataclass
from jaxtyping import Float
from torch import Tensor

def equal(a: Float[Tensor, "rows"], b: Float[Tensor, "rows"], *, rest: Float[Tensor, "rows"] | None = None) -> None: ...

def made(a: Float[Tensor, "rows"], size: int) -> Float[Tensor, "rows"]:
    return a.new_zeros(size)

def whole(a: float, *more: int, **named: str) -> float:
    return a

def later(pair: Pair) -> Pair:
    return pair

@dataclass
class Pair:
    a: Float[Tensor, "rows"]
    b: Float[Tensor, "rows"]

    @property
    def both(self) -> Float[Tensor, "rows"]:
        return self.a[None]

    @classmethod
    def of(cls, a: Float[Tensor, "rows"]) -> Pair:
        return cls(a, a)

    def calls(self, other: Float[Tensor, "rows"]) -> None:
        equal(other, other)

def within(a: Float[Tensor, "rows"], *more: object, wrong: bool = False) -> Float[Tensor, "rows"]:
    def function(b: Float[Tensor, "rows"], *rest: Float[Tensor, "rows"], **named: int) -> Float[Tensor, "rows"]:
        return b[None] if wrong else b
    return function(a, *more, **({"named": "word"} if more and wrong else {}))

def several(a: Float[Tensor, "rows"]) -> Iterator[Float[Tensor, "rows"]]:
    yield a
"""


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory):
    """A module that the tests' own checker of shapes watches."""
    folder = tmp_path_factory.mktemp("shapes")
    (folder / "watched_shapes.py").write_text(SHAPES, encoding="utf-8")
    sys.path.insert(0, str(folder))
    with checker.install(["watched_shapes"]):
        yield importlib.import_module("watched_shapes")
    sys.path.remove(str(folder))


TWO, THREE, SQUARE = torch.zeros(2), torch.zeros(3), torch.zeros(2, 2)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (lambda m: m.equal(TWO, TWO), lambda m: m.equal(TWO, THREE)),
        (lambda m: m.equal(TWO, TWO, rest=TWO), lambda m: m.equal(TWO, TWO, rest=THREE)),
        (lambda m: m.equal(TWO, b=TWO), lambda m: m.equal(TWO, b=TWO.long())),
        (lambda m: m.equal(TWO, TWO), lambda m: m.equal(SQUARE, SQUARE)),
        (lambda m: m.made(TWO, 2), lambda m: m.made(TWO, 3)),
        (lambda m: m.whole(1, 2, n="a"), lambda m: m.whole("1")),
        (lambda m: m.whole(1.5, 2), lambda m: m.whole(1.5, "2")),
        (lambda m: m.whole(1.5), lambda m: m.whole(1.5, n=2)),
        (lambda m: m.later(m.Pair(TWO, TWO)), lambda m: m.later(TWO)),
        (lambda m: m.Pair(THREE, THREE), lambda m: m.Pair(TWO, THREE)),
        (lambda m: m.Pair.of(TWO), lambda m: m.Pair.of(SQUARE)),
        (lambda m: m.Pair(TWO, TWO).calls(THREE), lambda m: m.Pair(TWO, TWO).calls(SQUARE)),
        (lambda m: m.Pair, lambda m: m.Pair(TWO, TWO).both),
        (lambda m: m.within(TWO), lambda m: m.within(TWO, wrong=True)),
        (lambda m: m.within(TWO, TWO, TWO), lambda m: m.within(TWO, TWO, THREE)),
        (lambda m: m.within(TWO, TWO), lambda m: m.within(TWO, TWO, wrong=True)),
        (lambda m: next(m.several(TWO)), lambda m: m.several(SQUARE)),
    ],
)
def test_a_value_that_does_not_fit_its_annotation_is_found(shapes, right, wrong):
    """Arguments, results, what one name stands for in both; in functions, methods, dataclasses and inner functions."""
    for _ in range(2):
        right(shapes)
        with pytest.raises(TypeError):
            wrong(shapes)
