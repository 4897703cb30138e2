"""Shared by all tests: the shape checker, one seed that failing tests print, and tiny models."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import checker

gc.disable()  # until all tests are collected: what is imported and collected stays

# Before anything imports the package, so that its modules are checked: all of the core and the encoder, and each other
# module that writes shapes.
checker.install(["unmask.core", "unmask.encoder", *checker.modules_with_shapes()])

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from other_processor import other_processor  # noqa: E402
from tiny import ARCHITECTURES, MODALITIES, RECIPES, Setup  # noqa: E402

torch.set_num_threads(1)
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
SEED = int(os.environ.get("UNMASK_TEST_SEED", "1234"))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture
def seed() -> int:
    """The seed of every random test; UNMASK_TEST_SEED chooses another."""
    torch.manual_seed(SEED)
    return SEED


@pytest.fixture(autouse=os.environ.get("UNMASK_TEST_PROCESSOR") == "other")
def processor():
    """With UNMASK_TEST_PROCESSOR=other the last bits of products depend on their shape, as on processors with other
    kernels."""
    with other_processor():
        yield


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if report.failed and "seed" in getattr(item, "fixturenames", ()):
        report.sections.append(("seed", f"UNMASK_TEST_SEED={SEED} pytest {item.nodeid}"))
    return report


@pytest.fixture(params=MODALITIES)
def modality(request: pytest.FixtureRequest):
    return MODALITIES[request.param]


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=RECIPES)
def recipe(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def setup(seed: int, modality, architecture: str, recipe: str) -> Setup:
    """A tiny model and examples: text and vectors x both architectures x both recipes."""
    return Setup(modality, architecture, recipe, seed)
