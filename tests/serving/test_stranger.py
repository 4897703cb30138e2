"""A kind of data of somebody else's package is served without an edit here."""

from __future__ import annotations

import contextlib
import json

from packages import on_path, write_metadata
from running_server import running
from unmask import registry
from unmask.serving.limits import Limits
from unmask.serving.models import load_served

CODE = """
from unmask.modality import Modality
from unmask.serving.shapes import Field, ListOf, Record, Text
from unmask.serving.verbs import Served, Verb, Work

SONGS = Modality(name="songs", plural="songs", load="birds:load", serves="birds:serve")


def serve(path, *, limits):
    def prepare(body):
        return Work(items=body["songs"], slots=[1] * len(body["songs"]), run=lambda some: [s[::-1] for s in some],
                    finish=lambda found: {"backwards": list(found)}, together="turn")

    verb = Verb(about="Songs from their end.", prepare=prepare,
                request=Record(songs=Field(ListOf(Text(), most=limits.items), "Songs.")))
    return Served(kind="songs", about={}, verbs={"turn": verb})
"""


def test_a_stranger_s_modality_is_served(tmp_path):
    (tmp_path / "birds.py").write_text(CODE)
    write_metadata(tmp_path, "birds", {registry.MODALITIES.group: {"songs": "birds:SONGS"}})
    model = tmp_path / "model"
    model.mkdir()
    (model / "unmask.json").write_text(json.dumps({"kind": "songs"}))
    with contextlib.contextmanager(on_path)(tmp_path):
        served = load_served({"m": str(model)}, Limits(items=2), device="auto", precision="auto")
        with running(served) as server:
            assert server.post("/models/m/turn", {"songs": ["tweet"]}) == (200, {"backwards": ["teewt"]})
            assert server.post("/models/m/turn", {"songs": ["a"] * 3})[0] == 400
            assert "/models/m/turn" in server.get("/openapi.json")[1]["paths"]
