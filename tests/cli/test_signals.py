"""A command that a signal ends says so by its exit code: 128 plus the signal's number, as shells and `make` expect."""

import signal
import sys

import pytest

from unmask.cli import main
from unmask.cli.common import Output
from unmask.training.signals import SignalGuard, interrupt_if

SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture(autouse=True)
def handlers():
    """Python's own handlers: a test runner in the background inherits an ignored SIGINT."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_run_that_saved_and_left(number, as_json, capsys):
    with SignalGuard():
        signal.raise_signal(number)
    with pytest.raises(SystemExit) as ended:
        Output(as_json).write({"stopped": "signal", "steps": 3}, ["model: out"])
    assert ended.value.code == 128 + number
    printed = capsys.readouterr().out
    assert "model: out" not in printed, "there is no model"
    assert (
        '"stopped": "signal"' if as_json else "stopped by a signal after step 3, which is saved; to go on:"
    ) in printed


def test_a_run_that_finished_ends_well():
    Output(False).write({"stopped": "finished", "steps": 3}, [])


@pytest.mark.parametrize("number", SIGNALS)
def test_a_command_that_saves_nothing_on_the_way(number, tmp_path, monkeypatch, capsys):
    import unmask.cli.app
    import unmask.writing

    def build():
        def command(args, prog_name):
            with unmask.writing.written(tmp_path / "rows.csv") as place:
                place.write_text("half")
                signal.raise_signal(number)

        return command

    monkeypatch.setattr(unmask.cli.app, "build", build)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 128 + number
    assert number.name in capsys.readouterr().err
    assert not list(tmp_path.iterdir()), "what it began is removed"
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)


def test_an_ignored_signal_stays_ignored(monkeypatch):
    import unmask.cli.app

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    monkeypatch.setattr(unmask.cli.app, "build", lambda: lambda args, prog_name: signal.raise_signal(signal.SIGTERM))
    main([])


@pytest.mark.parametrize("number", SIGNALS)
def test_a_stopped_fit_of_a_table_leaves_nothing(number, tmp_path, monkeypatch):
    """Its curve stood there without a model."""
    from unmask.modalities.table.model import TableModel

    (tmp_path / "rows.csv").write_text("a,b\n" + "".join(f"{i},{i % 7}\n" for i in range(40)))

    def fit(frame, *, watch, **more):
        signal.raise_signal(number)

    monkeypatch.setattr(TableModel, "fit", fit)
    with pytest.raises(SystemExit) as ended:
        main(["pretrain", "table", str(tmp_path / "rows.csv"), "--out", str(tmp_path / "model")])
    assert ended.value.code == 128 + number
    assert [p.name for p in tmp_path.iterdir()] == ["rows.csv"]


def ended(words, monkeypatch, work):
    """(exit code) of a command that does this work."""
    import unmask.cli.app

    monkeypatch.setattr(unmask.cli.app, "build", lambda: lambda args, prog_name: work())
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    return stop.value.code


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_the_last_is_written_is_heeded(number, monkeypatch, capsys):
    """The run wrote its model to the end and the command exited with 0, so that `&& fill` went on."""

    def work():
        with SignalGuard():
            signal.raise_signal(number)
        sys.exit(0)

    assert ended("pretrain text T --out O", monkeypatch, work) == 128 + number
    assert f"{number.name} came when all was done" in capsys.readouterr().err


def test_a_demo_that_is_stopped_does_not_go_on(monkeypatch, capsys):
    def work():
        with SignalGuard():
            signal.raise_signal(signal.SIGINT)
        interrupt_if("signal")

    assert ended("demo text", monkeypatch, work) == 130
    assert "SIGINT stopped it; what it had begun to write is removed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "left", "said"),
    [
        ("pretrain text T --out run", "run/checkpoints", "kept; to go on: unmask pretrain text T --out run --resume"),
        ("finetune tag M T --out=run", ".run.training/checkpoints", "unmask finetune tag M T --out=run --resume"),
        ("prepare text T --out run", "run", "what is done is kept; to go on: unmask prepare text T --out run\n"),
        ("impute M T --out run", ".run.filling", "what is done is kept; to go on: unmask impute M T --out run\n"),
        ("impute M T --out run", "", "what it had begun to write is removed"),
    ],
)
def test_what_is_left_and_how_to_go_on_is_said(words, left, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / left).mkdir(parents=True, exist_ok=True)
    assert ended(words, monkeypatch, lambda: signal.raise_signal(signal.SIGINT)) == 130
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ["synthesize M --rows 3 --out O", "embed M T --out O", "impute M T --out O", "events convert T --out O"]
)
def test_a_command_of_one_process_is_refused_under_a_launcher(words, monkeypatch, capsys):
    """Each of two processes wrote the same file."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert "takes one process, the launcher started 2" in capsys.readouterr().err
