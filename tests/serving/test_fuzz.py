"""What is malformed is answered with 4xx and one form of error, never with a traceback, and nothing grows by it."""

from __future__ import annotations

import contextlib
import gc
import random
import socket

import psutil
import pytest

from running_server import Asked
from storm import as_json, from_schema, of_one_form, spoilt

COUNT = 600


@pytest.mark.parametrize("seed", [0, 1])
def test_bodies_that_are_wrong_are_answered_with_4xx(text_server: Asked, seed, capfd):
    rng = random.Random(seed)
    paths = text_server.get("/openapi.json")[1]["paths"]
    shapes = [
        (path, told["post"]["requestBody"]["content"]["application/json"]["schema"])
        for path, told in paths.items()
        if "post" in told
    ]
    seen = set()
    for _ in range(COUNT // 2):
        path, schema = rng.choice(shapes)
        body = from_schema(schema, rng)
        body = spoilt(body, rng) if rng.random() < 0.8 else body
        content = as_json(body)
        if rng.random() < 0.1:
            content = content[: rng.randrange(len(content) + 1)]
        status, _, answer = text_server.send("POST", path, content, {"content-type": "application/json"})
        seen.add(status)
        assert status == 200 or 400 <= status < 500, (path, body, answer)
        if status != 200:
            assert of_one_form(path, answer)
    assert {200, 400} <= seen
    assert "Traceback" not in capfd.readouterr().err


def test_cut_off_and_odd_connections_leave_nothing_behind(text_server: Asked):
    rng, process = random.Random(3), psutil.Process()
    good = {"texts": ["the fox"]}
    odd = [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /models/masked/embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n",
        b"POST /models/masked/embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{",
        b"POST /models/masked/embed HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"\r\n" * 50,
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ]

    def burst(count):
        for _ in range(count):
            sock = socket.create_connection(("127.0.0.1", text_server.port), 5)
            sock.sendall(rng.choice(odd))
            if rng.random() < 0.5:
                sock.settimeout(0.05)
                with contextlib.suppress(OSError):
                    sock.recv(1000)
            sock.close()
        assert text_server.post("/models/masked/embed", good)[0] == 200
        gc.collect()

    burst(100)
    before, handles = process.memory_info().rss, process.num_fds()
    burst(400)
    assert process.memory_info().rss - before < 12 << 20
    assert process.num_fds() <= handles + 3
    assert text_server.gateway.metrics.waiting == 0


def test_memory_stays_where_it_is_under_load(text_server: Asked):
    process = psutil.Process()
    texts = ["the quick brown fox " * n for n in range(1, 9)]

    def load(count):
        for n in range(count):
            verb = ("embed", "fill", "score")[n % 3]
            body = {"texts": ["The [MASK] fox."] * (1 + n % 4)} if verb == "fill" else {"texts": texts[: 1 + n % 8]}
            assert text_server.post(f"/models/masked/{verb}", body)[0] == 200

    load(90)
    gc.collect()
    before = process.memory_info().rss
    load(240)
    gc.collect()
    assert process.memory_info().rss - before < 16 << 20
