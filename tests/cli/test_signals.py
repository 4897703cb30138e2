"""A command that a signal ends says so by its exit code: 128 plus the signal's number, as shells and `make` expect."""

import signal

import pytest

from unmask.cli import main
from unmask.cli.common import Output
from unmask.training.signals import SignalGuard

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
    assert ('"stopped": "signal"' if as_json else "stopped by a signal after step 3; --resume continues") in printed


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
