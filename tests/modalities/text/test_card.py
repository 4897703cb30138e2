"""The model cards of text folders: pretrained, adapted, fine-tuned, exported; and what the pages beside them say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from markupsafe import escape

from commands import run
from text_corpus import write_corpus
from tiny_folders import folder, sentiment
from unmask.evaluation.card import is_ours
from unmask.modalities.text.network.adapt import adapt, adapt_settings
from unmask.modalities.text.network.pretrain import pretrain
from unmask.modalities.text.recipes import TextSettings, with_overrides
from unmask.modalities.text.tasks.analysis import REMARKS
from unmask.modalities.text.tasks.finetune import finetune, seeds
from unmask.modalities.text.uses.model import load

SHORT = {"slots": 32, "holdout": 0.1, "batch_slots": 256, "precision": "fp32", "device": "cpu", "steps": 3}
NEW = {"recipe": "bert", "width": 32, "layers": 2, "heads": 2, "vocabulary": 300}
QUICK = {"steps": 2, "epochs": None, "batch": 16, "precision": "fp32", "dropout": 0.0, "start": "plain", "slots": 16}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked model after three steps."""
    place = tmp_path_factory.mktemp("card")
    corpus = write_corpus(place / "secret-corpus.txt")
    pretrain(str(corpus), place / "model", settings=with_overrides(TextSettings(), SHORT | NEW), console=False)
    return place / "model"


def read(place: Path) -> ModelCard:
    assert is_ours(place / "README.md")
    return ModelCard.load(place / "README.md")


def test_a_pretrained_folder(model: Path):
    made = read(model)
    assert (made.data.to_dict()["library_name"], made.data.pipeline_tag) == ("transformers", "fill-mask")
    about = json.loads((model / "unmask.json").read_text())
    ours, rule = (
        next(r for r in about["results"] if r["name"] == "accuracy" and r["of"] == of)
        for of in ("model", "most frequent token")
    )
    assert 0 < rule["value"] < 1
    assert f"| accuracy | {ours['value']:.3f} | {rule['value']:.3f} | higher is better |" in made.text
    assert f"{about['corpus']['documents']:,} documents" in made.text
    assert "From secret-corpus.txt." in made.text
    assert str(model.parent) not in made.text
    assert 'pipeline("fill-mask", "model")' in made.text
    page = (model / "report.html").read_text()
    assert page.index("Beside rules without a model") < page.index("Use this model")
    assert f"unmask fill {model}" in page
    assert "lower is better" in page


def test_pretrain_sets_the_rule_beside_the_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["pretrain", "text", write_corpus(tmp_path / "c.txt"), "--out", tmp_path / "m", "--set", "holdout=0.1"]
    words += [word for name, value in (NEW | {"steps": 2}).items() for word in ("--set", f"{name}={value}")]
    code, said, _ = run(capsys, *words)
    results = json.loads((tmp_path / "m" / "unmask.json").read_text())["results"]
    rule = next(r["value"] for r in results if r["of"] == "most frequent token")
    assert code == 0
    assert re.search(rf"accuracy [\d.]+%; most frequent token {rule:.1%} \(", said)


def test_what_is_saved_and_exported_has_the_same_card(model: Path, tmp_path: Path):
    load(model, precision="fp32").save(tmp_path / "copy")
    figures = [line for line in (model / "README.md").read_text().splitlines() if line.startswith("| ")]
    assert figures
    copied = (tmp_path / "copy" / "README.md").read_text()
    assert [line for line in copied.splitlines() if line.startswith("| ")] == figures
    assert "# copy\n" in copied
    from unmask.export.folders import to_hf

    to_hf(load(model, precision="fp32"), tmp_path / "out")
    assert "# out\n" in (tmp_path / "out" / "README.md").read_text()
    assert is_ours(tmp_path / "out" / "README.md")


def test_an_adapted_folder_says_what_it_came_from(model: Path, tmp_path: Path):
    corpus = write_corpus(tmp_path / "domain.txt", 30)
    adapt(model, str(corpus), tmp_path / "adapted", settings=adapt_settings(SHORT), console=False)
    made = read(tmp_path / "adapted")
    assert "adapted from model" in made.text
    assert "before adapting" in made.text
    assert made.data.base_model is None  # a folder, not a name of the hub
    assert str(tmp_path) not in made.text


def test_a_fine_tuned_folder_stands_beside_simpler_models(model: Path, tmp_path: Path):
    rows = sentiment(36)
    chosen = QUICK | {"start": "probe"}  # which is compared with simpler models
    found = finetune(model, rows, task="classify", validation=rows[:18], out=tmp_path / "tuned", **chosen)
    made = read(tmp_path / "tuned")
    assert made.data.pipeline_tag == "text-classification"
    assert "fine-tuned for the task `classify`, from model" in made.text
    kept = next(r for r in found["comparison"] if r["kept"])
    rival = next(r for r in found["comparison"] if not r["kept"])
    assert f"{kept['value']:.3f} [{kept['low']:.3f}, {kept['high']:.3f}]" in made.text
    assert rival["model"] in made.text
    assert "2 labels: bad, good" in made.text
    assert "results" not in json.loads((tmp_path / "tuned" / "unmask.json").read_text())  # those of the pretraining
    page = (tmp_path / "tuned" / "report.html").read_text()
    assert f"unmask predict {tmp_path / 'tuned'}" in page
    assert "higher is better" in page
    assert "Beside rules without a model" not in page  # the page has a table of its own
    remarks = [line for line in found["lines"] if line.startswith(REMARKS)]
    assert remarks
    assert all(str(escape(line)) in page for line in remarks)


def test_the_best_of_several_seeds_is_called_by_its_folder(tmp_path: Path):
    rows = sentiment(24)
    seeds(folder(tmp_path / "m"), rows, task="classify", count=2, validation=rows[:12], out=tmp_path / "best", **QUICK)
    assert "# best\n" in (tmp_path / "best" / "README.md").read_text()
    assert f"unmask predict {tmp_path / 'best'} " in (tmp_path / "best" / "report.html").read_text()


def test_an_electra_pair_and_a_visible_only_model(tmp_path: Path):
    corpus = str(write_corpus(tmp_path / "c.txt", 30))
    settings = with_overrides(TextSettings(), SHORT | NEW | {"objective": "detection"})
    pretrain(corpus, tmp_path / "pair", settings=settings, console=False)
    assert read(tmp_path / "pair").data.pipeline_tag == "feature-extraction"
    assert read(tmp_path / "pair" / "generator").data.pipeline_tag == "fill-mask"
    settings = with_overrides(TextSettings(), SHORT | NEW | {"architecture": "visible_only"})
    pretrain(corpus, tmp_path / "visible", settings=settings, console=False)
    made = read(tmp_path / "visible")
    assert "transformers loads the encoder" in made.text
    assert 'unmask fill visible "' in made.text
    assert 'pipeline("fill-mask"' not in made.text


def test_evaluate_says_what_is_good_and_the_rule(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    held = write_corpus(tmp_path / "held.txt", 30)
    code, out, _ = run(capsys, "evaluate", model, held)
    assert code == 0
    lines = {line[:13].strip(): line for line in out.splitlines()}
    assert "[" in lines["loss"]
    assert "always " in lines["figure"]
    assert "lower is better: loss" in out
    assert "higher is better: accuracy at 1" in out
    code, out, _ = run(capsys, "evaluate", model, held, "--json")
    found = json.loads(out)
    assert 0 < found["most_frequent_accuracy"] <= 1
    assert found["intervals"]["most_frequent_accuracy"][0] <= found["most_frequent_accuracy"]
