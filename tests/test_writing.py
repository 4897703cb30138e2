"""Files and folders are written in one way: by one process at a time, whole or not at all, for their owner alone."""

import contextlib
import errno
import os
import pkgutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from unmask.engines.folder import preparing
from unmask.errors import UserError
from unmask.export.folders import whole_folder
from unmask.files import check_place, check_weights, read_object
from unmask.writing import (
    LOCK,
    SAVED,
    brought_to_an_end,
    locked,
    new_model,
    own_folder,
    temporary_name,
    writes_model,
    written,
    written_folder,
)

HOLDING = """
import sys
import time
from unmask.writing import own_folder
with own_folder(sys.argv[1], busy="trains there"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def another_process_in(folder: Path) -> Iterator[subprocess.Popen]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDING, str(folder)], **pipes) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def ended_process() -> int:
    """The number of a process that is over."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


@pytest.fixture
def ordinary_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_two_processes_do_not_write_one_folder(tmp_path):
    out = tmp_path / "model"
    with another_process_in(out) as other:
        for writer in (own_folder, new_model, written_folder):
            with pytest.raises(UserError, match=f"process {other.pid}"), writer(out):
                raise AssertionError("two writers")
    assert not out.exists(), "nothing was written there"


def test_a_disk_that_fills_up_while_a_folder_is_worked_in_is_said(tmp_path):
    """The lines of a run's metrics.jsonl ended in a traceback."""
    for wrong in (errno.ENOSPC, errno.EROFS):
        with pytest.raises(UserError, match="model: cannot be written"), own_folder(tmp_path / "model"):
            raise OSError(wrong, os.strerror(wrong))
    with pytest.raises(FileNotFoundError), own_folder(tmp_path / "model"):
        (tmp_path / "rows.csv").read_text()


def test_a_killed_process_holds_nothing(tmp_path):
    with another_process_in(tmp_path / "model") as other:
        other.kill()
        other.wait()
        with own_folder(tmp_path / "model"):
            pass


def test_a_process_may_take_what_it_holds_and_leaves_no_lock(tmp_path):
    with own_folder(tmp_path), own_folder(tmp_path), written_folder(tmp_path) as new:
        (new / "config.json").write_text("{}")
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_who_waits_gets_a_lock_whose_file_was_removed_meanwhile(tmp_path):
    with another_process_in(tmp_path) as other:

        def waiting(text: str) -> None:
            assert f"process {other.pid}" in text
            other.stdin.close()

        with locked(tmp_path / LOCK, wait=waiting, busy="is there"):
            assert (tmp_path / LOCK).read_text() == f"process {os.getpid()}"


def test_what_a_killed_process_left_of_a_new_folder_is_no_folder_that_is_there(tmp_path):
    """Its lock stood there, and the next export was refused: the folder existed."""
    (tmp_path / LOCK).touch()
    with whole_folder(tmp_path) as new:
        (new / "config.json").write_text("{}")
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]
    with pytest.raises(UserError, match="exists"), whole_folder(tmp_path):
        pass


def test_a_folder_that_holds_a_model_is_refused_before_the_work(tmp_path):
    (tmp_path / "unmask.json").write_text("{}")
    calls = []

    @writes_model
    def fit(data: int, out: Path | None = None) -> int:
        calls.append(out)
        return data

    with pytest.raises(UserError, match="already holds a model"):
        fit(1, out=tmp_path)
    assert (fit(2), fit(3, tmp_path / "new")) == (2, 3)
    assert calls == [None, tmp_path / "new"]
    assert not (tmp_path / "new").exists(), "an empty folder is not left behind"


def test_what_a_killed_process_left_of_a_folder_within_a_folder_is_removed_by_the_next(tmp_path):
    """A model within the folder of a fine-tuning stayed there for good: it has a hidden name of its own."""
    inner = temporary_name(temporary_name(tmp_path / "model"))
    left = inner.with_name(inner.name.replace(str(os.getpid()), str(ended_process())))
    left.mkdir()
    with written_folder(tmp_path / "model"):
        pass
    assert not left.exists()


