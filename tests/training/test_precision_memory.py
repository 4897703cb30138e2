"""Device and precision are chosen for a stated reason; the allocator setting can be switched off."""

import subprocess
import sys

import pytest
import torch

from unmask.errors import UserError
from unmask.memory import peak_memory
from unmask.training import precision
from unmask.training.precision import computing, precision_of, resolve_device, resolve_precision

OPEN = ["bf16 through oneDNN"]


def _pretend(monkeypatch, features: list[str], gain: float) -> None:
    monkeypatch.setattr(precision, "bf16_features", lambda: features)
    monkeypatch.setattr(precision, "remembered_gain", lambda: gain)


@pytest.mark.parametrize(
    ("features", "gain", "picked"),
    [
        (["AMX", "AVX512-bf16"], 0.1, "bf16"),
        (["AVX512-bf16"], 1.8, "bf16"),
        (["AVX512-bf16"], 0.5, "fp32"),
        (OPEN, 4.0, "bf16"),
        (OPEN, 1.1, "fp32"),
        ([], 4.0, "fp32"),
    ],
)
def test_what_the_processor_can_do_decides_and_a_measurement_only_where_that_is_open(
    monkeypatch, features, gain, picked
):
    """A measurement beside other work took fp32 on a processor with AMX: 2 700 slots/s where bf16 gives 20 000. And
    AVX512-bf16 alone says nothing: bf16 was half as fast as fp32 on an Intel processor whose AMX was hidden."""
    _pretend(monkeypatch, features, gain)
    chosen = resolve_precision("auto", "cpu")
    assert chosen.name == picked
    assert (f"{gain:.2f}x" in chosen.reason) == (bool(features) and "AMX" not in features)


def test_processors_of_one_name_are_told_apart(monkeypatch):
    """Virtual machines call models with and without fast bf16 alike: 'Intel(R) Xeon(R) Processor'."""
    about = "model name\t: Intel(R) Xeon(R) Processor\ncpu family\t: 6\nmodel\t\t: {}\nstepping\t: 2\n"
    names = set()
    for model in (143, 207):
        monkeypatch.setattr(precision.Path, "read_text", lambda self, errors, model=model: about.format(model))
        names.add(precision.processor_name())
    assert names == {f"Intel(R) Xeon(R) Processor 6 {model} 2" for model in (143, 207)}


def test_what_was_measured_is_remembered_by_processor_torch_and_shape(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gains = iter([2.0, 0.5, 0.25])
    monkeypatch.setattr(precision, "measure_bf16_gain", lambda: next(gains))
    assert [precision.remembered_gain() for _ in range(3)] == [2.0] * 3
    monkeypatch.setattr(precision, "processor_name", lambda: "another")
    assert [precision.remembered_gain() for _ in range(2)] == [0.5] * 2
    (tmp_path / "unmask" / "precision.json").write_text("{broken")
    assert precision.remembered_gain() == 0.25
    assert [p.name for p in (tmp_path / "unmask").iterdir()] == ["precision.json"]


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(precision, "measure_bf16_gain", lambda: 3.0)
    assert precision.remembered_gain() == 3.0
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert precision.cache_folder().is_absolute()


def test_bf16_without_the_instructions_is_allowed_with_a_warning(monkeypatch):
    _pretend(monkeypatch, [], 1.0)
    chosen = resolve_precision("bf16", torch.device("cpu"))
    assert chosen.dtype == torch.bfloat16
    assert "no bf16 instructions" in chosen.reason
    assert resolve_precision("fp32", "cpu").dtype == torch.float32
    with pytest.raises(UserError, match="precision=fp16"):
        resolve_precision("fp16", "cpu")


def test_the_measurement_counts_this_thread_alone(monkeypatch):
    """Wall time went on while others had the processor: the clock of this thread does not."""
    monkeypatch.setattr(precision, "LAYER", (16, 8, 8))
    ticks = iter(range(1000))
    monkeypatch.setattr(precision.time, "thread_time", lambda: float(next(ticks)) * 1e-3)
    monkeypatch.setattr(precision.time, "perf_counter", lambda: pytest.fail("wall time"))
    assert precision.measure_bf16_gain() == pytest.approx(1.0)


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
        "from unmask.memory import keep_freed_memory\n"
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
