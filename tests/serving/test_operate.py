"""The steps of examples/serving, read from its very files, as plain processes: probes, drain, memory limit.

What a file says in seconds is kept to where the steps take them; nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import configparser
import contextlib
import json
import resource
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
import yaml

from tiny_folders import folder
from unmask.serving.limits import Limits
from unmask.serving.server import LINGER
from unmask.serving.start import LAST

EXAMPLES = Path(__file__).parents[2] / "examples" / "serving"
DEPLOYMENT, SERVICE, _ = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
POD = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
UNIT = configparser.ConfigParser(interpolation=None, strict=False)
UNIT.optionxform = str
UNIT.read(EXAMPLES / "unmask-serve.service")
KEY = "a-key-of-sixteen-or-more"
TEXT = "the quick brown fox jumps over the lazy dog "
GIB = {"Gi": 2**30, "G": 2**30}


class Process:
    """A command of an example, with this machine's python, model, key file and port."""

    def __init__(self, command, where, *, memory=None, **environment):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (where / "keys").write_text(KEY)
        (where / "keys").chmod(0o600)
        words = []
        for word in command:
            if word.endswith("models/mine"):
                word = str(where / "mine")
            elif word.endswith("/keys"):
                word = f"{'--key-file=' if '=' in word else ''}{where / 'keys'}"
            words.append("--host=127.0.0.1" if word.startswith("--host=") else word)
        limit = (lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, resource.RLIM_INFINITY))) if memory else None
        self.process = subprocess.Popen(
            [sys.executable, "-m", "unmask", *words, "--port", str(self.port)],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(where), **environment},
            preexec_fn=limit,
        )

    def ask(self, path, body=None, timeout=60, **headers):
        """(status, answer); None for no answer in time, or no connection."""
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}", **headers}
        content = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", content, headers)
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
        except OSError:
            return None, None

    def probe(self, name):
        """The status of a probe of the container, as the kubelet asks: without a key, within its time."""
        spec = CONTAINER[name]
        return self.ask(spec["httpGet"]["path"], timeout=spec["timeoutSeconds"], authorization="")[0]

    def until_started(self):
        spec, failed = CONTAINER["startupProbe"], 0
        while (status := self.probe("startupProbe")) != 200:
            assert status in (None, 503)
            assert self.process.poll() is None, self.process.stderr.read()
            failed += 1
            assert failed < spec["failureThreshold"]
            time.sleep(spec["periodSeconds"])
        return failed

    def metric(self, name):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/metrics", headers={"authorization": f"Bearer {KEY}"}
        )
        lines = urllib.request.urlopen(request, timeout=60).read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


@contextlib.contextmanager
def started(command, where, **more):
    made = Process(command, where, **more)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
        made.process.communicate()


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    root = tmp_path_factory.mktemp("operate")
    folder(root / "mine")
    return root


@contextlib.contextmanager
def asked(process, body, clients):
    """Answers to requests of some clients that go on asking, which are all waited for at the end."""
    answers, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            answers.append(process.ask("/models/mine/score", body)[0])

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        stop.set()
        for thread in threads:
            thread.join(90)


