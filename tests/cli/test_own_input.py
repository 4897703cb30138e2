"""No command writes its result over what it reads: asked before the model is loaded, for every kind of data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import run

COMMANDS = [
    ("text", "predict DATA --out DATA"),
    ("text", "zeroshot DATA --label a --label b --out DATA"),
    ("text", "embed DATA --out DATA"),
    ("text", "fill DATA --out DATA"),
    ("images", "predict DATA --out DATA"),
    ("images", "predict FOLDER --out DATA"),
    ("images", "predict FOLDER/*.csv --out DATA"),
    ("images", "embed DATA --out DATA"),
    ("images", "fill DATA --out DATA"),
    ("images", "fill other --mask DATA --out DATA"),
    ("images", "evaluate DATA --report DATA"),
    ("events", "predict FOLDER --labels other --out DATA"),
    ("events", "predict other --labels FOLDER --out DATA"),
    ("events", "embed FOLDER --out DATA"),
    ("events", "embed FOLDER --out FOLDER/v.npy"),
    ("events", "fill FOLDER --out DATA"),
    ("events", "score FOLDER --out DATA"),
]


@pytest.mark.parametrize(("kind", "command"), COMMANDS)
def test_the_input_is_kept(
    kind: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = tmp_path / "model", tmp_path / "data" / "mine.csv"
    for folder in (model, data.parent, tmp_path / "other"):
        folder.mkdir()
    monkeypatch.chdir(tmp_path)
    (model / "unmask.json").write_text(json.dumps({"kind": kind}))
    (data.parent / "v.ids.parquet").write_text("mine")
    data.write_text("text,label\nmine,a\n")
    before = data.read_bytes()
    verb, *rest = command.replace("DATA", str(data)).replace("FOLDER", str(data.parent)).split()
    code, _, error = run(capsys, verb, model, *rest)
    assert (code, "is a file that is read" in error) == (2, True), error
    assert data.read_bytes() == before


def test_the_audit_keeps_what_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e.parquet").write_text("mine")
    code, _, error = run(capsys, "events", "audit", tmp_path, "--out", tmp_path / "e.parquet")
    assert (code, "is a file that is read" in error) == (2, True), error
