"""The run-time type checker of the tests: beartype, with whole numbers accepted where floats are expected."""

from __future__ import annotations

from pathlib import Path

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
SOURCE = Path(__file__).parents[1] / "src"


def modules_with_shapes() -> list[str]:
    """Names of the package's modules whose signatures have shapes of jaxtyping."""
    paths = sorted(SOURCE.rglob("*.py"))
    found = [path for path in paths if "from jaxtyping import" in path.read_text(encoding="utf-8")]
    return [".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in found]
