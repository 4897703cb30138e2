"""The same thing has the same key in `--json` of all kinds of data, and docs/reference/json.md lists them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import tiny_folders
from commands import exit_code
from packages import ROOT
from tiny_images import TINY, bars
from tiny_kinds import clinic, hospital

EVERY = {"seed", "seconds", "device", "precision"}
KINDS = ("text", "table", "images", "events")


def listed(command: str, kind: str) -> tuple[set[str], set[str]]:
    """(keys that are always there, those that may be) of a command's table."""
    page = (ROOT / "docs/reference/json.md").read_text()
    section = re.search(rf"^## {command}\n(.*?)(?=^## )", page, re.M | re.S)
    assert section is not None
    always, sometimes = set(), set()
    for cell, kinds in re.findall(r"^\| (`.*?) \| (.*?) \|", section[1], re.M):
        if kinds == "all" or kind in kinds.split(", "):
            for key, remark in re.findall(r"`(\w+)`( \()?", re.sub(r"\(([^)`]*)`[^)]*\)", r"(\1)", cell)):
                (sometimes if remark else always).add(key)
    return always, sometimes


def words(kind: str, here: Path) -> dict[str, list[Any]]:
    """The commands of a kind on data of a few rows, in an order in which they find what they need."""
    data, model, tuned = here / "data", here / "model", here / "tuned"
    small = {
        "table": ["steps=0"],
        "images": [f"{k}={v}" for k, v in (TINY | {"patch": 2, "steps": 2}).items()],
        "events": ["width=32", "layers=1", "heads=2", "inner=32", "slots=32", "batch_slots=128", "steps=2", "floor=1"],
        "text": ["width=32", "layers=1", "heads=2", "slots=32", "batch_slots=128", "steps=2", "vocabulary=300"],
    }[kind]
    out = {
        "pretrain": [kind, data, "--out", model, *(word for pair in small for word in ("--set", pair))],
        "fill": [model, data, "--out", here / "filled"],
        "score": [model, data],
        "embed": [model, data, "--out", here / "vectors.npy"],
        "evaluate": [model, data],
        "inspect": [model],
    }
    if kind == "text":
        (here / "blanks.txt").write_text("the [MASK] fox\nand [MASK] it [MASK]\n")
        rows = tiny_folders.sentiment(24)
        pl.DataFrame(rows, schema=["text", "label"], orient="row").write_csv(here / "rows.csv")
        (here / "data.txt").write_text("\n".join(f"{text} {i}." for i, (text, _) in enumerate(rows)))
        out = {name: [here / "data.txt" if w == data else w for w in ws] for name, ws in out.items()}
        out["fill"][1] = here / "blanks.txt"
        out["finetune"] = ["classify", model, here / "rows.csv", "--out", tuned, "--epochs", 1, "--set", "start=plain"]
        out["predict"] = [tuned, here / "rows.csv", "--out", here / "p.jsonl"]
    if kind == "table":
        clinic().to_csv(here / "data.csv", index=False)
        out = {name: [f"{w}.csv" if w in (data, here / "filled") else w for w in ws] for name, ws in out.items()}
    if kind == "images":
        pixels, labels = bars()
        np.savez(here / "data.npz", x_train=pixels, y_train=labels, x_test=pixels[:12], y_test=labels[:12])
        out = {name: [here / "data.npz" if w == data else w for w in ws] for name, ws in out.items()}
        out["fill"][3] = here / "filled.npy"
        out["finetune"] = ["classify", model, here / "data.npz", "--out", tuned, "--epochs", 1]
        out["predict"] = [tuned, here / "data.npz", "--out", here / "p.jsonl"]
    if kind == "events":
        meds, task = hospital(here), here / "task"
        task.mkdir()
        ids = pl.read_parquet(meds / "data" / "**" / "*.parquet")["subject_id"].unique(maintain_order=True)
        labels = pl.DataFrame({"subject_id": ids, "boolean_value": [i % 2 == 0 for i in range(len(ids))]})
        when = pl.lit("2020-01-04 12:00:00").str.to_datetime(time_unit="us").alias("prediction_time")
        labels.with_columns(when).write_parquet(task / "0.parquet")
        out = {name: [meds if w == data else w for w in ws] for name, ws in out.items()}
        out["finetune"] = ["outcome", model, meds, "--labels", task, "--out", tuned]
        for pair in ("epochs=1", "members=2", "trees=0", "curve=false", "baselines=false"):
            out["finetune"] += ["--set", pair]
        out["predict"] = [tuned, meds, "--labels", task, "--out", here / "p.parquet"]
        out["evaluate"] = [tuned, meds, "--labels", task]
    return out


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_printed_is_listed(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    order = ["pretrain", "finetune", "fill", "score", "embed", "predict", "evaluate", "inspect"]
    commands = words(kind, tmp_path)
    for name in [n for n in order if n in commands]:
        code = exit_code(name, *commands[name], "--json")
        printed = capsys.readouterr()
        assert code == 0, (name, printed.err)
        found = json.loads(printed.out)
        assert set(found) >= EVERY
        if name in ("evaluate", "inspect"):
            assert set(found) >= {"evaluate": {"rows"}, "inspect": {"kind", "parameters", "slots"}}[name], name
            continue
        always, sometimes = listed(name, kind)
        missing, unlisted = always - set(found), set(found) - always - sometimes - EVERY
        assert not missing, (name, missing)
        assert name == "finetune" or not unlisted, (name, unlisted)
        for key in ("rows", "slots", "filled_slots", "skipped"):
            assert isinstance(found.get(key, 0), int), (name, key)
        if name == "score":
            assert len(found["results"]) == found["rows"]
            assert sum(row["slots"] for row in found["results"]) == found["slots"]
            assert all({"score", "slots"} <= set(row) for row in found["results"])
