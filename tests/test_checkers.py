"""The checkers of the code find what they are there to find."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
