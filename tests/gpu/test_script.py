"""What waits for a GPU in one script runs whole on the stand-in, at tiny shapes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_every_part_runs_and_is_not_run_again(tmp_path: Path):
    pytest.importorskip("transformers")
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--out", str(tmp_path), "--dry"]
    subprocess.run(command, check=True)
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert found.keys() == {"walk", "text", "images", "events", "long"}
    assert all(part["dry"] for part in found.values())
    assert all(found[part]["ours"]["speed"] > 0 for part in ("text", "images", "events"))
    again = subprocess.run(command, check=True, capture_output=True, text=True)
    assert again.stdout.count(": done, see ") == len(found)
