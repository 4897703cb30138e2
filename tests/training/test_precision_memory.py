"""Device and precision are chosen for a stated reason; the allocator setting can be switched off."""

import subprocess
import sys
import time

import pytest
import torch

from unmask.errors import UserError
from unmask.training import precision
from unmask.training.memory import peak_memory
from unmask.training.precision import computing, precision_of, resolve_device, resolve_precision


def _pretend(monkeypatch, features: list[str], gain: float) -> None:
    monkeypatch.setattr(precision, "bf16_features", lambda: features)
    monkeypatch.setattr(precision, "measure_bf16_gain", lambda: gain)


@pytest.mark.parametrize(
    ("features", "gain", "picked"), [(["AMX"], 4.0, "bf16"), (["AMX"], 1.1, "fp32"), ([], 4.0, "fp32")]
)
def test_auto_needs_the_instructions_and_the_gain(monkeypatch, features, gain, picked):
    _pretend(monkeypatch, features, gain)
    chosen = resolve_precision("auto", "cpu")
    assert chosen.name == picked
    assert (f"{gain:.2f}x" in chosen.reason) == bool(features)


def test_bf16_without_the_instructions_is_allowed_with_a_warning(monkeypatch):
    _pretend(monkeypatch, [], 1.0)
    chosen = resolve_precision("bf16", torch.device("cpu"))
    assert chosen.dtype == torch.bfloat16
    assert "no bf16 instructions" in chosen.reason
    assert resolve_precision("fp32", "cpu").dtype == torch.float32
    with pytest.raises(UserError, match="precision=fp16"):
        resolve_precision("fp16", "cpu")


def test_the_measurement_is_short_and_sane():
    if not precision.bf16_features():
        pytest.skip("no bf16 instructions here: nothing would be measured")
    precision.measure_bf16_gain.cache_clear()
    start = time.perf_counter()
    gain = precision.measure_bf16_gain()
    assert 0.01 < gain < 100
    assert time.perf_counter() - start < 2.0  # 0.25 s on an idle machine; this one may be shared


def test_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto").type == resolve_device("cpu").type == "cpu"
    with pytest.raises(UserError, match="device=cuda"):
        resolve_device("cuda")
    with pytest.raises(UserError, match="device=tpu"):
        resolve_device("tpu")


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
@pytest.mark.parametrize("setting", ["0", "1"])
def test_memory_is_kept_only_when_asked(setting):
    # A process of its own: the setting cannot be taken back. 50 MB blocks, freed and taken again.
    code = (
        "import resource, ctypes\n"
        "from unmask.training.memory import keep_freed_memory\n"
        "first, again = keep_freed_memory(), keep_freed_memory()\n"
        "assert first == again\n"
        "def block(): b = bytearray(50_000_000); del b\n"
        "for _ in range(5): block()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(10): block()\n"
        "print(first, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"UNMASK_MALLOC": setting},
        capture_output=True,
        text=True,
        check=True,
    )
    kept, faults = run.stdout.split()
    if setting == "0":
        assert kept == "False"
        assert int(faults) > 10_000
    elif kept == "True":
        assert int(faults) < 10_000


def test_peak_memory_grows_with_use():
    before = peak_memory()
    block = torch.ones(int(before * 1e6 / 4) + 10_000_000)
    assert peak_memory() >= before + 20
    del block


def test_a_small_model_is_used_in_fp32_unless_asked_otherwise(monkeypatch):
    _pretend(monkeypatch, ["AMX"], 4.0)
    small, cpu = torch.nn.Linear(4, 4), torch.device("cpu")
    assert precision_of(small, "auto", cpu) == "fp32"
    assert precision_of(small, "bf16", cpu) == "bf16"
    with computing("bf16", cpu):
        assert small(torch.ones(1, 4)).dtype == torch.bfloat16
