"""The contract of the server: its addresses, one form of errors, limits, keys, and who may ask."""

from __future__ import annotations

import json
import math
import re
import socket
import sys
import threading
import time

import pytest

from running_server import counting, running
from unmask.errors import UserError
from unmask.serving import server as server_module
from unmask.serving.keys import Keys, check_origins
from unmask.serving.limits import Limits, Refusal
from unmask.serving.models import named
from unmask.serving.server import turn_away_newcomers
from unmask.serving.start import listen, warn

KEY = "a-key-of-sixteen-or-more"


@pytest.fixture(scope="module")
def server():
    with running({"one": counting(), "two": counting()}) as asked:
        yield asked


def test_the_addresses_of_the_contract(server):
    assert server.get("/health") == (200, {"status": "ok", "version": "0.1.0", "live": True})
    ready = {"status": "ready", "models": ["one", "two"], "live": True, "ready": True}
    assert server.get("/ready") == (200, ready)
    assert server.post("/models/one/length", {"texts": ["a", "bcd"]}) == (200, {"lengths": [1, 3]})
    assert [m["id"] for m in server.get("/v1/models")[1]["data"]] == ["one", "two"]
    assert set(server.get("/models")[1]["models"]["one"]["verbs"]) == {"length", "sum"}
    assert server.get("/models/two/info")[1]["model_id"] == "two"
    for path, kind in (("/", "text/html"), ("/docs", "text/html"), ("/page/page.js", "text/javascript")):
        status, headers, body = server.send("GET", path)
        assert (status, headers["content-type"].partition(";")[0]) == (200, kind)
        assert b"://" not in body.replace(b"http://www.w3.org", b"")  # nothing from elsewhere
        assert "default-src 'none'" in headers["content-security-policy"]


def test_the_documented_calls_are_for_this_very_server(server, tmp_path):
    page = server.send("GET", "/docs")[2].decode()
    assert f"127.0.0.1:{server.port}/models/one/length" in page
    assert "authorization" not in page
    named = server.send("GET", "/docs", None, {"Host": "localhost:'<b>"})
    assert named[0] == 403 or b"'<b>" not in named[2]
    (tmp_path / "keys").write_text(KEY)
    with running({"m": counting()}, keys=Keys(tmp_path / "keys")) as locked:
        page = locked.send("GET", "/docs", None, {"Authorization": f"Bearer {KEY}"})[2].decode()
        assert "authorization: Bearer KEY" in page
        assert KEY not in page


def test_openapi_is_one_and_its_examples_fit_its_shapes(server):
    import jsonschema

    status, found = server.get("/openapi.json")
    assert (status, found["openapi"][:2]) == (200, "3.")
    post = found["paths"]["/models/one/length"]["post"]
    body = post["requestBody"]["content"]["application/json"]
    jsonschema.validate(body["example"], body["schema"])
    answer = server.post("/models/one/length", body["example"])[1]
    jsonschema.validate(answer, post["responses"]["200"]["content"]["application/json"]["schema"])


def test_metrics_count_requests_and_batches(server):
    server.post("/models/one/sum", {"numbers": [1, 2]})
    text = server.send("GET", "/metrics")[2].decode()
    assert 'unmask_requests_total{model="one",action="sum",status="200"}' in text
    assert 'unmask_slots_total{model="one"}' in text
    assert 'le="+Inf"' in text


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("POST", "/models/three/length", {}, 404, "no model 'three'"),
        ("POST", "/models/one/lenght", {}, 404, "no 'lenght'"),
        ("GET", "/nowhere", None, 404, "no such address"),
        ("GET", "/page/..%2fserver.py", None, 404, "no such"),
        ("PUT", "/models/one/length", {}, 405, "PUT"),
        ("GET", "/models/one/length", None, 405, "GET"),
        ("POST", "/models/one/length", {"texts": "a"}, 400, "texts"),
        ("POST", "/", {"inputs": "a"}, 400, "2 models are served"),
        ("POST", "/v1/embeddings", {"input": "a", "model": "one"}, 404, "model 'one'"),
        ("POST", "/v1/embeddings", {"input": "a"}, 400, "no model is named"),
        ("POST", "/models/one/pipeline/fill-mask", {"inputs": "a"}, 404, "does not answer"),
    ],
)
def test_errors_have_one_form(server, method, path, body, status, said):
    found, headers, content = server.send(method, path, body)
    error = json.loads(content)["error"]
    assert (found, error["status"]) == (status, status)
    assert set(error) == {"status", "what", "hint", "message"}
    assert said in error["what"]
    assert error["hint"]
    assert headers["content-type"] == "application/json"


