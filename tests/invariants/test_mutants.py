"""The laws can fail: every broken copy of the source is noticed by the law it breaks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mutants import LAWS, MUTANTS, Mutant
from mutants_events import MUTANTS as EVENTS
from mutants_images import MUTANTS as IMAGES

import unmask

MUTANTS = [*MUTANTS, *IMAGES, *EVENTS]
TESTS = Path(__file__).parents[1]
PACKAGE = Path(unmask.__file__).parent


def run_law(law: int, source: Path) -> subprocess.CompletedProcess[str]:
    """Run one law's tests on the package under `source`."""
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    where = "import unmask, sys; sys.exit(0 if unmask.__file__.startswith(sys.argv[1]) else 9)"
    subprocess.run([sys.executable, "-c", where, str(source)], env=environment, check=True)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", str(TESTS / "invariants" / LAWS[law])],
        env=environment,
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"law{m.law}-{m.name}")
def test_every_mutant_still_applies(mutant: Mutant, tmp_path: Path):
    """Quick: the source still holds what the slow test breaks, and the broken copy compiles."""
    for file, *_ in mutant.edits:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PACKAGE / file, tmp_path / file)
    mutant.apply(tmp_path)
    for file, *_ in mutant.edits:
        compile((tmp_path / file).read_text(), file, "exec")


def test_every_law_has_a_mutant():
    assert {m.law for m in MUTANTS} == set(LAWS)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(PACKAGE, tmp_path / "unmask", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_an_unbroken_copy_passes(law: int, copy: Path):
    done = run_law(law, copy)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"law{m.law}-{m.name}")
def test_the_law_notices(mutant: Mutant, copy: Path):
    mutant.apply(copy / "unmask")
    done = run_law(mutant.law, copy)
    assert done.returncode == 1, f"law {mutant.law} did not notice: {mutant.name}\n{done.stdout[-2000:]}"