KILLED = """
import os
import signal
import sys
from pathlib import Path
from tiny_folders import folder, sentiment
from unmask.modalities.text.tasks.finetune import finetune, seeds

def hook(event, found):
    if event == sys.argv[2] and str(found[int(sys.argv[3])]).endswith(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)

home = Path(sys.argv[1])
model = folder(home / "model")
QUICK = {"steps": 1, "batch": 8, "precision": "fp32", "out": home / "out"}
def run():
    if sys.argv[5] == "seeds":
        seeds(model, sentiment(16), task="classify", validation=sentiment(8), count=2, **QUICK)
    else:
        finetune(model, sentiment(16), checkpoints=True, checkpoint_seconds=1e-6, **QUICK)

if not (child := os.fork()):
    sys.addaudithook(hook)
    run()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
print(*os.listdir(home))
run()
"""


@pytest.mark.parametrize(
    ("runs", "event", "argument", "path"),
    [
        ("one", "shutil.rmtree", 0, ".out.training"),
        ("seeds", "os.rename", 1, ".new"),
        ("seeds", "open", 0, "metrics.jsonl"),
    ],
)
def test_what_a_killed_fine_tuning_left_is_removed_by_the_next(tmp_path, runs, event, argument, path):
    """Killed at its last change it left its checkpoints beside the model; one of several seeds, a model."""
    words = [sys.executable, "-c", KILLED, tmp_path, event, argument, path, runs]
    search = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    found = subprocess.run([*map(str, words)], env=os.environ | search, capture_output=True, text=True)
    assert found.returncode == 0 or "already holds a model" in found.stderr, found.stderr
    assert any(name.startswith(".out.") for name in found.stdout.split())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "out"]