def test_errors_at_addresses_of_text_embeddings_inference_have_its_form(server):
    for path, said in (("/embed", "no models here answer"), ("/models/one/tei/embed", "does not answer embed")):
        status, found = server.post(path, {"inputs": "a"})
        assert (status, found["error_type"], set(found)) == (404, "Validation", {"error", "error_type"})
        assert said in found["error"]


def test_a_body_that_is_not_json_is_refused_by_its_type(server):
    status, _, body = server.send("POST", "/models/one/length", b"a,b", {"content-type": "text/csv"})
    assert status == 415
    assert "text/csv" in json.loads(body)["error"]["what"]


def test_a_body_that_is_too_large_is_not_read():
    with running({"m": counting()}, limits=Limits(body=1000)) as server:
        assert server.post("/models/m/length", {"texts": ["a" * 2000]})[0] == 413
        sock = socket.create_connection(("127.0.0.1", server.port), 5)
        sock.sendall(b"POST /models/m/length HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(3):
            sock.sendall(b"200\r\n" + b"a" * 512 + b"\r\n")
        assert b" 413 " in sock.recv(4096).split(b"\r\n")[0]
        sock.close()
        assert server.post("/models/m/length", {"texts": ["a"]})[0] == 200


def test_too_many_are_told_when_to_ask_again():
    go = threading.Event()

    def held(texts):
        go.wait(10)
        return [len(text) for text in texts]

    with running({"m": counting(held)}, limits=Limits(waiting=2)) as server:
        first = [threading.Thread(target=server.post, args=("/models/m/length", {"texts": ["a"]})) for _ in range(2)]
        for thread in first:
            thread.start()
        until = time.monotonic() + 5
        while server.gateway.metrics.waiting < 2 and time.monotonic() < until:
            time.sleep(0.01)
        status, headers, body = server.send("POST", "/models/m/length", {"texts": ["a"]})
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        assert "2 requests are waiting" in json.loads(body)["error"]["what"]
        go.set()
        for thread in first:
            thread.join(10)
        assert server.post("/models/m/length", {"texts": ["a"]})[0] == 200


def test_an_answer_that_takes_too_long_is_given_up():
    with running({"m": counting(lambda texts: time.sleep(0.4) or [1] * len(texts))}, limits=Limits(seconds=0.1)) as s:
        status, found = s.post("/models/m/length", {"texts": ["a"]})
        assert (status, found["error"]["status"]) == (504, 504)


def test_ready_is_a_round_trip_through_each_model_and_goes_off_and_on():
    go, broken = threading.Event(), threading.Event()

    def held(texts):
        go.wait(10)
        if broken.is_set():
            raise ValueError
        return [len(text) for text in texts]

    limits = Limits(ready=0.3)
    with running({"slow": counting(held), "quick": counting()}, limits=limits) as server:

        def ready():
            time.sleep(1.1)  # what was found stands for a second
            status, found = server.get("/ready")
            return status, found.get("error", {}).get("what", "")

        assert ready() == (503, "slow: no answer within 0.3 s")
        assert server.post("/models/quick/length", {"texts": ["a"]})[0] == 200
        go.set()
        assert ready() == (200, "")
        broken.set()
        assert ready() == (503, "slow: the server failed: ValueError")
        broken.clear()
        assert ready() == (200, "")


def test_a_busy_model_is_ready_until_its_work_takes_longer_than_an_answer_may():
    began, go = threading.Event(), threading.Event()

    def held(texts):
        began.set()
        go.wait(20)
        return [len(text) for text in texts]

    with running({"m": counting(held)}, limits=Limits(ready=0.3, seconds=4.0)) as server:
        asked = threading.Thread(target=server.post, args=("/models/m/length", {"texts": ["long"]}))
        asked.start()
        began.wait(10)
        at = time.monotonic()
        status, found = server.get("/ready")
        assert status == 200 or time.monotonic() - at > 3.5, found
        time.sleep(max(0.0, at + 4.2 - time.monotonic()))
        assert server.get("/ready")[0] == 503
        go.set()
        asked.join(10)


def test_who_hangs_up_leaves_the_queue():
    seen, go = [], threading.Event()

    def held(texts):
        go.wait(10)
        seen.extend(texts)
        return [len(text) for text in texts]

    with running({"m": counting(held)}) as server:
        holder = threading.Thread(target=server.post, args=("/models/m/length", {"texts": ["first"]}))
        holder.start()
        time.sleep(0.1)
        sock = socket.create_connection(("127.0.0.1", server.port), 5)
        body = b'{"texts": ["hangs up"]}'
        head = f"POST /models/m/length HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        sock.sendall(head + body)
        until = time.monotonic() + 5
        while server.gateway.metrics.waiting < 2 and time.monotonic() < until:
            time.sleep(0.01)
        sock.close()
        while server.gateway.metrics.waiting > 1 and time.monotonic() < until:
            time.sleep(0.01)
        go.set()
        holder.join(10)
        assert server.post("/models/m/length", {"texts": ["last"]}) == (200, {"lengths": [4]})
    assert seen == ["first", "last"]


def test_slow_requests_are_cut_off():
    with running({"m": counting()}, limits=Limits(receive=0.3, headers=2000)) as server:
        address, began = ("127.0.0.1", server.port), time.monotonic()
        never, headers, body, long = (socket.create_connection(address, 5) for _ in range(4))
        headers.sendall(b"POST /models/m/length HTTP/1.1\r\nhost: loc")
        body.sendall(b"POST /models/m/length HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        long.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"x: " + b"a" * 4000)
        for sock, status in ((never, b"408"), (headers, b"408"), (body, b"408"), (long, b"431")):
            assert sock.recv(4096).split(b"\r\n")[0].split(b" ")[1] == status
            sock.close()
        assert time.monotonic() - began < 5
        assert server.get("/health")[0] == 200


def connected(server, count, source="127.0.0.1"):
    """So many connections, all known to the server."""
    made = []
    for _ in range(count):
        made.append(socket.create_connection(("127.0.0.1", server.port), 5, (source, 0)))
        made[-1].sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b" 200 " in made[-1].recv(4096)
        time.sleep(0.01)  # the loop's clock counts milliseconds
    return made


BUSY = b'POST /models/m/length HTTP/1.1\r\nhost: localhost\r\ncontent-length: 16\r\n\r\n{"texts": ["a"]}'


@pytest.mark.parametrize("limits", [Limits(connections=3), Limits(per_address=3)])
def test_connections_are_counted_and_who_is_idle_makes_room(limits):
    go = threading.Event()
    with running({"m": counting(lambda texts: go.wait(10) and [1] * len(texts))}, limits=limits) as server:
        first, *held = connected(server, 3)
        assert server.get("/health")[0] == 200
        assert first.recv(4096) == b""  # it had asked longest ago
        first.close()
        held += connected(server, 1)
        for sock in held:
            sock.sendall(BUSY)
        until = time.monotonic() + 5
        while server.gateway.metrics.waiting < 3 and time.monotonic() < until:
            time.sleep(0.01)
        status, found = server.get("/health")
        assert (status, "3 connections" in found["error"]["what"]) == (503, True)
        if limits.per_address == 3:
            for sock in connected(server, 1, "127.0.0.2"):
                sock.close()
        go.set()
        for sock in held:
            assert b" 200 " in sock.recv(4096)
            sock.close()


def test_a_thousand_idle_connections_shut_nobody_out():
    with running({"m": counting()}) as server:
        held = [socket.create_connection(("127.0.0.1", server.port), 5) for _ in range(1030)]
        for _ in range(20):
            assert server.post("/models/m/length", {"texts": ["a"]})[0] == 200
        for sock in held:
            sock.close()


@pytest.mark.parametrize("more", [b"", b"connection: close\r\n"])
def test_an_answer_that_nobody_takes_closes_its_connection(more):
    large = 16 << 20
    with running({"m": counting(lambda texts: ["a" * large])}, limits=Limits(send=0.3)) as server:
        with socket.create_connection(("127.0.0.1", server.port), 5) as sock:
            sock.sendall(BUSY.replace(b"host:", more + b"host:"))
            time.sleep(1.5)
            got = 0
            try:
                while part := sock.recv(1 << 20):
                    got += len(part)
            except ConnectionResetError:
                pass
            assert 0 < got < large
        slow = socket.create_connection(("127.0.0.1", server.port), 5)
        slow.sendall(BUSY)
        got = 0
        while got < large:  # for longer than that, but some of it is taken
            got += len(slow.recv(1 << 20))
            time.sleep(0.05)
        slow.close()


def test_keys_open_what_they_lock(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# for the tests\n{KEY}\nanother-key-of-some-length\n")
    with running({"m": counting()}, keys=Keys(path)) as server:
        for path in ("/models", "/metrics", "/openapi.json", "/models/m"):
            assert server.get(path)[0] == 401
        assert server.post("/models/m/length", {"texts": ["a"]})[0] == 401
        assert server.post("/models/m/length", {"texts": ["a"]}, Authorization=f"Bearer {KEY}x")[0] == 401
        assert server.post("/models/m/length", {"texts": ["a"]}, Authorization=f"Basic {KEY}")[0] == 401
        assert server.post("/models/m/length", {"texts": ["a"]}, Authorization=f"Bearer {KEY}")[0] == 200
        assert server.get("/health")[0] == 200
        assert server.send("GET", "/")[0] == 200


def test_keys_are_read_from_files_of_any_editor(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(f"\ufeff{KEY}\r\n  # of the ward\r\n".encode())
    keys = Keys(path)
    keys.check(f"Bearer {KEY}".encode())
    with pytest.raises(Refusal):
        keys.check(b"Bearer # of the ward")


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True)])
def test_key_files_that_everyone_may_read_are_warned_of(tmp_path, mode, warned):
    path, said = tmp_path / "keys", []
    path.write_text(f"{KEY}\n")
    path.chmod(mode)
    warn("0.0.0.0", path, said.append)
    assert said == [f"warning: {path} can be read by everyone on this machine: chmod 600 {path}"] * warned


@pytest.mark.parametrize(("content", "said"), [("", "no key"), ("short\n", ":1: a key of fewer"), (None, "No such")])
def test_key_files_that_lock_nothing_are_refused(tmp_path, content, said):
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=said):
        Keys(path)


