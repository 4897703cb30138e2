"""What every command leaves is for its owner alone, and its reports, cards and figures quote nobody."""

import os
import signal
import stat
from pathlib import Path

import pytest

import writing_commands
from commands import exit_code
from unmask.evaluation.report import Report

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
FOR_PEOPLE = {".html", ".md", ".toml"}
"""Endings of pages, cards and schemas."""
FIGURES = {"metrics.jsonl", "unmask.json", "config.json"}
QUOTING = {"table describe", "images describe", "images evaluate a segmenter"}
"""Commands whose pages are there to show data: cells that cannot be read, pictures, masks beside them."""
EXAMPLES = [
    *(f"text finetune {task}" for task in ("classify", "tag", "answer", "similarity")),
    "images pretrain",
    "events finetune outcome",
    "events ask",
    "events audit",
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    place = tmp_path_factory.mktemp("home")
    writing_commands.prepare(place)
    return place


@pytest.fixture
def ordinary_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_no_command_that_writes_is_forgotten():
    assert writing_commands.missing() == []


@pytest.mark.parametrize("name", writing_commands.CASES)
def test_what_a_command_leaves_is_for_its_owner_alone_and_quotes_nobody(name, home, tmp_path, ordinary_umask):
    """Reports showed held-out texts, pictures, and the dated record of a patient by id."""
    assert exit_code(
        *writing_commands.words_of(name, home, tmp_path / "out"), "--json"
    ) == writing_commands.EXIT_CODES.get(name, 0)
    left = sorted(tmp_path.rglob("*"))
    assert left
    modes = {p.relative_to(tmp_path).as_posix(): oct(stat.S_IMODE(p.stat().st_mode)) for p in left}
    assert modes == {n: "0o700" if (tmp_path / n).is_dir() else "0o600" for n in modes}
    assert all("\n- The folder " in p.read_text() for p in left if p.name == "README.md"), "what a folder holds"
    if name not in QUOTING:
        assert pages_that_quote(tmp_path) == {}


@pytest.mark.parametrize("name", writing_commands.CASES)
def test_a_place_without_permission_is_told_at_once_and_left_alone(name, home, tmp_path, monkeypatch, capsys):
    """Permission is asked of the system, which grants root everything: as on a disk that is read only."""
    real = os.access

    def access(path, mode, **more):
        return real(path, mode, **more) and not (Path(path) == tmp_path and mode & os.W_OK)

    monkeypatch.setattr(os, "access", access)
    assert exit_code(*writing_commands.words_of(name, home, tmp_path / "out")) == 2
    assert f"no permission to write in {tmp_path}\n" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_shown_where_they_are_requested(name, home, tmp_path):
    words = writing_commands.words_of(name, home, tmp_path / "out")
    assert exit_code(*words, "--examples") == writing_commands.EXIT_CODES.get(name, 0)
    assert set(pages_that_quote(tmp_path)) <= {"report.html", "out.html"}
    assert pages_that_quote(tmp_path)


def pages_that_quote(folder: Path) -> dict[str, list[str]]:
    shown = [p for p in folder.rglob("*") if p.suffix in FOR_PEOPLE or p.name in FIGURES]
    return {p.name: quoted(p) for p in shown if quoted(p)}


def quoted(path: Path) -> list[str]:
    """What a page holds of the data: names of persons, ids of patients, pictures."""
    text = path.read_text(encoding="utf-8")
    return [word for word in (*writing_commands.QUOTED, "data:image") if word in text]


STOPPED = [
    "text finetune classify",
    "images finetune classify",
    "events finetune next-visit",
    "text pretrain",
    "table pretrain",
]


@pytest.mark.parametrize("name", STOPPED)
def test_a_stop_before_the_report_is_gone_on_from(name, home, tmp_path, monkeypatch):
    """A fine-tuned model stood there without its report, and the command refused to go on."""
    words = writing_commands.words_of(name, home, tmp_path / "out")
    with monkeypatch.context() as patched:
        patched.setattr(Report, "write", lambda *_: signal.raise_signal(signal.SIGTERM))
        assert exit_code(*words) == 128 + signal.SIGTERM
    assert exit_code(*words, "--resume") == 0
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "report.html").exists()
