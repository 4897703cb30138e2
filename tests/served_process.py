"""`unmask serve` as a process of its own, and requests to it by Python's own HTTP client."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

import psutil


class Serving:
    """A process of `unmask serve`, and requests to it."""

    def __init__(self, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        words = [sys.executable, "-m", "unmask", "serve", *map(str, arguments), "--port", "0"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **(environment or {})}
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # tests under nohup ignore it: so would it
        )
        assert self.process.stdout is not None
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                self.url = found[0]
                break
        else:
            raise AssertionError(self.process.communicate(timeout=30)[1])
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
            with urllib.request.urlopen(request, timeout=90) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """(exit code, what was said on stderr)."""
        began = {one.pid for one in self.workers()}
        self.process.send_signal(number)
        try:
            _, said = self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired as error:
            left = [
                f"{one.pid} {one.status()} {one.num_threads()} threads: {' '.join(one.cmdline())[-120:]}"
                for one in psutil.process_iter()
                if one.pid in began | {self.process.pid}
            ]
            open_ones = [f"{c.raddr} {c.status}" for c in psutil.Process(self.process.pid).net_connections()]
            self.process.send_signal(signal.SIGABRT)  # at which it says where each thread is
            stacks = self.process.communicate(timeout=30)[1]
            raise AssertionError(
                f"30 s after signal {number}: {left}; it had begun {sorted(began)}; connections: {open_ones}; {stacks}"
            ) from error
        return self.process.returncode, said

    def workers(self) -> list[psutil.Process]:
        """Processes that it, or one that it has started, began."""
        return psutil.Process(self.process.pid).children(recursive=True)
