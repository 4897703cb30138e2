"""Modules import what lies below them, never what lies above, and never each other; see docs/design.md."""

from __future__ import annotations

import pytest

from arrows import circles, imports, upward, within

LAYERS = {
    "unmask.errors": 0,
    "unmask.version": 0,
    "unmask.given": 0,
    "unmask.progress": 0,
    "unmask.elsewhere": 1,
    "unmask.guessed": 2,
    "unmask.names": 1,
    "unmask.odd_numbers": 1,
    "unmask.memory": 1,
    "unmask.files": 2,
    "unmask.writing": 3,
    "unmask.plugins": 2,
    "unmask.remote": 1,
    "unmask.modality": 2,
    "unmask.engines": 4,
    "unmask.registry": 4,
    "unmask.verbs": 5,
    "unmask.kernels": 1,
    "unmask.encoder": 4,
    "unmask.core": 5,
    "unmask.training": 6,
    "unmask.evaluation": 6,
    "unmask.families": 6,
    "unmask.modalities.text": 7,
    "unmask.modalities.table": 7,
    "unmask.modalities.images": 7,
    "unmask.modalities.events": 7,
    "unmask.modalities": 8,
    "unmask.standard": 7,
    "unmask.export": 9,
    "unmask.serving": 9,
    "unmask.cli": 10,
    "unmask.__main__": 11,
    "unmask": 11,
    "unmask.text": 9,
    "unmask.table": 9,
    "unmask.images": 9,
    "unmask.events": 9,
}
"""The rooms, from the ground up. Those of one layer know nothing of each other."""

ROOMS = {
    "text": ("recipes", "reading", "tokens", "network", "uses", "tasks", "registration"),
    "table": (
        *("recipes", "reading", "schema", "writing", "distribution", "rules", "survival", "fitting", "imputation"),
        *("synthesis", "evaluation", "card", "evaluate", "model", "imputer", "pretrain", "verbs", "demo"),
        "registration",
    ),
    "images": ("recipes", "formats", "reading", "network", "classify", "segment", "uses", "registration"),
    "events": (
        *("records", "recipes", "sources", "audit", "network", "outcome", "questions"),
        *("synthesis", "uses", "registration"),
    ),
}
"""Of each kind of data, from the ground up: a folder, or a module, imports those before it alone."""


def test_no_arrow_goes_up():
    assert upward(imports(), LAYERS) == []


def test_what_serves_every_modality_knows_none():
    shared = ("unmask.standard", "unmask.cli.app", "unmask.cli.common", "unmask.cli.dispatch", "unmask.cli.standard")
    kinds = ("text", "table", "images", "events")
    serving = [m for m in imports() if m.startswith("unmask.serving.") and m.split(".")[2] not in kinds]
    shared += ("unmask.cli.serve", *serving)
    assert {m for name in shared for m in imports()[name] if m.startswith("unmask.modalities")} == set()


@pytest.mark.parametrize("kind", ROOMS)
def test_rooms_of_a_kind_import_what_lies_below_them(kind):
    package = f"unmask.modalities.{kind}"
    layers = {f"{package}.{room}": number for number, room in enumerate(ROOMS[kind])} | {package: -1}
    assert upward(within(imports(), package), layers) == []


def test_no_modules_import_each_other():
    assert circles(imports()) == []


def test_what_is_forbidden_is_seen():
    graph = {
        "a": frozenset({"b.x"}),
        "b.x": frozenset({"b.y"}),
        "b.y": frozenset({"b.z"}),
        "b.z": frozenset({"b.x", "a"}),
    }
    assert circles(graph) == [["a", "b.x", "b.y", "b.z"]]
    assert circles(within(graph, "b")) == [["b.x", "b.y", "b.z"]]
    assert upward(graph, {"a": 1, "b": 0}) == ["b.z -> a"]
    assert upward(graph, {"a": 0, "b": 0}) == ["a -> b.x", "b.z -> a"]
    assert any(name.startswith("unmask.core") for name in imports()["unmask.modalities.text.uses.model"])
