"""`unmask serve` as a process: starts, ends with what it took answered, and replaces a worker that is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

from commands import run
from tiny_folders import folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("process") / "tiny")


@pytest.fixture
def start():
    """Starts servers, and ends them whatever becomes of the test."""
    made = []

    def one(*arguments):
        made.append(Serving(*arguments))
        return made[-1]

    yield one
    for served in made:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()


class Serving:
    """A process of `unmask serve`, and requests to it."""

    def __init__(self, *arguments: object) -> None:
        words = [sys.executable, "-m", "unmask", "serve", *map(str, arguments), "--port", "0"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                self.url = found[0]
                break
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                if self.get("ready")[0] == 200:
                    return
            except OSError:
                time.sleep(0.02)

    def get(self, path: str) -> tuple[int, bytes]:
        with urllib.request.urlopen(self.url + path, timeout=20) as answer:
            return answer.status, answer.read()

    def post(self, path: str, body: object) -> tuple[int, dict]:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """(exit code, what was said on stderr)."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


def test_it_ends_with_0_and_loses_nothing_that_it_took(model, start):
    served = start(model, f"again={model}")
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
    time.sleep(0.6)
    code, said = served.end()
    stop.set()
    for thread in threads:
        thread.join(20)
    assert code == 0, said
    assert len(outcomes) > 6
    assert set(outcomes) == {200}
    assert said == ""


def test_a_worker_that_is_killed_is_replaced_and_its_requests_get_an_error(model, start):
    served = start(model, "--workers", 1)
    text = {"texts": ["The [MASK] fox."]}
    assert served.post("models/tiny/fill", text)[0] == 200
    (child,) = [
        int(pid)
        for pid in subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(served.process.pid)], capture_output=True, text=True
        ).stdout.split()
        if "worker" in subprocess.run(["ps", "-o", "args=", "-p", pid], capture_output=True, text=True).stdout
    ]
    answers = []
    long = {"texts": ["the quick brown fox jumps " * 8] * 90}
    threads = [
        threading.Thread(target=lambda: answers.append(served.post("models/tiny/score", long))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.15)
    os.kill(child, signal.SIGKILL)
    for thread in threads:
        thread.join(20)
    assert {status for status, _ in answers} <= {200, 503}
    assert any(status == 503 and "died" in found["error"]["what"] for status, found in answers)
    until, status = time.monotonic() + 60, 503
    while status == 503 and time.monotonic() < until:
        status = served.post("models/tiny/fill", text)[0]
        time.sleep(0.1)
    assert status == 200
    assert b"unmask_worker_restarts_total 1" in served.get("metrics")[1]
    assert served.end()[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere/at/all"], "nowhere/at/all"),
        (["{model}", "{model}"], "two models named 'tiny'"),
        (["{model}", "--key-file", "nokeys"], "nokeys"),
        (["{model}", "--host", "203.0.113.7"], "203.0.113.7:8765"),
        (["{model}", "--precision", "int4"], "int4"),
    ],
)
def test_mistakes_end_with_2_before_anything_listens(capsys, model, arguments, said):
    code, out, err = run(capsys, "serve", *[a.format(model=model) for a in arguments])
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert "http://" not in out
