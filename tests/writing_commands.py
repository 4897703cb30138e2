"""Every command that writes files, small, on data whose rows, texts, patients and pictures can be told in what is
written. `missing` compares them with the registry, so that a new one is not forgotten."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
from PIL import Image

import tiny_folders
from commands import exit_code
from tiny_images import class_folder
from unmask.plugins import resolve
from unmask.registry import modalities

PLACES = {"out", "schema_out", "report", "intervals"}
"""Parameters that name what is written."""
PATIENT = 98_000_000
"""Id of the first patient; the first and the last have the same record."""
QUOTED = ("Quendolin", "Zaphrod", "980000")
"""Parts of every name of a person in the texts and the table, and of every patient's id."""
SMALL_IMAGES = "--set width=16 --set layers=1 --set heads=2 --set decoder_width=16 --set decoder_layers=1 --set patch=4"
SMALL_EVENTS = (
    "--set width=16 --set layers=1 --set heads=2 --set inner=16 --set slots=64 --set floor=1 --set questions=4 "
    "--set until=last"
)
QUESTION = "LAB//1 within 30 days"
CASES = {
    "text prepare": "prepare text {home}/texts.txt --out {out} --workers 1 --set vocabulary=300",
    "text pretrain": "pretrain text {home}/texts.txt --out {out} --steps 6 --set width=16 --set layers=1 --set heads=2 "
    "--set vocabulary=300 --set checkpoint_every=2",
    "text adapt": "adapt {home}/bert {home}/texts.txt --out {out} --steps 6 --set checkpoint_every=2",
    "text fill": "fill {home}/bert {home}/masked.txt --out {out}.jsonl",
    "text generate": "generate {home}/bert --length 5 --number 3 --out {out}.jsonl",
    "text embed": "embed {home}/bert {home}/texts.txt --out {out}.npy",
    "text zeroshot": "zeroshot {home}/bert {home}/texts.txt --label good --label bad --out {out}.jsonl "
    "--template {{text}}[MASK]",
    "text surgery": "surgery {home}/bert --out {out} --positions 96",
    "text finetune classify": "finetune classify {home}/bert {home}/labelled.csv --out {out} --epochs 1",
    "text finetune classify seeds": "finetune classify {home}/bert {home}/labelled.csv --validation "
    "{home}/labelled.csv --out {out} --epochs 1 --seeds 2",
    "text finetune tag": "finetune tag {home}/bert {home}/tags.conll --out {out} --epochs 1",
    "text finetune answer": "finetune answer {home}/bert {home}/squad.json --out {out} --epochs 1",
    "text finetune similarity": "finetune similarity {home}/bert {home}/pairs.csv --out {out} --epochs 1",
    "text predict": "predict {home}/classify {home}/texts.txt --out {out}.jsonl",
    "text predict tag": "predict {home}/tag {home}/tags.conll --out {out}.jsonl",
    "text predict answer": "predict {home}/answer {home}/squad.json --out {out}.jsonl",
    "text export hf": "export {home}/bert --to hf --out {out}",
    "text export sentence-transformers": "export {home}/bert --to sentence-transformers --out {out}",
    "text export onnx": "export {home}/bert --to onnx --out {out}",
    "text export share": "export {home}/classify --to share --out {out}",
    "table describe": "describe {home}/wrong.csv --out {out}.html --schema-out {out}.toml",
    "table pretrain": "pretrain table {home}/table.csv --out {out} --steps 4 --set members=2",
    "table fill": "fill {home}/table {home}/table.csv --out {out}.csv",
    "table impute": "impute {home}/table {home}/table.csv --out {out}.csv --intervals {out}-cells.csv",
    "table impute proper": "impute {home}/table.csv --out {out}.csv --proper 2 --rounds 1 --report {out}.html",
    "table generate": "generate {home}/table --number 3 --out {out}.csv",
    "table synthesize": "synthesize {home}/table --rows 5 --out {out}.csv",
    "table augment": "augment {home}/table {home}/table.csv --rows 5 --out {out}.csv --where age>40",
    "table embed": "embed {home}/table {home}/table.csv --out {out}.npy",
    "table evaluate": "evaluate {home}/table {home}/table.csv --report {out}.html",
    "images pretrain": "pretrain images {home}/pictures --out {out} --steps 6 --set checkpoint_every=2 " + SMALL_IMAGES,
    "images describe": "describe {home}/pictures --out {out}.html",
    "images fill": "fill {home}/images {home}/pictures --ratio 0.5 --out {out}.png",
    "images embed": "embed {home}/images {home}/pictures --out {out}.npy",
    "images finetune classify": "finetune classify {home}/images {home}/pictures --out {out} --steps 4",
    "images finetune segment": "finetune segment {home}/images {home}/pictures --masks {home}/masks --out {out} "
    "--steps 2",
    "images predict": "predict {home}/classifier {home}/pictures --out {out}.jsonl",
    "images predict a segmenter": "predict {home}/segmenter {home}/pictures --out {out}",
    "images evaluate a segmenter": "evaluate {home}/segmenter {home}/pictures --masks {home}/masks --report {out}.html",
    "images evaluate": "evaluate {home}/classifier {home}/pictures --report {out}.html",
    "events prepare": "prepare events {home}/meds --out {out} --workers 1 --set floor=1",
    "events pretrain": f"pretrain events {{home}}/meds --out {{out}} --steps 6 --set checkpoint_every=2 {SMALL_EVENTS}",
    "events fill": "fill {home}/events {home}/meds --out {out}.parquet",
    "events score": "score {home}/events {home}/meds --out {out}.parquet",
    "events embed": "embed {home}/events {home}/meds --out {out}.parquet",
    "events finetune outcome": "finetune outcome {home}/events {home}/meds --labels {home}/task --out {out} --epochs 2 "
    "--set members=2 --set trees=0 --set curve=false --set baselines=false",
    "events finetune next-visit": "finetune next-visit {home}/events {home}/meds --out {out} --epochs 2 "
    "--set members=2 --set codes=LAB",
    "events predict": "predict {home}/outcome {home}/meds --labels {home}/task --out {out}.parquet",
    "events ask": "ask {home}/events {home}/meds QUESTION --out {out}.parquet --report {out}.html",
    "events generate": "events generate {home}/meds --patients 5 --out {out}",
    "events labels": "events labels {home}/meds --task {home}/task.yaml --out {out}",
    "events convert": "events convert {home}/events.csv --out {out}",
    "events audit": "events audit {home}/meds --labels {home}/task --out {out}.html",
}
"""Kind of data and command -> its words."""
OTHERS = {
    "text evaluate glue": "needs the nine tasks",
    "text finetune another package's task": "as classify",
}
"""Commands that write and are not here, and why."""
EXIT_CODES = {"events audit": 1}
"""Of a success, where it is not 0: the audit warns."""


