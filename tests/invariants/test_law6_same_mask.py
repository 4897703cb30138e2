"""Law 6. The same seed, epoch and example give the same mask, whatever stands beside it and wherever it is drawn."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tiny import MODALITIES
from unmask.core.batch import PackedBatch, pack
from unmask.core.corruption import Corruption, Mixture, Spans, Uniform, Units
from unmask.core.density import LogitNormalDensity, UniformDensity, by_ratio
from unmask.core.pooled import AllButCrop
from unmask.modalities.table.distribution.cells import CellMasks

SELECTORS = {
    "uniform": Uniform(ratio=(0.1, 0.6)),
    "units": Units(ratio=0.3),
    "spans": Spans(ratio=0.3),
    "crop": AllButCrop(),
}
SELECTORS["mixture"] = Mixture(first=Units(ratio=0.3), second=Uniform(ratio=0.5))
SELECTORS["density"] = Uniform(ratio=UniformDensity())
SELECTORS["bell"] = Spans(ratio=LogitNormalDensity(median=0.5, deviation=0.8))
SELECTORS["cells"] = CellMasks(patterns=np.random.default_rng(5).random((7, 64)) < 0.3)
Masks = dict[int, list[tuple[int, int, int, float]]]


def masks(batch: PackedBatch, corruption: Corruption, seed: int, epoch: int = 0) -> Masks:
    """identity -> (position, action, noise bits, weight) of its hidden slots."""
    hidden = corruption.draw(batch, seed=seed, epoch=epoch)
    out: Masks = {}
    identity, position = batch.identity.flatten()[hidden.flat], batch.position.flatten()[hidden.flat]
    for i, *what in zip(
        *(t.tolist() for t in (identity, position, hidden.action, hidden.bits, hidden.weight)), strict=True
    ):
        out.setdefault(i, []).append(tuple(what))
    return out


def places(hidden: list[tuple[int, int, int, float]]) -> list[int]:
    return [position for position, *_ in hidden]


def examples(modality, seed: int, count: int = 24):
    lengths = np.random.default_rng(seed).integers(4, 30, count)
    return [modality.example(1000 + 7 * i, int(n), seed) for i, n in enumerate(lengths)]


@pytest.fixture(params=SELECTORS)
def corruption(request) -> Corruption:
    return Corruption(select=SELECTORS[request.param], weigh=by_ratio)


def test_packing_order_and_company_do_not_matter(modality, corruption, seed: int, rng):
    data = examples(modality, seed)
    expected = masks(pack(data, slots=64), corruption, seed)
    assert len(expected) > 0.8 * len(data)  # an example whose first unit is larger than its count may hide nothing
    shuffled = [data[i] for i in rng.permutation(len(data))]
    assert masks(pack(shuffled, slots=40), corruption, seed) == expected
    assert masks(pack(data, slots=32, placement=[[i] for i in range(len(data))], rows=30), corruption, seed) == expected
    alone: Masks = {}
    for e in data:
        alone |= masks(pack([e], slots=len(e)), corruption, seed)
    assert alone == expected
    halves = masks(pack(shuffled[:12], slots=64), corruption, seed) | masks(
        pack(shuffled[12:], slots=64), corruption, seed
    )
    assert halves == expected


def test_another_epoch_or_seed_is_another_mask_and_static_the_same(modality, corruption, seed: int):
    batch = pack(examples(modality, seed), slots=64)
    first = masks(batch, corruption, seed)
    assert masks(batch, corruption, seed) == first
    for other in (masks(batch, corruption, seed, epoch=1), masks(batch, corruption, seed + 1)):
        assert np.mean([other.get(i) == first[i] for i in first]) < 0.2
        # Where they are, noise bits left aside: those differ anyway. Short examples may agree by chance.
        assert np.mean([places(other.get(i, [])) == places(first[i]) for i in first]) < 0.4
    static = Corruption(select=corruption.select, static=True, weigh=by_ratio)
    assert masks(batch, static, seed, epoch=5) == masks(batch, static, seed, epoch=0)


def test_examples_with_equal_values_have_masks_of_their_own(modality, seed: int):
    same = modality.repeated(30)
    batch = pack([type(same)(values=same.values, identity=i) for i in range(20)], slots=30)
    found = masks(batch, Corruption(select=Uniform(ratio=0.3), weigh=by_ratio), seed)
    assert len({tuple(p for p, *_ in m) for m in found.values()}) > 15


def report(seed: int) -> str:
    modality = MODALITIES["text"]
    batch = pack(examples(modality, seed), slots=64)
    return repr(
        [sorted(masks(batch, Corruption(select=s, weigh=by_ratio), seed, epoch=3).items()) for s in SELECTORS.values()]
    )


def test_another_process_draws_the_same(seed: int):
    here = Path(__file__).parent
    code = f"import test_law6_same_mask as t; print(t.report({seed}))"
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "77"}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == report(seed)
