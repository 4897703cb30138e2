"""What the commands share."""

from types import SimpleNamespace

import pytest

from unmask.cli.common import read_lines, run_lines
from unmask.errors import UserError


@pytest.mark.parametrize("path", ["notes.md", "data/held-out", "held.parquet", "/"])
def test_a_path_is_not_read_as_a_text(path):
    with pytest.raises(UserError, match="no such file"):
        read_lines(path)


@pytest.mark.parametrize("text", ["word", "An end.", "and/or both", "3.14", "[MASK]/day", "e.g. this", "MKTAYIAK"])
def test_a_text_is_itself(text):
    assert read_lines(text) == [text]


def test_a_run_tells_what_it_measured():
    result = SimpleNamespace(
        stopped="finished", steps=3, seconds=1.0, precision="fp32", device="cpu", validation={"validation_loss": 2.5}
    )
    lines = run_lines(result, "out", rate="5 x/s", held="loss {loss:.1f}, accuracy {accuracy:.1%}", notes=["a note"])
    assert lines == [
        "3 steps, 1 s, 5 x/s, fp32 on cpu", "a note", "loss 2.5, accuracy nan%", "model:  out", "report: out/report.html",
    ]  # fmt: skip
    result.stopped = "signal"
    assert run_lines(result, "out", rate="", held="") == ["stopped by a signal after step 3; --resume continues"]