def words_of(name: str, home: Path, out: Path) -> list[str]:
    """The words of a case, which writes what begins with `out`."""
    words = [word.format(home=home, out=out) for word in CASES[name].split()]
    return [QUESTION if word == "QUESTION" else word for word in words]


def missing() -> list[str]:
    """What the registry has that writes and is no case."""

    def found() -> Iterator[tuple[str, str, set[str]]]:
        for kind, one in modalities().items():
            if one.load.startswith("unmask."):
                for command in one.commands:
                    for label, case in one.cases(command).items():
                        tail = "" if label == kind else f" {label}"
                        yield f"{kind} {command}{tail}", case.run, set(case.without.split())
                yield from ((f"{kind} {tool}", run, set()) for tool, run in one.tools.items())

    return [
        name
        for name, run, without in found()
        if (set(inspect.signature(resolve(run)).parameters) - without) & PLACES and name not in CASES.keys() | OTHERS
    ]


def prepare(home: Path) -> None:
    """The data that the cases read, and a model of each kind and task."""
    draw = np.random.default_rng(0)
    said = [f"The quick brown fox jumps over Quendolin{i} near the river, {w}." for i, w in enumerate("abcdefgh" * 8)]
    (home / "texts.txt").write_text("\n".join(said))
    (home / "masked.txt").write_text("\n".join(text.replace("fox", "[MASK]") for text in said[:6]))
    labels = ("good", "bad")
    (home / "labelled.csv").write_text(
        "text,label\n" + "".join(f"{t.split(',')[0]} {labels[i % 2]},{labels[i % 2]}\n" for i, t in enumerate(said))
    )
    (home / "pairs.csv").write_text(
        "text,text2,label\n"
        + "".join(f"{a.split(',')[0]},{b.split(',')[0]},{draw.random():.2f}\n" for a, b in pairwise(said))
    )
    (home / "tags.conll").write_text(
        "\n\n".join(f"fox O\nZaphrod{i} B-PER\njumps O\nQuendolin{i} B-PER" for i in range(48)) + "\n"
    )
    paragraphs = [
        {
            "context": f"Zaphrod{i} met Quendolin{i} at the river.",
            "qas": [{"id": f"q{i}", "question": "Who?", "answers": [{"text": f"Zaphrod{i}", "answer_start": 0}]}],
        }
        for i in range(44)
    ]
    (home / "squad.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    n = 60
    table = pl.DataFrame(
        {
            "name": [f"Zaphrod{i}" for i in range(n)],
            "age": draw.normal(60, 10, n).round(),
            "crp": [None if i % 5 == 0 else round(float(v), 2) for i, v in enumerate(draw.normal(5, 2, n))],
            "sex": draw.choice(["f", "m"], n),
        }
    )
    table.write_csv(home / "table.csv")
    wrong = (home / "table.csv").read_text().replace("\nZaphrod3,", "\nZaphrod3,Quendolin")
    (home / "wrong.csv").write_text(wrong)
    class_folder(home / "pictures", 24)
    for picture in sorted((home / "pictures").rglob("*.png")):
        mask = home / "masks" / picture.relative_to(home / "pictures")
        mask.parent.mkdir(parents=True, exist_ok=True)
        grey = np.asarray(Image.open(picture).convert("L"))
        Image.fromarray((grey > np.median(grey)).astype(np.uint8)).save(mask)
    start = datetime(2020, 1, 1, 8)
    rows = [
        (PATIENT + s, start + timedelta(days=9 * d + s % 59), f"LAB//{(s % 59 * 3 + d) % 4}", float(d + s % 59 % 5))
        for s in range(60)
        for d in range(8)
    ]
    frame = pl.DataFrame(rows, schema=["subject_id", "time", "code", "numeric_value"], orient="row")
    frame.write_csv(home / "events.csv")
    (home / "task").mkdir()
    points = [(PATIENT + s, start + timedelta(days=50 + s), s % 3 == 0) for s in range(60)]
    points.append((PATIENT + 1, start - timedelta(days=1), False))  # before the first event: an audit lists it
    schema = {"subject_id": pl.Int64, "prediction_time": pl.Datetime("us"), "boolean_value": pl.Boolean}
    pl.DataFrame(points, schema=schema, orient="row").write_parquet(home / "task" / "0.parquet")
    (home / "task.yaml").write_text(
        "predicates: {lab: {code: LAB//1}}\ntrigger: _ANY_EVENT\nwindows:\n  input: {start: NULL, end: trigger, "
        "start_inclusive: true, end_inclusive: true, index_timestamp: end}\n  target: {start: input.end, end: start + "
        "30d, start_inclusive: false, end_inclusive: true, label: lab}\n"
    )
    tiny_folders.folder(home / "bert")
    made = {
        "events convert": "meds",
        "text finetune classify": "classify",
        "text finetune tag": "tag",
        "text finetune answer": "answer",
        "table pretrain": "table",
        "images pretrain": "images",
        "images finetune classify": "classifier",
        "images finetune segment": "segmenter",
        "events pretrain": "events",
        "events finetune outcome": "outcome",
    }
    for name, place in made.items():
        assert exit_code(*words_of(name, home, home / place)) == 0, name