def test_other_pages_may_not_ask_unless_named():
    body = {"texts": ["a"]}
    with running({"m": counting()}, cors=["https://friend.example"]) as server:
        assert server.post("/models/m/length", body, Origin="https://other.example")[0] == 403
        assert server.post("/models/m/length", body, Origin="null")[0] == 403
        assert server.post("/models/m/length", body, Host="attacker.example")[0] == 403
        status, headers, _ = server.send("POST", "/models/m/length", body, {"Origin": "https://friend.example"})
        assert (status, headers["access-control-allow-origin"]) == (200, "https://friend.example")
        status, headers, _ = server.send("OPTIONS", "/models/m/length", None, {"Origin": "https://friend.example"})
        assert (status, headers["access-control-allow-headers"]) == (204, "authorization, content-type")
        own = f"127.0.0.1:{server.port}"
        status, headers, _ = server.send("POST", "/models/m/length", body, {"Origin": f"http://{own}", "Host": own})
        assert status == 200
        assert "access-control-allow-origin" not in headers


def test_behind_a_proxy_that_was_named():
    body, seen = {"texts": ["a"]}, {"Host": "ward.example", "Origin": "https://ward.example"}
    with running({"m": counting()}, cors=["https://ward.example"]) as server:
        assert server.post("/models/m/length", body, **seen)[0] == 200
        assert server.post("/models/m/length", body, **{**seen, "Host": "ward.example:443"})[0] == 200
        assert server.post("/models/m/length", body, **{**seen, "Host": "other.example"})[0] == 403
    with running({"m": counting()}) as server:
        status, found = server.post("/models/m/length", body, **seen)
        assert (status, "Behind a proxy" in found["error"]["hint"]) == (403, True)


