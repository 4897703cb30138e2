"""Modules import what lies below them, never what lies above, and never each other; see docs/design.md."""

from __future__ import annotations

from arrows import circles, imports, upward, within

LAYERS = {
    "unmask.errors": 0,
    "unmask.version": 0,
    "unmask.natural": 0,
    "unmask.progress": 0,
    "unmask.files": 1,
    "unmask.writing": 2,
    "unmask.plugins": 1,
    "unmask.remote": 1,
    "unmask.modality": 2,
    "unmask.lazy": 2,
    "unmask.engines": 3,
    "unmask.registry": 3,
    "unmask.encoder": 3,
    "unmask.core": 4,
    "unmask.training": 5,
    "unmask.evaluation": 5,
    "unmask.families": 5,
    "unmask.modalities.text": 6,
    "unmask.modalities.table": 6,
    "unmask.modalities.images": 6,
    "unmask.modalities.events": 6,
    "unmask.modalities": 7,
    "unmask.standard": 6,
    "unmask.export": 8,
    "unmask.verify": 8,
    "unmask.serving": 8,
    "unmask.cli": 9,
    "unmask.__main__": 10,
    "unmask": 10,
    "unmask.text": 8,
    "unmask.table": 8,
    "unmask.images": 8,
    "unmask.events": 8,
}
"""The rooms, from the ground up. Those of one layer know nothing of each other."""


def test_no_arrow_goes_up():
    assert upward(imports(), LAYERS) == []


def test_what_serves_every_modality_knows_none():
    shared = ("unmask.standard", "unmask.cli.app", "unmask.cli.common", "unmask.cli.dispatch", "unmask.cli.standard")
    kinds = ("text", "table", "images", "events")
    serving = [m for m in imports() if m.startswith("unmask.serving.") and m.split(".")[2] not in kinds]
    shared += ("unmask.cli.serve", *serving)
    assert {m for name in shared for m in imports()[name] if m.startswith("unmask.modalities")} == set()


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
    assert any(name.startswith("unmask.core") for name in imports()["unmask.modalities.text.model"])
