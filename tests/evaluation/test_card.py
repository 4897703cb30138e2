"""Model cards: valid for the hub, a person's edits kept, nothing on them that opens a tag or a place."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from unmask.evaluation import card as cards
from unmask.evaluation.card import (
    NAME,
    Card,
    Figure,
    Use,
    add_card,
    held_out,
    hub_name,
    is_ours,
    read_figures,
    source_name,
)
from unmask.evaluation.report import Report
from unmask.writing import final_place, in_place_of, written_folder

USE = Use(commands=[("look", "unmask fill MODEL x.txt")], python="unmask.load(MODEL)")


def a_card(**more: object) -> Card:
    return Card(**{"title": "m", "what": "A model.", "use": USE, **more})  # type: ignore[arg-type]


def model_folder(place: Path) -> Path:
    """A folder that says it is a text model, with no weights: cards read no more."""
    place.mkdir()
    (place / "unmask.json").write_text(json.dumps({"kind": "text", "family": "bert"}))
    (place / "config.json").write_text(json.dumps({"num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 90}))
    return place


def test_the_hub_reads_the_front_matter(tmp_path: Path):
    made = a_card(tags=["a: b", 'quo"te'], pipeline="fill-mask", base_model="org/base", datasets=["org/data"])
    (tmp_path / NAME).write_text(made.text(), encoding="utf-8")
    data = ModelCard.load(tmp_path / NAME).data
    assert data.to_dict()["library_name"] == "unmask"
    assert data.tags == ["unmask", "a: b", 'quo"te']
    assert (data.pipeline_tag, data.base_model, data.datasets) == ("fill-mask", "org/base", ["org/data"])
    assert data.license is None
    assert is_ours(tmp_path / NAME)


def test_figures_stand_beside_rules_with_intervals_and_directions():
    figures = [
        Figure(name="accuracy", value=0.8, low=0.75, high=0.85),
        Figure(name="accuracy", value=0.5, of="most | frequent <b>"),
        Figure(name="brier", value=0.1),
    ]
    body = a_card(figures=figures).body()
    assert "| figure | model | most \\| frequent &lt;b> | what is good |" in body
    assert "| accuracy | 0.800 [0.750, 0.850] | 0.500 | higher is better |" in body
    assert "| Brier score | 0.100 |  | lower is better |" in body
    assert [f.to_dict() for f in read_figures([f.to_dict() for f in figures])] == [f.to_dict() for f in figures]
    assert read_figures("damaged") == [] == read_figures([{"name": "loss"}])


@pytest.mark.parametrize("change", [lambda t: t + "\nMine.\n", lambda t: t.replace("tags", "license: mit\ntags", 1)])
def test_what_a_person_edited_is_kept_and_said(tmp_path: Path, change):
    folder = model_folder(tmp_path / "m")
    add_card(folder, folder)
    first = (folder / NAME).read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        add_card(folder, folder)  # nobody changed it: written anew without a word
    assert (folder / NAME).read_text() == first
    (folder / NAME).write_text(change(first))
    with written_folder(folder) as new:
        (new / "unmask.json").write_text((folder / "unmask.json").read_text())
        with pytest.warns(UserWarning, match="edited by hand: it is kept"):
            add_card(new, folder)
    assert (folder / NAME).read_text() == change(first)


def test_other_line_ends_are_no_edit(tmp_path: Path):
    folder = model_folder(tmp_path / "m")
    add_card(folder, folder)
    (folder / NAME).write_bytes((folder / NAME).read_bytes().replace(b"\n", b"\r\n"))
    assert is_ours(folder / NAME)


def test_a_folder_that_says_nothing_is_saved_all_the_same(tmp_path: Path):
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "unmask.json").write_text('{"kind": "nobody knows"}')
    with pytest.warns(UserWarning, match="no model card"):
        add_card(folder, folder)
    assert not (folder / NAME).exists()
    with pytest.warns(UserWarning, match="no model card"):
        Report("A page").write(folder / "report.html")


def test_settings_and_sources_lose_their_places():
    shown = a_card(settings={"store": "/home/me/secret/x", "tokenizer": Path("/a/b.json"), "nan": float("nan")}).body()
    assert "secret" not in shown
    assert '"store": "x"' in shown
    assert '"tokenizer": "b.json"' in shown
    assert source_name([("a text", "its label"), ("another", "x")]) == "" == source_name(["yes/no", "a/b"])
    assert hub_name("org/name") == "org/name"
    assert hub_name("./org/name") is None is hub_name("name")


def test_figures_of_a_run_are_those_of_the_weights_that_are_saved(tmp_path: Path):
    def lines(*records: dict) -> dict[str, float]:
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records) + '{"half a li')
        return held_out(tmp_path)

    looked = {"kind": "validation", "step": 4, "validation_loss": 2.0, "validation_accuracy": None}
    assert lines({"kind": "train", "step": 1, "loss": 3.0}, looked) == {"loss": 2.0}
    assert lines(looked, {"kind": "end", "step": 4}) == {}  # another save, after the run
    assert lines(looked, {"kind": "end", "step": 4}, {"kind": "validation", "step": 8, "loss": 1.0}) == {"loss": 1.0}
    assert held_out(tmp_path / "nowhere") == {}


def test_a_page_beside_a_model_ends_with_how_to_use_it(tmp_path: Path):
    folder = model_folder(tmp_path / "my model")
    page = Report("A run").section("First", "x").write(folder / "report.html").read_text()
    assert page.index("First") < page.index("Use this model")
    assert f"unmask embed &#39;{folder}&#39; texts.txt" in page
    assert "Use this model" not in Report("Alone").write(tmp_path / "report.html").read_text()


def test_a_model_that_is_written_elsewhere_first_is_called_by_its_own_name(tmp_path: Path):
    with in_place_of(tmp_path / "inner", tmp_path / ".new"), in_place_of(tmp_path / ".new", tmp_path / "model"):
        assert final_place(tmp_path / "inner") == tmp_path / "model"
        folder = model_folder(tmp_path / "inner")
        add_card(folder, folder)
    assert "# model\n" in (folder / NAME).read_text()
    assert final_place(tmp_path / "inner") == tmp_path / "inner"
    assert cards.card_of(folder).title == "inner"
