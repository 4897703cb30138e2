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
