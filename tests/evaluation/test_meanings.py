"""What is good of a figure, by its name."""

from __future__ import annotations

import pytest

from unmask.evaluation.meanings import MEANINGS, figure_lines, good, legend, meaning
from unmask.modalities.events.uses.outcome_report import SHOWN
from unmask.modalities.text.tasks.scorers import LESS_IS_BETTER


def test_every_figure_of_events_and_every_error_of_texts_has_a_direction():
    assert [name for name in SHOWN if not good(name)] == []
    assert {good(name) for name in LESS_IS_BETTER} == {"lower is better"}


@pytest.mark.parametrize(
    ("name", "label"), [("f1_micro", "micro F1"), ("macro_auroc", "macro AUROC"), ("ndcg@10", "nDCG at 10")]
)
def test_averages_and_ranks_are_those_of_their_figure(name: str, label: str):
    found = meaning(name)
    assert found is not None
    assert (found.label, found.good) == (label, "higher is better")


def test_a_name_that_nobody_explained_has_no_direction():
    assert meaning("rows") is None
    assert good("accuracy_of_what") == ""
    assert legend(["rows"]) == ""
    assert all(m.better in ("lower", "higher") or m.better.startswith("near ") for m in MEANINGS.values())


def test_lines_have_value_interval_direction_and_the_rule_beside():
    found = {"loss": 2.5, "accuracy_at_1": 0.25, "hidden_slots": 1200, "intervals": {"accuracy_at_1": [0.2, 0.3]}}
    lines = figure_lines(found, ["loss", "accuracy_at_1", "hidden_slots", "absent"], rules={"accuracy_at_1": "chance"})
    assert [" ".join(line.split()) for line in lines] == [
        "loss 2.5000 lower is better",
        "accuracy_at_1 0.2500 [0.2000, 0.3000] higher is better; chance",
        "hidden_slots 1,200",
    ]
