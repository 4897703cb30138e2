"""Rows of one group (an author, a patient) are on one side of every split, and count as one in intervals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from commands import run
from tiny_folders import folder
from unmask.errors import UserError
from unmask.modalities.text.tasks import linear, probe
from unmask.modalities.text.tasks.answer import as_questions
from unmask.modalities.text.tasks.conll import as_sentences
from unmask.modalities.text.tasks.data import Item, Problems, as_items
from unmask.modalities.text.tasks.finetune import evaluate, finetune, predict
from unmask.modalities.text.tasks.held_out import judging_folds, kept_together, resamples, split
from unmask.modalities.text.tasks.registry import task_class
from unmask.modalities.text.tasks.row_files import Columns

QUICK = {"epochs": 1, "batch": 16, "precision": "fp32", "dropout": 0.0}
WORDS = ["lazy", "dog", "readers", "sources", "bank", "table", "rows", "brown", "quick", "check"]


def rows_of(authors: int, each: int, seed: int = 0) -> list[dict[str, str]]:
    rng = np.random.default_rng(seed)
    out = []
    for i in range(authors * each):
        words = [*rng.choice(WORDS, 9), "fox" if i % 2 else "river"]
        label = "animal" if (i + (i % 30 < 7)) % 2 else "water"
        out.append({"text": " ".join(words), "label": label, "author": f"author {i // each}"})
    return out


def items_of(rows: list[dict[str, str]]) -> list[Item]:
    return as_items(rows, Columns(group="author"))[0]


def parted(groups: np.ndarray, one: np.ndarray) -> bool:
    """Whether no group is both among `one` and the others."""
    return not set(groups[one]) & set(np.delete(groups, one))


def test_copies_join_groups():
    groups = ["1", "1", "2", "2", "3", None]
    texts = ["a", "b", "B ", "c", "d", "e"]
    number = kept_together([Item(text=t, group=g) for t, g in zip(texts, groups, strict=True)])
    assert len(set(number[:4])) == 1
    assert len(set(number)) == 3


@pytest.mark.parametrize(("authors", "each"), [(40, 5), (4, 60)])
def test_groups_are_held_out_whole(authors, each):
    items = items_of(rows_of(authors, each))
    rest, out = split(items, 0.15, seed=0)
    assert out
    assert len(out) <= len(items) / 2
    assert not {i.group for i in rest} & {i.group for i in out}
    assert {i.label for i in rest} == {"animal", "water"}


def test_folds_for_judging_are_of_whole_groups():
    items = items_of(rows_of(12, 5))
    group = np.array([i.group for i in items])
    assert all(parted(group, here) for _, here in judging_folds(items))


def test_one_group_is_judged_by_nothing_that_was_fitted_on_it():
    items = items_of(rows_of(1, 20))
    assert [(len(outside), len(here)) for outside, here in judging_folds(items)] == [(0, 20)]


@pytest.mark.parametrize("task", ["classify", "tag", "answer", "similarity"])
def test_folds_of_probes_and_of_simpler_models_are_of_whole_groups(task, tmp_path, monkeypatch):
    seen = []

    def folds(target, kind, groups, seed, count=linear.FOLDS):
        found = real(target, kind, groups, seed, count)
        seen.append((groups, found))
        return found

    real = linear.folds
    monkeypatch.setattr(linear, "folds", folds)
    rows = rows_of(12, 5)
    rows += rows[:5]  # copies
    data = {
        "classify": rows,
        "tag": [{"text": r["text"], "author": r["author"], "entities": [[0, r["text"].find(" "), "X"]]} for r in rows],
        "answer": [
            {"question": "who?", "context": r["text"], "author": r["author"]}
            | {"answers": [{"text": r["text"].split()[0], "answer_start": 0}]}
            for r in rows
        ],
        "similarity": [
            {"text": r["text"], "text2": rows[i // 2]["text"], "score": i % 7, "author": r["author"]}
            for i, r in enumerate(rows)
        ],
    }[task]
    windows = []
    monkeypatch.setattr(
        probe, "_groups_of_windows", lambda t, real=probe._groups_of_windows: windows.append(real(t)) or windows[-1]
    )
    finetune(folder(tmp_path / "model"), data, task=task, group="author", refit=False, **QUICK)
    assert len(seen) == {"classify": 2, "tag": 1, "answer": 0, "similarity": 1}[task]
    for groups, fold in seen:
        assert 8 <= len(np.unique(groups)) == len({*zip(groups, fold, strict=True)}) < 12
    if task in ("tag", "answer"):
        assert 8 <= len(np.unique(windows[0])) < 12


def test_groups_count_as_one_in_intervals():
    items = [Item(text=str(i), group=f"g{i // 10}") for i in range(200)]
    right = np.repeat(np.arange(20) % 2, 10)

    def spread(items):
        return np.std([right[rows].mean() for rows in resamples(items, np.random.default_rng(0), 400)])

    assert spread(items) == pytest.approx((0.25 / 20) ** 0.5, rel=0.15)
    assert spread([Item(text=i.text) for i in items]) == pytest.approx((0.25 / 200) ** 0.5, rel=0.15)
    assert list(resamples(items[:10], np.random.default_rng(0), 5)) == []


def test_copies_count_as_one_in_intervals(tmp_path):
    rows = [(f"rat number {k} ran {k * 7 % 13} m", ("a", "b")[k * 5 % 3 == 0]) for k in range(40)]
    model = finetune(folder(tmp_path / "lm"), rows, steps=1, precision="fp32", device="cpu").model

    def width(found):
        row = next(row for row in found["figures"]["by_class"] if row["precision"])  # of the class that is predicted
        return [found["high"] - found["low"], np.subtract(*row["precision"]["interval"][::-1])]

    texts, labels = zip(*rows * 25, strict=True)
    once, often = model.evaluate(rows), model.evaluate(list(texts), list(labels))
    assert often["rows"] == 1000
    np.testing.assert_allclose(width(often), width(once), rtol=0.25)


def test_a_classifier_keeps_its_column_of_groups(tmp_path):
    rows, said = rows_of(30, 4), []
    columns = {name: [r[name] for r in rows] for name in rows[0]}
    out = tmp_path / "out"
    finetune(folder(tmp_path / "model"), columns, task="classify", group="author", out=out, say=said.append, **QUICK)
    assert any("of 30 groups whole" in line for line in said)
    about = json.loads((out / "unmask.json").read_text())
    assert "author" in json.dumps(about)
    test = rows_of(10, 10, seed=1)
    grouped = evaluate(out, test, draws=50)
    named = evaluate(out, [r | {"who": r["author"]} for r in test], columns=Columns(group="who"), draws=50)
    alone = evaluate(out, [{"text": r["text"], "label": r["label"]} for r in test], draws=50)
    assert (grouped["low"], grouped["high"]) == (named["low"], named["high"]) != (alone["low"], alone["high"])
    assert grouped["figures"]["by_class"][0]["auroc"] != alone["figures"]["by_class"][0]["auroc"]
    assert predict(out, [{"text": "a quick fox"}])[0]["label"] in ("animal", "water")


@pytest.mark.parametrize("task", ["classify", "tag", "answer", "similarity"])
def test_a_column_of_groups_is_the_setting_of_that_name(task, tmp_path):
    rows = [
        {**r, "label": 0.5 * i, "text2": "fox"} if task == "similarity" else r for i, r in enumerate(rows_of(20, 3))
    ]
    for i, row in enumerate(rows if task in ("tag", "answer") else ()):
        text = row.pop("text")
        answers = [{"text": text.split()[0], "answer_start": 0}]
        more = {"question": "Who?", "context": f"{text} {i}", "answers": answers}
        row |= more if task == "answer" else {"tokens": text.split(), "tags": ["B-X"] + ["O"] * 9}
    model, said = folder(tmp_path / "model"), []
    run = finetune(model, rows, task=task, columns=Columns(group="author"), say=said.append, **QUICK)
    assert any("of 20 groups whole" in line for line in said)
    assert json.loads((Path(run["out"]) / "unmask.json").read_text())["task"]["settings"]["group"] == "author"
    with pytest.raises(UserError, match="group='author' and columns with group='site'"):
        finetune(model, rows, task=task, columns=Columns(group="site"), group="author", **QUICK)


def test_validation_rows_of_groups_with_training_rows_are_told(tmp_path):
    rows, said = rows_of(12, 5), []
    finetune(
        folder(tmp_path / "model"), rows, task="classify", validation=rows_of(13, 1, seed=3), group="author",
        say=said.append, **QUICK,
    )  # fmt: skip
    assert any("12 of 13 validation rows are of groups that have training rows" in line for line in said)


def test_articles_of_squad_are_groups(tmp_path):
    paragraph = {"context": "It is blue.", "qas": [{"id": "1", "question": "What?", "answers": []}]}
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"title": "Sky", "paragraphs": [paragraph]}]}))
    assert as_questions(path, labelled=True, columns=Columns(group="title"))[0].group == "Sky"


@pytest.mark.parametrize(
    ("read", "what"),
    [
        (lambda c: as_items([("a text", "x")], c), "without columns"),
        (lambda c: as_items([{"text": "a", "label": "x", "author": " "}], c), "'author' is empty"),
        (lambda c: as_items([{"text": "a", "label": "x"}], c), "no column 'author'"),
        (lambda c: as_questions([{"question": "a", "context": "b"}], labelled=False, columns=c), "'author' is empty"),
        (lambda c: as_sentences([{"text": "a", "entities": []}], labelled=True, columns=c), "'author' is empty"),
        (lambda c: as_sentences("f.conll", labelled=True, columns=c), "without columns"),
    ],
)
def test_a_group_that_is_not_there_is_refused(read, what):
    with pytest.raises(UserError, match=what):
        read(Columns(group="author"))


def test_a_classifier_of_files_is_trained_and_judged_by_groups(tmp_path, capsys):
    rows = rows_of(12, 5)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    model, out = folder(tmp_path / "model"), tmp_path / "out"
    given = "--set", "group=author"
    assert run(capsys, "finetune", "classify", model, path, "--out", out, *given, "--epochs", 1)[0] == 0
    assert json.loads(run(capsys, "evaluate", out, path, *given, "--json")[1])["rows"] == 60
    code, _, err = run(capsys, "evaluate", out, path, "--set", "group=writer")
    assert (code, "no column 'writer'" in err) == (2, True)


ROWS = {
    "classify": [{"text": f"note {i}", "label": "ab"[i % 4 // 2]} for i in range(8)],
    "similarity": [{"text": f"note {i}", "text2": "b", "score": i} for i in range(8)],
    "tag": [{"text": f"note {i}", "entities": []} for i in range(8)],
    "answer": [{"question": f"who {i}?", "context": "It is.", "answers": []} for i in range(8)],
}


@pytest.mark.parametrize("task", ROWS)
def test_a_column_of_patients_that_nothing_reads_is_named(task, tmp_path):
    rows = [row | {"patient_id": f"P{i // 2}", "id": i, "site_id": 1} for i, row in enumerate(ROWS[task])]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))

    def told(data, columns=None, labelled=True):
        lines = []
        task_class(task).read(data, columns, labelled=labelled, problems=Problems(say=lines.append))
        return lines

    for data in (rows, path):
        (line,) = told(data)
        assert "'patient_id' names 4 individuals in 8 rows, and nothing reads it" in line
        assert "group='patient_id'" in line
        assert told(data, Columns(group="patient_id")) == told(data, labelled=False) == []


@pytest.mark.parametrize("more", [{"author": "ab"}, {"name": "x"}, {"patient": None}])
def test_a_second_name_of_the_classes_and_one_value_are_no_individuals(more):
    lines, rows = [], []
    for i, row in enumerate(ROWS["classify"]):
        rows.append(row | {k: v and v[i % 4 // 2 % len(v)] for k, v in more.items()})
    as_items(rows, problems=Problems(say=lines.append))
    assert lines == []


def test_groups_that_differ_in_spelling_alone_are_told(tmp_path):
    rows, said = rows_of(12, 5), []
    rows[0]["author"] = "AUTHOR\u00a00"
    finetune(folder(tmp_path / "model"), rows, task="classify", group="author", say=said.append, **QUICK)
    (line,) = [line for line in said if "groups that differ" in line]
    assert "'AUTHOR\\xa00' and 'author 0': they are kept apart" in line