EVENTS = """
import datetime as dt
import os
import signal
import sys
import polars as pl
from unmask.modalities.events.records import columns, meds

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

table = pl.DataFrame({"subject_id": [1, 2], "time": [dt.datetime(2020, 1, 1)] * 2, "code": ["A", "B"]})
if sys.argv[1] == "killed":
    columns._build = meds.events_of = killed
if sys.argv[2] == "memory":
    meds.as_events(table)
else:
    os.makedirs("meds/data")
    table.write_parquet("meds/data/0.parquet")
    meds.read_meds("meds", store=columns.EventStore(most=0))
"""


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_what_a_killed_process_left_among_temporary_files_is_removed_by_the_next(tmp_path, where):
    """Patients' events stood in /tmp for good."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    for how in ("killed", "whole"):
        work = tmp_path / how
        work.mkdir()
        words = [sys.executable, "-c", EVENTS, how, where]
        found = subprocess.run(words, cwd=work, env=os.environ | {"TMPDIR": str(temporary)}, capture_output=True)
        assert found.returncode == (-signal.SIGKILL if how == "killed" else 0), found.stderr.decode()
        assert bool(list(temporary.iterdir())) is (how == "killed")


def test_a_preparation_goes_on_where_a_killed_one_was_writing_a_file(tmp_path):
    """What was on its way made it "not the folder of a preparation"."""
    mine = temporary_name(tmp_path / "special_tokens_map.json")
    left = mine.with_name(mine.name.replace(str(os.getpid()), str(ended_process())))
    left.write_text("{")
    with preparing(tmp_path, []):
        pass
    assert not left.exists()


@pytest.mark.parametrize("ended", [True, False])
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path, ended):
    """A half of a table of patients stood there for good before."""
    mine = temporary_name(tmp_path / "rows.csv")
    number = ended_process() if ended else os.getppid()
    left = mine.with_name(mine.name.replace(str(os.getpid()), str(number)))
    left.write_text("id,age\n1,50\n")
    with written(tmp_path / "rows.csv") as new:
        new.write_text("whole")
    assert left.exists() is not ended
    assert (tmp_path / "rows.csv").read_text() == "whole"


def test_results_are_for_their_owner_alone_and_keep_the_mode_they_have(tmp_path, ordinary_umask):
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    with written(tmp_path / "rows.csv") as new:
        new.write_text("1")
    with written_folder(tmp_path / "model") as folder:
        (folder / "config.json").write_text("{}")
    assert [mode(tmp_path / n) for n in ("rows.csv", "model", "model/config.json")] == [0o600, 0o700, 0o600]
    (tmp_path / "rows.csv").chmod(0o640)
    (tmp_path / "model").chmod(0o750)
    with written(tmp_path / "rows.csv") as new:
        new.write_text("2")
    with written_folder(tmp_path / "model") as folder:
        (folder / "config.json").write_text("{}")
    assert [mode(tmp_path / n) for n in ("rows.csv", "model", "model/config.json")] == [0o640, 0o750, 0o640]


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, how: False)  # the root user may write anywhere
    with pytest.raises(UserError, match="no permission to write"):
        check_place(tmp_path / "rows.csv")


@pytest.mark.parametrize("removable", [True, False])
def test_a_disk_that_turns_read_only_is_said(tmp_path, monkeypatch, removable):
    """The removal of what was begun failed too, and its traceback stood in place of the message."""
    if not removable:

        def refused(self: Path, missing_ok: bool = False) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(UserError, match=r"rows\.csv: cannot be written"), written(tmp_path / "rows.csv"):
        raise OSError(errno.EROFS, "Read-only file system")


@pytest.mark.parametrize("name", ["safetensors.SafetensorError", "polars.exceptions.ComputeError"])
def test_a_full_disk_is_said_where_a_library_says_so(tmp_path, name):
    with pytest.raises(UserError, match="best: cannot be written"), written(tmp_path / "best"):
        raise pkgutil.resolve_name(name)("parquet: underlying IO error: No space left on device (os error 28)")
    assert not list(tmp_path.iterdir())


def test_threads_of_one_process_exclude_each_other(tmp_path):
    inside, seen = [], []

    def work(number):
        with locked(tmp_path / ".lock", wait=seen.append, busy="writes"), locked(tmp_path / ".lock", busy="writes"):
            inside.append(number)
            time.sleep(0.05)
            assert inside == [number]
            inside.clear()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(seen) == 3
    refused = pytest.raises(UserError, match=f"process {os.getpid()} writes")
    with locked(tmp_path / ".lock", busy="writes"), ThreadPoolExecutor(1) as pool, refused:
        pool.submit(lambda: locked(tmp_path / ".lock", busy="writes").__enter__()).result()


@pytest.mark.parametrize("renames", range(4))
@pytest.mark.parametrize("how", [KeyboardInterrupt, SystemExit])
def test_a_writer_ended_between_two_files_of_a_model_leaves_the_old_or_the_new_one(tmp_path, monkeypatch, renames, how):
    """The new unmask.json stood beside the old weights, which its checksums refused: no model was left."""

    def write(text: str) -> None:
        with written_folder(tmp_path) as new:
            for name in ("config.json", "model.safetensors"):
                (new / name).write_text(text)
            (new / "unmask.json").write_text("{}")

    write("old")
    (tmp_path / "notes.txt").write_text("mine")
    done, rename = [], os.replace

    def ended(source, target):
        if len(done) == renames:
            raise how
        done.append(source)
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", ended)
        with pytest.raises(how):
            write("newer")
    brought_to_an_end(tmp_path)
    check_weights(tmp_path, read_object(tmp_path / "unmask.json"))
    assert {(tmp_path / n).read_text() for n in ("config.json", "model.safetensors")} == {"newer" if renames else "old"}
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "config.json",
        "model.safetensors",
        "notes.txt",
        "unmask.json",
    ]


def test_who_reads_a_model_ends_what_a_killed_writer_began(tmp_path):
    from unmask.registry import kind_of

    (tmp_path / "unmask.json").write_text('{"kind": "table"}')
    (tmp_path / SAVED).mkdir()
    (tmp_path / SAVED / "unmask.json").write_text('{"kind": "events"}')
    assert kind_of(tmp_path) == "events"
    assert [p.name for p in tmp_path.iterdir()] == ["unmask.json"]
