"""metrics.jsonl is JSON line by line and has no repeats after a resume; missing trackers are named."""

import json

import accelerate.tracking
import accelerate.utils
import pytest
import torch

from unmask.errors import UserError
from unmask.training import tracking
from unmask.training.tracking import Tracker


def _lines(folder):
    def never(word):
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=never) for line in (folder / "metrics.jsonl").open()]


def test_lines_are_json_even_when_the_loss_is_not_a_number(tmp_path):
    with Tracker(tmp_path, console=False) as tracker:
        tracker.log(10, 0.1, loss=float("nan"), accuracy=torch.tensor(0.5), by_class=[1.0, float("inf")])
        tracker.event("checkpoint", path=tmp_path)
        first, second = _lines(tmp_path)  # already on disk
    assert (first["kind"], first["step"], first["loss"], first["accuracy"]) == ("train", 10, None, 0.5)
    assert first["by_class"] == [1.0, None]
    assert (second["kind"], second["step"], second["path"]) == ("checkpoint", 10, str(tmp_path))
    tracker.close()


def test_a_resume_drops_what_will_be_run_again(tmp_path):
    with Tracker(tmp_path, console=False) as tracker:
        for number in (10, 20, 30):
            tracker.log(number, number / 100, loss=1.0)
    path = tmp_path / "metrics.jsonl"
    lines = _lines(tmp_path)
    lines[1]["seconds"] = 50.0
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 1, "lo')
    with Tracker(tmp_path, console=False, resumed_step=20) as tracker:
        tracker.log(30, 0.3, loss=0.5)
    after = _lines(tmp_path)
    assert [line["step"] for line in after] == [10, 20, 30]
    assert after[-1]["loss"] == 0.5
    assert after[-1]["seconds"] >= 50
    with Tracker(tmp_path, console=False):
        pass
    assert _lines(tmp_path) == [], "a new run starts a new file"


def test_time_left_follows_progress(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("unmask.training.tracking.time.monotonic", lambda: clock[0])
    tracker = Tracker(tmp_path, console=False, resumed_step=50)
    tracker.log(50, 0.5)
    assert tracker.time_left() is None
    clock[0] += 10
    tracker.log(60, 0.6)  # a tenth in ten seconds: what ran before the resume does not count
    assert tracker.time_left() == pytest.approx(40)
    tracker.close()


def test_plain_lines_are_rare_and_on_stderr(tmp_path, monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr("unmask.training.tracking.time.monotonic", lambda: clock[0])
    with Tracker(tmp_path, total="40 steps") as tracker:
        for number in range(1, 40):
            clock[0] += 1
            tracker.log(number, number / 40, loss=2.0, accuracy=0.25, slots_per_second=1234.0, padding_waste=0.02)
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 4
    assert "of 40 steps  loss 2.0000  accuracy 25.0%  1,234 slots/s  padding 2.0%  0:29 left" in err


def test_a_terminal_gets_a_bar(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Tracker(tmp_path, total="2 steps") as tracker:
        tracker.log(1, 0.5, loss=2.0)
        tracker.log(2, 1.0, loss=1.0)
    assert "loss 1.0000" in capsys.readouterr().err


def test_other_processes_write_nothing(tmp_path, capsys):
    with Tracker(None, trackers=["tensorboard"]) as tracker:
        tracker.log(1, 0.5, loss=1.0)
    assert capsys.readouterr().err == ""


def test_missing_and_unknown_trackers_are_named(tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").write_text("kept\n")
    monkeypatch.setattr(accelerate.utils, "is_tensorboard_available", lambda: False)
    with pytest.raises(UserError, match="'tensorboard' is not installed") as missing:
        Tracker(tmp_path, trackers=["tensorboard"])
    assert "pip install 'unmask[track]'" in missing.value.hint
    with pytest.raises(UserError, match="unknown tracker 'tensorbord'"):
        Tracker(tmp_path, trackers=["tensorbord"])
    assert (tmp_path / "metrics.jsonl").read_text() == "kept\n"


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_external_trackers_get_plain_numbers(tmp_path, monkeypatch, name):
    seen = []

    class Fake:
        def __init__(self, run, **where):
            seen.append((run, where))

        def store_init_configuration(self, values):
            seen.append(values)

        def log(self, values, step):
            seen.append((step, values))

        def finish(self):
            seen.append("finished")

    monkeypatch.setattr(accelerate.tracking, tracking._TRACKERS[name], Fake)
    monkeypatch.setattr(accelerate.utils, f"is_{name}_available", lambda: True)
    with Tracker(tmp_path, console=False, trackers=[name], config={"clip": None, "steps": 5}) as tracker:
        tracker.log(1, 0.5, kind="validation", loss=torch.tensor(2.0), note="text")
    where = {"dir" if name == "wandb" else "logging_dir": str(tmp_path)}
    assert seen == [
        (tmp_path.name, where),
        {"clip": "None", "steps": 5},
        (1, {"validation/loss": 2.0}),
        "finished",
    ]
