"""Work is done by whoever has time; a worker that dies is replaced, and what is wrong with a task is said."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from unmask.engines import engine
from unmask.engines.local import Ended
from unmask.errors import UserError

RAY = importlib.util.find_spec("ray") is not None
BOTH = ["local", pytest.param("ray", marks=pytest.mark.skipif(not RAY, reason="no ray"))]


def work(common: str, task: int) -> tuple[int, int]:
    """What the tests let workers do: 3 kills its worker once, 4 always, 5 is wrong."""
    mark = Path(common) / "killed"
    if task == 4 or (task == 3 and not mark.exists()):
        mark.touch()
        os.kill(os.getpid(), 9)
    if task == 5:
        raise UserError("five is wrong", hint="Give another.")
    print("what workers print is no answer")
    return task * task, os.getpid()


def niceness(common: None, task: int) -> int:
    """Of the worker."""
    return os.nice(task)


HERE = "test_engines:work"


@pytest.fixture(autouse=True)
def _found_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))


@pytest.mark.parametrize("name", BOTH)
def test_a_worker_that_dies_is_replaced_and_its_task_done_again(tmp_path, name, capsys):
    said: list[str] = []
    with engine(name, 2, said.append) as two:
        assert two.workers == 2
        found = dict(two.run(HERE, str(tmp_path), [0, 1, 2, 3, 6, 7]))
        assert [found[i][0] for i in range(6)] == [0, 1, 4, 9, 36, 49]
        assert (tmp_path / "killed").exists()
        assert os.getpid() not in {process for _, process in found.values()}
        with pytest.raises(UserError, match=r"^five is wrong\n  Give another.$"):
            list(two.run(HERE, str(tmp_path), [0, 5]))
        with pytest.raises(Ended, match="has ended 4 times at the same work"):
            list(two.run(HERE, str(tmp_path), [4]))
        assert [i for i, _ in two.run(HERE, str(tmp_path), [])] == []
    assert capsys.readouterr().out == ""  # results of --json stand there, alone


@pytest.mark.skipif(not RAY, reason="no ray")
def test_workers_of_ray_stand_back_no_further_than_this_process():
    """Ray's own default starves them on a busy machine."""
    with engine("ray", 1, print) as one:
        assert list(one.run("test_engines:niceness", None, [0])) == [(0, os.nice(0))]


def test_one_worker_is_this_process():
    with engine("local", 1, print) as one:
        assert list(one.run(HERE, "", [2, 1])) == [(0, (4, os.getpid())), (1, (1, os.getpid()))]


def test_ray_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"needs the package ray\n  Run: pip install 'unmask\[ray\]'"):
        engine("ray", 2, print)