def test_the_pod_starts_lives_while_busy_and_drains(where):
    grace = POD["terminationGracePeriodSeconds"]
    memory = CONTAINER["resources"]["limits"]["memory"]
    command = [*CONTAINER["command"][1:], *CONTAINER["args"]]
    with started(command, where, memory=int(memory[:-2]) * GIB[memory[-2:]]) as pod:
        assert pod.until_started() > 0  # nobody is let in before the models are loaded
        name = SERVICE["metadata"]["name"]
        assert pod.ask("/models", host=name)[0] == 200
        assert pod.ask("/models", host="elsewhere")[0] == 403

        with asked(pod, {"texts": [TEXT] * 100}, clients=8) as answers:
            seen, busy = set(), 0
            for _ in range(12):
                seen |= {pod.probe("livenessProbe"), pod.probe("readinessProbe")}
                busy += pod.metric("unmask_waiting") > 0
        assert busy > 6
        assert seen == {200}  # a busy server is neither ended nor left out
        assert set(answers) == {200}

        taken = threading.Thread(target=lambda: answers.append(pod.ask("/models/mine/score", {"texts": [TEXT] * 100})))
        subprocess.run(CONTAINER["lifecycle"]["preStop"]["exec"]["command"], check=True, timeout=grace)
        assert pod.probe("readinessProbe") == 200  # it still answers those whom the Service sends
        taken.start()
        while pod.metric("unmask_waiting") == 0 and taken.is_alive():
            pass
        pod.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        while pod.process.poll() is None and pod.probe("readinessProbe") == 200:
            pass
        assert pod.process.wait(grace) == 0
        assert time.monotonic() - began < grace
        taken.join(90)
        assert answers[-1][0] == 200


def test_work_beyond_the_memory_is_refused_and_the_server_goes_on(where):
    """An address space of little more than the server holds stands for the limit of a control group, which ends it."""
    largest = {"texts": ["x" * 3000] * 5000}
    with started([*CONTAINER["command"][1:], *CONTAINER["args"]], where) as pod:
        pod.until_started()
        statuses = []

        def flood():
            statuses.append(pod.ask("/models/mine/embed", largest)[0])

        threads = [threading.Thread(target=flood) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
        assert set(statuses) <= {400, 429}  # more than is read of one request, or of all together
        held = psutil.Process(pod.process.pid)
        held.rlimit(psutil.RLIMIT_AS, (held.memory_info().vms + (32 << 20), resource.RLIM_INFINITY))
        status, found = pod.ask("/models/mine/embed", largest)
        assert (status, found["error"]["what"]) == (503, "there is not enough memory for this request")
        assert pod.ask("/models/mine/embed", {"texts": [TEXT]})[0] == 200
        assert pod.probe("livenessProbe") == 200


def test_every_grace_is_longer_than_the_drain_and_every_probe_than_what_it_waits_for():
    unit = UNIT["Service"]
    given = [word for word in CONTAINER["args"] if word.startswith("--seconds=")]
    seconds = float(given[0].partition("=")[2])
    before = float(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] > before + LINGER + seconds + LAST
    command = shlex.split(unit["ExecStart"])
    assert float(unit["TimeoutStopSec"]) > LINGER + float(command[command.index("--seconds") + 1]) + LAST
    for name in ("startupProbe", "readinessProbe"):
        assert CONTAINER[name]["timeoutSeconds"] > Limits().ready
    assert CONTAINER["livenessProbe"]["httpGet"]["path"] != CONTAINER["readinessProbe"]["httpGet"]["path"]
    assert "/health" in (EXAMPLES / "Dockerfile").read_text().partition("HEALTHCHECK")[2]


def test_the_unit_is_told_when_it_has_started_and_when_it_stops(where):
    unit = UNIT["Service"]
    assert unit["Type"] == "notify"
    command = shlex.split(unit["ExecStart"])[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(where / "notify"))
        systemd.settimeout(float(unit["TimeoutStartSec"]))
        with started(command, where, NOTIFY_SOCKET=str(where / "notify")) as service:
            assert systemd.recv(100) == b"READY=1"
            assert service.ask("/ready")[0] == 200
            service.process.send_signal(signal.SIGTERM)
            assert systemd.recv(100) == b"STOPPING=1"
            assert service.process.wait(float(unit["TimeoutStopSec"])) == 0


def test_what_no_other_start_changes_is_not_started_again(where):
    command = [word.replace("/srv/models/mine", "/nowhere") for word in shlex.split(UNIT["Service"]["ExecStart"])[1:]]
    with started(command, where) as service:
        assert service.process.wait(120) == int(UNIT["Service"]["RestartPreventExitStatus"]) == 2