@pytest.mark.parametrize("own", ["127.0.0.1", "0.0.0.0", "box.ward.example"])
def test_a_server_is_asked_under_its_own_names(own):
    names = {"localhost": 200, "127.0.0.1:80": 200, "[::1]:80": 200, "192.0.2.7": 200, "Ward.example": 200}
    names |= {
        "attacker.example": 403,
        "192.0.2.7.attacker.example": 403,
        "box.ward.example": 200 if own[0] == "b" else 403,
    }
    with running({"m": counting()}, cors=["https://ward.example:444"]) as server:
        server.gateway.host = own
        assert {name: server.get("/health", Host=name)[0] for name in names} == names


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (b"host: localhost\r\n", 400),
        (b"x: " + b"a" * 40_000 + b"\r\n", 431),
        (b"".join(b"x%d: %s\r\n" % (n, b"a" * 500) for n in range(80)), 431),
        (b"x: " + b"a" * 30_000 + b"\r\n", 200),
    ],
)
def test_a_head_that_is_whole_at_once_has_limits_too(server, more, status):
    with socket.create_connection(("127.0.0.1", server.port), 5) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + more + b"\r\n")
        assert sock.recv(4096).split(b" ")[1] == str(status).encode()


@pytest.mark.parametrize("path", ["/", "/docs", "/page/page.js", "/page/shared.js", "/page/text.js"])
def test_pages_ask_below_their_own_address(server, path):
    """So that a proxy may serve them under any prefix."""
    found = server.send("GET", path)[2].decode()
    assert re.findall(r"""(?:href=|src=|ask\(|fetch\()["'`]/[^>)]*""", found) == []


