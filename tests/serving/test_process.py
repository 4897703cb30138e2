"""`unmask serve` as a process: starts, ends with what it took answered, and replaces a worker that is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import urllib.error

import psutil
import pytest

from commands import run
from tiny_folders import folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("process") / "tiny")


@pytest.mark.parametrize(("workers", "hung_up"), [(0, False), (2, False), (2, True)])
def test_it_ends_with_0_and_loses_nothing_that_it_took(model, start, workers, hung_up):
    served = start(model, f"again={model}", "--workers", workers)
    outcomes, stop = [], threading.Event()

    def load(number):
        texts = ["the quick brown fox " * (1 + n % 5) for n in range(12)]
        while not stop.is_set():
            try:
                outcomes.append(served.post(f"models/{'tiny' if number % 2 else 'again'}/score", {"texts": texts})[0])
            except urllib.error.URLError as error:
                if isinstance(error.reason, ConnectionRefusedError):
                    return  # not taken: it had stopped listening
                outcomes.append(repr(error))
            except OSError as error:
                outcomes.append(repr(error))

    threads = [threading.Thread(target=load, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 20  # on a busy machine too some are answered before the end
    while len(outcomes) < 12 and time.monotonic() < until:
        time.sleep(0.02)
    for one in served.workers() if hung_up else []:  # who closes a terminal tells all of its processes, often twice
        one.send_signal(signal.SIGHUP)
    if hung_up:
        served.process.send_signal(signal.SIGHUP)
        time.sleep(0.1)
    code, said = served.end(signal.SIGHUP if hung_up else signal.SIGTERM)
    stop.set()
    for thread in threads:
        thread.join(20)
    assert code == 0, said
    assert len(outcomes) > 6
    assert set(outcomes) == {200}
    assert said == ""


def test_a_worker_that_is_killed_is_replaced_by_one_that_answers_its_requests(model, start):
    served = start(model, "--workers", 1)
    text = {"texts": ["The [MASK] fox."]}
    assert served.post("models/tiny/fill", text)[0] == 200
    (child,) = served.workers()
    answers = []
    long = {"texts": ["the quick brown fox jumps " * 8] * 90}
    threads = [
        threading.Thread(target=lambda: answers.append(served.post("models/tiny/score", long))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.15)
    child.kill()
    for thread in threads:
        thread.join(90)  # another one loads the model first
    assert [status for status, _ in answers] == [200] * 3
    until, status = time.monotonic() + 60, 503
    while status == 503 and time.monotonic() < until:
        status = served.post("models/tiny/fill", text)[0]
        time.sleep(0.1)
    assert status == 200
    assert b"unmask_worker_restarts_total 1" in served.get("metrics")[1]
    assert served.end()[0] == 0


def test_ready_asks_every_process(model, start):
    served = start(model, "--workers", 2)
    stopped = served.workers()[-1]
    stopped.suspend()
    time.sleep(1.1)  # what was found stands for a second
    try:
        with pytest.raises(urllib.error.HTTPError) as error:
            served.get("ready")
        assert (error.value.code, b"tiny: no answer" in error.value.read()) == (503, True)
    finally:
        stopped.resume()
    time.sleep(1.1)
    assert served.get("ready")[0] == 200
    assert served.end()[0] == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_hints_to_who_asks_name_keys_of_the_request(model, start, workers):
    """They named arguments of Python."""
    served = start(model, "--workers", workers)
    status, found = served.post("models/tiny/zeroshot", {"texts": "a", "labels": ["\u2603", "b"]})
    assert (status, found["error"]["what"].split(":")[0]) == (400, "label '\u2603'")
    assert found["error"]["hint"] == 'Give other words: "words": {label: [word, ...]}.'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere/at/all"], "nowhere/at/all"),
        (["{model}", "{model}"], "two models named 'tiny'"),
        (["{model}", "--key-file", "nokeys"], "nokeys"),
        (["{model}", "--host", "203.0.113.7"], "203.0.113.7:8765"),
        (["{model}", "--precision", "int4"], "int4"),
        (["{model}/.."], "no model in this folder"),
        (["{model}", "--seconds", "0"], "--seconds"),
        (["{model}", "--cors", "ward.example"], "no origin"),
    ],
)
def test_mistakes_end_with_2_before_anything_listens(capsys, model, arguments, said):
    code, out, err = run(capsys, "serve", *[a.format(model=model) for a in arguments])
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert "http://" not in out


def test_the_process_that_listens_knows_no_torch_where_others_answer(model, start):
    served = start(model, "--workers", 1)
    assert served.post("models/tiny/fill", {"texts": "The [MASK] fox."})[0] == 200
    mapped = {part.path.rsplit("/", 1)[-1] for part in psutil.Process(served.process.pid).memory_maps()}
    assert not any(name.startswith("libtorch") for name in mapped)


def test_serving_imports_what_it_needs_and_no_more(model):
    code = (
        "import sys; from unmask.serving.limits import Limits; from unmask.serving.models import serve; "
        f"serve({str(model)!r}, Limits()); "
        "print(*{'scipy', 'sklearn', 'pandas', 'polars', 'matplotlib', 'transformers', 'jinja2'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == []
