"""A command that a kind of model does not have says so; it never falls through to another kind's."""

from __future__ import annotations

import json

import pytest

from unmask.cli import main


@pytest.mark.parametrize(
    ("command", "kind", "hint"),
    [
        (("score", "MODEL", "data"), "images", "text, tables and events"),
        (("evaluate", "MODEL", "data"), "events", "report.html"),
        (("finetune", "classify", "MODEL", "data", "--out", "x"), "table", "text, images and events"),
        (("predict", "MODEL", "data", "--out", "x"), "table", "text, images and events"),
    ],
)  # fmt: skip
def test_a_command_that_a_kind_does_not_have(tmp_path, capsys, command, kind, hint):
    (tmp_path / "unmask.json").write_text(json.dumps({"kind": kind}))
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path) if part == "MODEL" else part for part in command])
    err = capsys.readouterr().err
    assert stop.value.code == 2
    assert str(tmp_path) in err
    assert hint in " ".join(err.split())
