"""Fine-tuning of an event model in two processes gives the weights of one, and goes on in one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from several import together
from unmask.modalities.events.outcome.outcome import HeadFinetuning
from unmask.modalities.events.recipes import OutcomeSettings
from unmask.modalities.events.uses.finetune import finetune_outcome

SHORT = OutcomeSettings(
    epochs=3,
    members=2,
    hidden=8,
    trees=5,
    curve=False,
    baselines=False,
    precision="fp32",
    device="cpu",
)


def tuned(home: Path, out: Path, stop_at: int | None = None, **more: Any) -> str:
    """How a fine-tuning ended; a signal comes in the middle of a step."""
    really = HeadFinetuning.backward

    def backward(self: Any, *items: Any, **about: Any) -> Any:
        if about["step"] == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return really(self, *items, **about)

    HeadFinetuning.backward = backward  # type: ignore[method-assign]
    try:
        given = (home / "model", home / "meds", home / "task", out)
        return finetune_outcome(*given, settings=SHORT, checkpoints=True, **more).figures["stopped"]
    finally:
        HeadFinetuning.backward = really  # type: ignore[method-assign]


def both(home: Path, out: Path) -> tuple[str, str]:
    return tuned(home, out / "two"), tuned(home, out / "mixed", stop_at=2)


def test_two_processes_fit_what_one_does_and_one_goes_on(home, tmp_path):
    assert together(2, both, home, tmp_path) == [("finished", "signal")] * 2
    assert not (tmp_path / "mixed").exists()
    assert tuned(home, tmp_path / "mixed", resume=True) == tuned(home, tmp_path / "alone") == "finished"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["alone", "mixed", "two"]
    expected = load_file(tmp_path / "alone" / "model.safetensors")
    for name in ("two", "mixed"):
        for part, value in load_file(tmp_path / name / "model.safetensors").items():
            np.testing.assert_allclose(value, expected[part], atol=1e-4, err_msg=f"{name} {part}")
