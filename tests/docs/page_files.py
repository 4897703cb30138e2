"""The small files and models that the pages speak of, made once and copied for each page."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
from PIL import Image

from text_corpus import SENTENCES, write_corpus
from tiny_folders import folder, sentiment
from tiny_images import bars, class_folder

ENGLISH = SENTENCES[:5]


def tables(where: Path) -> None:
    """cohort.csv and its parts (also a folder, parts); relapse.csv, entry.csv and causes.csv (follow-up); visits.csv
    (counts); stays.csv (rules); study.csv; clinic.csv (several visits per patient)."""
    rng = np.random.default_rng(0)
    whole = _patients(rng, 160)
    _with_holes(whole, rng).to_csv(where / "cohort.csv", index=False)
    _with_holes(whole[:110], rng).to_csv(where / "train.csv", index=False)
    whole[110:].to_csv(where / "held_out.csv", index=False)
    (where / "parts").mkdir()
    for i in (0, 1):
        _with_holes(whole[80 * i : 80 * i + 80], np.random.default_rng(i)).to_csv(where / f"parts/{i}.csv", index=False)
    new = _with_holes(_patients(rng, 30), rng).drop(columns=["time", "event"])
    new.to_csv(where / "new.csv", index=False)
    new.drop(columns="lactate").to_csv(where / "without_lactate.csv", index=False)
    _follow_up(rng, where)
    _stays(rng, 120).to_csv(where / "stays.csv", index=False)
    x, z = rng.normal(size=(2, 150))
    study = pd.DataFrame({"y": 1 + x + 0.5 * x**2 + x * z + rng.normal(size=150), "x": x.round(3), "z": z.round(3)})
    study.loc[rng.random(150) < 0.3, "x"] = None
    study.to_csv(where / "study.csv", index=False)
    _clinic(np.random.default_rng(1)).to_csv(where / "clinic.csv", index=False)


def _clinic(rng: np.random.Generator) -> pd.DataFrame:
    at, month = np.repeat(np.arange(40), 5), np.tile(np.arange(5) * 3, 40)
    sex = rng.integers(0, 2, 40)[at]
    weight = 75 + 8 * sex + rng.normal(0, 9, 40)[at] + rng.normal(-0.3, 0.3, 40)[at] * month + rng.normal(0, 2, 200)
    sbp = 90 + 0.5 * weight + rng.normal(0, 5, 40)[at] + rng.normal(0, 6, 200)
    table = pd.DataFrame(
        {"patient": at + 101, "month": month, "sex": sex, "weight": weight.round(1), "sbp": sbp.round()}
    )
    table.loc[rng.random(200) < 0.2, "weight"] = None
    table.loc[(rng.random(40) < 0.2)[at], "sbp"] = None
    table["pain"] = np.where(rng.random(200) < 0.4, "yes", "no")
    table.loc[rng.random(200) < 0.15, "pain"] = None
    table.loc[(rng.random(40) < 0.1)[at], "sex"] = None
    return table


def _patients(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    age = rng.normal(65, 10, rows).round()
    low = (70 + 0.2 * (age - 65) + rng.normal(0, 8, rows)).round()
    died, left = rng.exponential(np.exp(-0.05 * (age - 65)) * 500), rng.uniform(100, 1500, rows)
    return pd.DataFrame(
        {
            "age": age,
            "sex": rng.integers(0, 2, rows),
            "dbp": low,
            "sbp": (low + 45 + rng.gamma(4, 4, rows)).round(),
            "stage": rng.choice(["I", "II", "III"], rows),
            "arm": rng.integers(0, 2, rows),
            "creatinine": (80 + 0.5 * (age - 65) + rng.normal(0, 10, rows)).round(),
            "lactate": rng.gamma(4, 0.5, rows).round(1),
            "time": np.maximum(1, np.minimum(died, left).round()),
            "event": (died <= left).astype(int),
        }
    )


def _with_holes(table: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    holed = table.copy()
    for name in ("age", "dbp", "sbp", "stage", "creatinine", "lactate"):
        holed.loc[rng.random(len(table)) < 0.15, name] = None
    return holed


def _follow_up(rng: np.random.Generator, where: Path) -> None:
    rows = 120
    age = rng.normal(60, 8, rows).round(1)
    marker = rng.normal(size=rows).round(2)
    months = (rng.exponential(30 * np.exp(-0.4 * marker)) + 1).round(1)
    dead = rng.random(rows) < 0.6
    common = pd.DataFrame({"age": age, "marker": marker, "months": months})
    common.loc[rng.random(rows) < 0.2, "marker"] = None
    common.assign(status=np.where(dead, "dead", "alive")).to_csv(where / "relapse.csv", index=False)
    entry = common.drop(columns="months").assign(age_start=age, age_end=(age + months / 12).round(2), status=dead * 1)
    entry.to_csv(where / "entry.csv", index=False)
    cause = np.where(~dead, "censored", np.where(rng.random(rows) < 0.5, "relapse", "death"))
    late = (months * rng.random(rows) * 0.5).round(2)
    common.assign(status=cause, months_to_referral=late).to_csv(where / "causes.csv", index=False)
    visits = rng.poisson(months / 12 * np.exp(0.4 * marker))
    common.drop(columns="months").assign(visits=visits, years=(months / 12).round(2)).to_csv(
        where / "visits.csv", index=False
    )


def _stays(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    admission = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), unit="D")
    surgery = admission + pd.to_timedelta(rng.integers(0, 4, rows), unit="D")
    discharge = surgery + pd.to_timedelta(rng.integers(1, 12, rows), unit="D")
    height, weight = rng.normal(1.7, 0.1, rows).round(2), rng.normal(75, 12, rows).round()
    low = rng.normal(75, 8, rows).round()
    table = pd.DataFrame(
        {
            "admission": admission.strftime("%Y-%m-%d"),
            "surgery": surgery.strftime("%Y-%m-%d"),
            "discharge": discharge.strftime("%Y-%m-%d"),
            "dbp": low,
            "sbp": low + rng.integers(20, 60, rows),
            "height": height,
            "weight": weight,
            "bmi": (weight / height**2).round(2),
        }
    )
    for name in ("surgery", "sbp", "weight", "bmi"):
        table.loc[rng.random(rows) < 0.15, name] = None
    return table


def text(where: Path) -> None:
    """A model, a corpus, and data of the four tasks."""
    folder(where / "model")
    (where / "corpus").mkdir()
    write_corpus(where / "corpus" / "a.txt", 60)
    write_corpus(where / "corpus.txt", 40)
    (where / "domain.jsonl").write_text(
        "".join(
            json.dumps({"text": f"Paragraph {i} says so. {s} What follows is number {i}, and {t}"}) + "\n"
            for i, (s, t) in enumerate(itertools.islice(itertools.cycle(itertools.pairwise(ENGLISH)), 500))
        )
    )
    lines = [f"{s} Paragraph {i}." for i in range(3) for s in ENGLISH]
    for name in ("general.txt", "sentences.txt", "texts.txt", "inputs.txt", "held-out.txt"):
        (where / name).write_text("\n".join(lines[:10] if name == "inputs.txt" else lines))
    rows = pd.DataFrame(sentiment(72), columns=["text", "label"])
    for name, part in {"train": rows[:48], "labelled": rows[:48], "dev": rows[48:60], "test": rows[60:]}.items():
        part.to_csv(where / f"{name}.csv", index=False)
    for name, count in {"train": 24, "dev": 8}.items():
        sentence = "The O\nquick B-FOX\nbrown I-FOX\ndog O\nstops O\n"
        (where / f"{name}.conll").write_text("\n".join(sentence.replace("dog", f"dog{i}") for i in range(count)))
    for name, count in {"squad": 24, "squad_dev": 8}.items():
        (where / f"{name}.json").write_text(json.dumps(_squad(count)))
    pairs = pd.DataFrame(
        {"text": lines, "text2": lines[1:] + lines[:1], "label": np.linspace(0, 5, len(lines)).round(1)}
    )
    pairs.to_csv(where / "pairs.csv", index=False)
    pairs[:12].to_csv(where / "pairs_dev.csv", index=False)


def _squad(count: int) -> dict[str, Any]:
    context = SENTENCES[0]
    asked = [
        {
            "id": str(i),
            "question": f"What jumps ({i})?",
            "answers": [{"text": "fox", "answer_start": context.index("fox")}],
        }
        for i in range(count)
    ]
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": asked}]}]}


def images(where: Path) -> None:
    """Folders of pictures, a table of labels, arrays, larger scenes, and a model."""
    class_folder(where / "photos", 48)
    class_folder(where / "more", 15, seed=1)
    class_folder(where / "new", 6, seed=2)
    class_folder(where / "slides", 12, (30, 30), seed=3)
    for source, masks in (("photos", "masks"), ("slides", "slide-masks")):  # what is bright
        for path in (where / source).rglob("*.png"):
            place = where / masks / path.relative_to(where / source)
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.open(path).point(lambda v: 255 * (v > 128)).save(place)
    pixels, labels = bars(48)
    Image.fromarray(pixels[0]).save(where / "photo.png")
    np.save(where / "pixels.npy", pixels)
    np.save(where / "labels.npy", labels)
    scene = bars(1, (30, 30))[0].astype(np.float32)
    scene /= 255
    scene[0, 4:10, 4:10] = np.nan
    np.save(where / "scene.npy", scene)
    names = sorted(p.relative_to(where / "photos").as_posix() for p in (where / "photos").rglob("*.png"))
    several = [
        "bright|wide" if n.startswith("across") else "bright" if n.startswith("down") else "small" for n in names
    ]
    pd.DataFrame({"file": names, "label": several}).to_csv(where / "labels.csv", index=False)
    pd.DataFrame({"file": names[::3], "label": several[::3]}).to_csv(where / "dev.csv", index=False)
    from unmask.modalities.images.uses.pretrain import pretrain

    pretrain((pixels, labels), where / "model", console=False)
    shutil.copytree(where / "model", where / "model_of_scenes")


def events(where: Path) -> None:
    """Simulated patients (meds, task), others (other), and a FHIR extract."""
    from unmask.modalities.events.uses.demo import simulate

    simulate(where, patients=70)
    simulate(where / "others", patients=60, seed=1)
    (where / "others" / "meds").rename(where / "other")
    shard = where / "meds" / "data" / "0.parquet"
    clock = (
        pl.when(pl.col("code") == "MEDS_BIRTH").then(pl.col("time")).otherwise(pl.col("time") + pl.duration(hours=9))
    )
    pl.read_parquet(shard).with_columns(time=clock).write_parquet(shard)
    labels = where / "task" / "0.parquet"
    pl.read_parquet(labels).with_columns(pl.col("prediction_time") + pl.duration(hours=8)).write_parquet(labels)
    code = {"coding": [{"system": "http://loinc.org", "code": "2345-7", "display": "Glucose"}]}
    found: list[dict[str, Any]] = []
    for i in range(5):
        found.append({"resourceType": "Patient", "id": f"p{i}", "gender": "female", "birthDate": "1950-01-01"})
        found.append(
            {
                "resourceType": "Observation",
                "status": "final",
                "subject": {"reference": f"Patient/p{i}"},
                "code": code,
                "effectiveDateTime": "2020-01-01T08:00:00Z",
                "valueQuantity": {"value": 5.5, "unit": "mmol/L"},
            }
        )
    (where / "bundles.ndjson").write_text("\n".join(json.dumps(r) for r in found))
