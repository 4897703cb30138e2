"""Pretraining of any kind of data: what is asked of a kind, in which order, and of which process."""

from contextlib import contextmanager
from pathlib import Path

import pytest

from unmask.errors import UserError
from unmask.training import pretraining
from unmask.training.pretraining import Pretrainable, pretrained
from unmask.training.settings import TrainSettings


class Steps(Pretrainable[list]):
    """A kind that writes down what it is asked."""

    def __init__(self, **settings):
        self.settings, self.asked = TrainSettings(**settings), []

    @property
    def train(self):
        return self.settings

    def prepare(self, out, *, resume, first, say):
        self.asked.append(f"prepare {first}")

    def job(self, out, say):
        self.asked.append("job")
        self.settings = TrainSettings(batch_slots=64)  # as fits the data
        return "the job"

    def save(self, out, model):
        self.asked.append(f"save {model}")
        out.mkdir(exist_ok=True)
        (out / "model.safetensors").write_bytes(b"")

    def finished(self, out, result):
        return [*self.asked, result]

    def report(self, finished):
        self.asked.append("report")


@pytest.fixture
def ran(monkeypatch):
    """What the run was given; it saves at its end."""
    given = {}

    def run(job, out, settings, *, save, **options):
        given.update(options, job=job, settings=settings)
        save("the model")
        return "the result"

    monkeypatch.setattr(pretraining, "run", run)
    return given


def test_data_then_job_then_run_then_report(tmp_path: Path, ran):
    kind = Steps()
    found = pretrained(kind, tmp_path / "out", resume=False, console=False, trackers=["one"])
    assert found == ["prepare True", "job", "save the model", "the result"]
    assert kind.asked[-1] == "report"
    assert ran["job"] == "the job"
    assert ran["settings"].batch_slots == 64  # asked for after the job
    assert ran["trackers"] == ["one"]


def test_another_process_than_the_first_prepares_within_and_writes_no_report(tmp_path: Path, ran, monkeypatch):
    inside = []

    @contextmanager
    def not_the_first(settings):
        inside.append(True)
        yield False
        inside.clear()

    class Watched(Steps):
        def prepare(self, out, *, resume, first, say):
            assert inside, "all processes at once"
            super().prepare(out, resume=resume, first=first, say=say)

        def job(self, out, say):
            assert not inside, "the others wait for the model too"
            return super().job(out, say)

    monkeypatch.setattr(pretraining, "first_process_first", not_the_first)
    kind = Watched()
    pretrained(kind, tmp_path / "out", console=False)
    assert kind.asked == ["prepare False", "job", "save the model"]


def test_a_folder_or_setting_that_cannot_be_is_refused_before_work(tmp_path: Path, ran):
    (tmp_path / "file").write_text("")
    for kind, out in ((Steps(), tmp_path / "file"), (Steps(compile=True, device="cpu"), tmp_path / "new")):
        with pytest.raises(UserError):
            pretrained(kind, out, console=False)
        assert kind.asked == []


def test_no_report_of_a_run_that_was_interrupted(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(pretraining, "run", lambda *_, **__: "interrupted")
    kind = Steps()
    assert pretrained(kind, tmp_path / "out", console=False)[-1] == "interrupted"
    assert "report" not in kind.asked
