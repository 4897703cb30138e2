"""What the commands share."""

from types import SimpleNamespace

from unmask.cli.common import run_lines


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
