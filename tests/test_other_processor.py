"""No test of the table's network asks for bits that only one kind of processor gives; see `other_processor.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from other_processor import LANES, other_processor

ROOT = Path(__file__).parents[1]
FILES = (
    "tests/modalities/table/distribution/test_network.py",
    "tests/modalities/table/distribution/test_boosted_stumps.py",
    "tests/core/test_fill.py",
    "tests/invariants/test_law1_no_leak.py",
)


def test_the_other_processor_is_right_to_single_precision_and_another_by_shape(seed: int):
    a, b = torch.randn(40, 30), torch.randn(30, 20)
    with other_processor():
        whole, part, again = a @ b, a[:7] @ b, a @ b
        exact, rest = torch.zeros(LANES).exp(), torch.zeros(LANES + 1).exp()
    torch.testing.assert_close(whole, a @ b, atol=1e-5, rtol=1e-5)
    assert torch.equal(whole, again)
    assert not torch.equal(whole[:7], part)
    assert (exact == 1).all()
    assert (rest == 1).sum() == LANES


@pytest.mark.slow
def test_tests_pass_on_the_other_processor():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *FILES, "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=os.environ | {"UNMASK_TEST_PROCESSOR": "other"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
