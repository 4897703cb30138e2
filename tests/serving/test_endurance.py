"""Models of all kinds in one process of `unmask serve`: what is wrong is refused, nothing grows, and nothing taken is
lost at the end. For minutes with `-m slow`, for seconds without."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import random
import threading
import time
import urllib.error
from collections import Counter

import numpy as np
import polars as pl
import psutil
import pytest
from PIL import Image
from tables import patients as table_rows

from served_process import Serving
from storm import posts, requests, storm
from text_corpus import SENTENCES
from tiny_images import bars

SECONDS = float(os.environ.get("UNMASK_TEST_SECONDS", "120"))
"""Of the long load."""
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def models(text_folders, table_folder, image_folders, event_home):
    """What a server of models of all kinds is started with."""
    named = {**text_folders, "table": table_folder, "picture": image_folders["m"], "class": image_folders["tuned"]}
    named |= {"patient": event_home / "model", "outcome": event_home / "outcome"}
    given = [f"{name}={folder}" for name, folder in named.items()]
    return [*given, "--megabytes", 1, "--items", 64]


@pytest.fixture
def everything(models, start):
    """A server of them."""
    return start(*models)


@pytest.fixture(scope="module")
def started():
    """Servers that several tests ask."""
    made: list[Serving] = []
    yield made
    for server in made:
        if server.process.poll() is None:
            ends_well(server)


@pytest.fixture
def shared(models, started):
    """The server that the last test asked, unless it has ended it."""
    if not started or started[-1].process.poll() is not None:
        # Of a text that a request held for wrong, a warning is no fault of the server.
        started.append(Serving(*models, environment={"PYTHONWARNINGS": "ignore::UserWarning"}))
    return started[-1]


def memory(server: Serving) -> dict[int, int]:
    """Bytes that the server and each of its processes have for themselves."""
    return {one.pid: one.memory_full_info().uss for one in [psutil.Process(server.process.pid), *server.workers()]}


def growth(server: Serving, before: dict[int, int]) -> int:
    """Of the process that has grown most."""
    now = memory(server)
    assert now.keys() == before.keys()
    return max(now[pid] - before[pid] for pid in now)


def metrics(server: Serving) -> str:
    return server.get("metrics")[1].decode()


def weathered(server: Serving, count: int, slow: int, most: int) -> Counter:
    """Send so many requests that are mostly wrong; fail unless all is as it should be.

    Args:
        slow: of them never come to an end.
        most: bytes that memory may grow by, once a tenth was sent.
    """
    known = posts(json.loads(server.get("openapi.json")[1]))
    port = int(server.url.rsplit(":", 1)[1].strip("/"))
    shape = {"body": MEGABYTE, "items": 64}
    first = asyncio.run(storm(port, requests(known, count // 10, 0, slow=0, **shape)))
    before = memory(server)
    rest = asyncio.run(storm(port, requests(known, count - count // 10, 1, slow=slow, **shape)))
    wrong = first.wrong + rest.wrong
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:10])
    grown = growth(server, before)
    held = sum(before.values()) / 1e6
    print(f"\n{count} requests, memory {held:.0f} MB and {grown / 1e6:+.1f} MB: {first.counts + rest.counts}")
    assert grown < most
    assert "unmask_waiting 0\n" in metrics(server)
    assert server.post("models/masked/embed", {"texts": ["a fox"]})[0] == 200
    return first.counts + rest.counts


def ends_well(server: Serving) -> None:
    code, said = server.end()
    assert code == 0
    assert "Traceback" not in said
    assert "unmask serve:" not in said  # what a failure of the server itself is logged as


def test_every_example_that_is_shown_is_answered(shared):
    shown = json.loads(shared.get("openapi.json")[1])["paths"]
    found = {}
    for path, methods in shown.items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {})
        if "example" in content:
            found[path] = shared.post(path[1:], content["example"])
    assert len(found) > 25
    assert {path: answer for path, (status, answer) in found.items() if status != 200} == {}


def test_wrong_requests_are_refused(shared):
    counts = weathered(shared, 600, 0, 64 * MEGABYTE)
    assert {status for _, status in counts} >= {0, 200, 400, 404, 413, 415, 431}


@pytest.mark.slow
def test_ten_thousand_wrong_requests_are_refused_and_leave_nothing(everything):
    counts = weathered(everything, 10_000, 100, 48 * MEGABYTE)
    ends_well(everything)
    assert counts["slow", 408] > 90


def bodies(event_home) -> dict[str, list]:
    """Verb -> bodies that are answered."""
    texts = [s for s in SENTENCES if len(s) < 70]
    blanks = [text.replace("the", "[MASK]") for text in texts if "the" in text]
    rows = table_rows(60, seed=3, missing=0.3).replace({np.nan: None}).to_dict("records")
    pictures = []
    for pixels in bars(4)[0]:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        pictures.append(base64.b64encode(buffer.getvalue()).decode())
    frame = pl.read_parquet(event_home / "meds" / "data" / "**" / "*.parquet")
    people = []
    for _, events in list(frame.group_by("subject_id", maintain_order=True))[:8]:
        told = [{**row, "time": row["time"] and row["time"].isoformat()} for row in events.to_dicts()]
        people.append({"events": [{k: row[k] for k in ("time", "code", "numeric_value")} for row in told]})
    return {
        "masked/embed": [{"texts": texts[:n]} for n in (1, 5)],
        "masked/fill": [{"texts": blank} for blank in blanks],
        "masked/score": [{"texts": texts[:3], "tokens": True}],
        "masked/zeroshot": [{"texts": texts[0], "labels": ["quick", "lazy"]}],
        "classify/classify": [{"texts": texts[:4]}],
        "tag/tag": [{"texts": ["Ada lived in London"]}],
        "answer/answer": [{"questions": [{"question": "Who?", "context": "Ada lived in London."}]}],
        "table/impute": [{"rows": rows[:n]} for n in (1, 20)] + [{"rows": rows[:2], "draws": 2}],
        "table/score": [{"rows": rows[:9]}],
        "table/synthesize": [{"rows": 5, "seed": 1}],
        "table/survival": [{"rows": rows[:1], "draws": 2}],
        "picture/reconstruct": [{"images": pictures[:1]}, {"images": pictures[:2], "steps": 2}],
        "class/classify": [{"images": pictures}],
        "patient/fill": [{"patients": [person]} for person in people],
        "outcome/outcome": [{"patients": people[:3]}],
    }


def loaded(server: Serving, asked: dict[str, list], seconds: float, clients: int = 6) -> tuple[Counter, int]:
    """Ask for so many seconds and each verb once, then end the server while it is asked: (statuses of everything that
    was taken, bytes that its memory has grown by since the first fifth)."""
    statuses: Counter = Counter()
    until, stop = time.monotonic() + seconds, threading.Event()

    def client(number: int) -> None:
        rng, first = random.Random(number), sorted(asked)[number::clients]
        while not stop.is_set():
            verb = first.pop() if first else rng.choice(sorted(asked))
            try:
                statuses[verb, server.post(f"models/{verb}", rng.choice(asked[verb]))[0]] += 1
            except urllib.error.URLError as error:
                if isinstance(error.reason, ConnectionRefusedError):
                    return  # not taken: it had stopped listening
                statuses[verb, repr(error)] += 1
            except OSError as error:
                statuses[verb, repr(error)] += 1

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 5)
    before = memory(server)
    while time.monotonic() < until or {verb for verb, _ in list(statuses)} < set(asked):
        assert time.monotonic() < until + 120
        time.sleep(0.1)
    grown = growth(server, before)
    code, said = server.end()
    stop.set()
    for thread in threads:
        thread.join(60)
    held = sum(before.values()) / 1e6
    print(f"\n{statuses.total()} requests in {seconds:.0f} s, memory {held:.0f} MB and {grown / 1e6:+.1f} MB")
    assert (code, said) == (0, "")
    return statuses, grown


def test_mixed_load_is_answered_to_the_last(shared, event_home):
    """Of the server that has refused what was wrong; it has said nothing all its life."""
    asked = bodies(event_home)
    statuses, _ = loaded(shared, asked, 3)
    assert {status for _, status in statuses} == {200}
    assert {verb for verb, _ in statuses} == set(asked)


@pytest.mark.slow
def test_long_mixed_load_takes_no_more_memory_at_the_end(everything, event_home):
    statuses, grown = loaded(everything, bodies(event_home), SECONDS)
    assert {status for _, status in statuses} == {200}
    assert grown < 32 * MEGABYTE