@pytest.mark.parametrize("origin", ["ward.example", "https://ward.example/", "https://ward.example/unmask", "null"])
def test_what_is_no_origin_is_refused(origin):
    with pytest.raises(UserError, match=f"{origin!r} is no origin"):
        check_origins([origin])
    check_origins(["https://ward.example", "http://localhost:8080", "*"])


@pytest.mark.parametrize(
    ("host", "port", "said"), [("a..b", 0, "a..b:0"), ("127.0.0.1", 70000, "no such port"), ("::1", 70000, r"\[::1\]")]
)
def test_addresses_that_are_none(host, port, said):
    with pytest.raises(UserError, match=said):
        listen(host, port)


def test_models_are_named_by_their_folders_or_by_hand(tmp_path):
    (tmp_path / "a").mkdir()
    assert named([f"{tmp_path}/a", f"b={tmp_path}/a"]) == {"a": f"{tmp_path}/a", "b": f"{tmp_path}/a"}
    assert named(["somebody/some-model"]) == {"some-model": "somebody/some-model"}
    with pytest.raises(UserError, match="two models named 'a'"):
        named([f"{tmp_path}/a", f"a={tmp_path}/b"])
    with pytest.raises(UserError, match="served as 'x y'"):
        named([f"x y={tmp_path}/a"])


@pytest.mark.skipif(sys.platform != "linux", reason="a filter of Linux")
def test_an_ending_server_begins_no_handshake_and_keeps_those_that_it_has():
    with listen("127.0.0.1", 0) as door:
        door.listen(8)
        door.settimeout(5)
        with socket.create_connection(door.getsockname(), timeout=5) as early:
            if not turn_away_newcomers(door):
                pytest.skip("this kernel takes no filters")
            with pytest.raises(TimeoutError):
                socket.create_connection(door.getsockname(), timeout=0.2)
            came, _ = door.accept()
            with came:
                early.sendall(b"asked")
                assert came.recv(9) == b"asked"
                came.sendall(b"answered")
                assert early.recv(9) == b"answered"
        door.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody else has come in
            door.accept()


class Late:
    """A listening socket where who has come is seen `LATE` seconds later, as if the handshake ended only then."""

    def __init__(self, door):
        self.door, self.seen_from = door, math.inf

    def accept(self):
        if time.monotonic() < self.seen_from:
            raise BlockingIOError
        return self.door.accept()

    def __getattr__(self, name):
        return getattr(self.door, name)


LATE = 0.08


@pytest.mark.skipif(sys.platform != "linux", reason="a filter of Linux")
def test_who_has_knocked_when_the_server_ends_is_answered(monkeypatch):
    begin, filtered, clients = server_module.Server.__init__, turn_away_newcomers, []

    def with_a_late_door(self, gateway, sock):
        begin(self, gateway, sock)
        self._door = Late(self._door)

    def somebody_knocks(door):
        clients.append(socket.create_connection(door.getsockname(), timeout=5))
        clients[0].sendall(b"GET /nowhere HTTP/1.1\r\nHost: here\r\n\r\n")
        door.seen_from = time.monotonic() + LATE
        return filtered(door.door)

    monkeypatch.setattr(server_module.Server, "__init__", with_a_late_door)
    monkeypatch.setattr(server_module, "turn_away_newcomers", somebody_knocks)
    with listen("127.0.0.1", 0) as door:
        if not filtered(door):
            pytest.skip("this kernel takes no filters")
    with running({}):
        pass
    (client,) = clients
    with client:
        assert client.recv(12).startswith(b"HTTP/1.1 ")
