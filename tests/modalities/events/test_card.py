"""The model cards of event folders: figures beside rules, counts, and no patient."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
from event_data import main_ok
from huggingface_hub import ModelCard

from unmask.evaluation.card import is_ours
from unmask.evaluation.report import Report
from unmask.modalities.events.audit import audit_points
from unmask.modalities.events.recipes import OutcomeSettings
from unmask.modalities.events.uses.finetune import finetune_outcome
from unmask.modalities.events.uses.model import load

QUICK = OutcomeSettings(epochs=4, members=1, hidden=16, trees=10, curve=False)


def read(folder: Path) -> ModelCard:
    assert is_ours(folder / "README.md")
    return ModelCard.load(folder / "README.md")


def test_a_pretrained_folder(home: Path):
    made = read(home / "model")
    assert made.data.to_dict()["library_name"] == "unmask"
    assert {"meds", "medical"} <= set(made.data.tags)
    about = json.loads((home / "model" / "unmask.json").read_text())
    assert f"{about['data']['training']:,} patients to train on" in made.text
    assert "From meds." in made.text
    assert "| loss | " in made.text
    assert "Not a medical device" in made.text
    assert f"unmask finetune outcome {home / 'model'} meds" in (home / "model" / "report.html").read_text()


def test_an_outcome_stands_beside_rules_with_intervals(home: Path, tmp_path: Path):
    found = finetune_outcome(home / "model", home / "meds", home / "task", tmp_path / "outcome", settings=QUICK).figures
    made = read(tmp_path / "outcome")
    row = next(line for line in made.text.splitlines() if line.startswith("| AUROC | "))
    for result in found["results"].values():
        assert f"{result['auroc']:.3f}" in row
    low, high = found["results"]["ours"]["intervals"]["auroc"]
    assert f"[{low:.3f}, {high:.3f}]" in row
    assert row.endswith("| higher is better |")
    assert "age and number of events" in made.text
    assert "predicts a yes or no of `task`" in made.text
    load(tmp_path / "outcome")
    subjects = pl.read_parquet(home / "task" / "0.parquet")["subject_id"]
    hashes = json.loads((tmp_path / "outcome" / "unmask.json").read_text())["outcome"]["patients"]["train"]
    assert len(subjects) > 100
    assert hashes not in made.text
    page = (tmp_path / "outcome" / "report.html").read_text()
    assert f"unmask predict {tmp_path / 'outcome'} meds --labels task" in page
    assert "Beside rules without a model" not in page  # the page has a table of its own


def test_a_caption_names_rules_only_where_there_are_some(home: Path, tmp_path: Path):
    assert ">Beside rules without a model</h2>" in (home / "model" / "report.html").read_text()
    about = json.loads((home / "model" / "unmask.json").read_text())
    about["results"] = [r for r in about["results"] if r["of"] == "model"]
    (tmp_path / "unmask.json").write_text(json.dumps(about))
    page = Report("A model alone").of_model(tmp_path).html()
    assert ">Figures</h2>" in page
    assert "Beside rules without a model" not in page


def test_the_next_visit(home: Path, tmp_path: Path):
    words = ["finetune", "next-visit", str(home / "model"), str(home / "meds"), "--out", str(tmp_path / "next")]
    main_ok(
        [*words, "--set", "codes=DIABETES,HYPERTENSION", "--set", "epochs=2", "--set", "members=1", "--set", "trees=0"]
    )
    made = read(tmp_path / "next")
    assert "the codes of the next visit" in made.text
    assert "co-occurrence" in made.text
    assert "unmask evaluate" not in made.text


def test_an_audit_ends_with_what_it_cannot_see_and_what_to_do(tmp_path: Path):
    page = audit_points.page([], {"subjects": 3}, "my meds", tmp_path / "audit.html").read_text()
    assert "no proof" in page
    assert "unmask pretrain events &#39;my meds&#39; --out model" in page
