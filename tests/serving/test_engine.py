"""Requests share batches up to a budget, and each gets its own answer, in order; one's fault is not another's."""

from __future__ import annotations

import dataclasses
import json
import random
import sys
import threading
import time

import pytest
import torch

from running_server import counting
from storm import as_json, values
from unmask.serving import engine, models
from unmask.serving.engine import ModelRequest, ServingEngine, threads_of
from unmask.serving.limits import Limits
from unmask.serving.metrics import Metrics


class Waiting:
    """An engine whose model waits to be let go, and the answers so far."""

    def __init__(self, run=None, limits=Limits(), batch_slots=100, threads=1):
        self.batches, self.answers, self.go = [], {}, threading.Event()
        self.all_in = threading.Condition()

        def held(texts):
            self.go.wait(10)
            self.batches.append(list(texts))
            return run(texts) if run else [len(text) for text in texts]

        served = {"m": counting(held, batch_slots=batch_slots)}
        self.metrics = Metrics()
        self.engine = ServingEngine(served, self.deliver, limits, self.metrics, threads=threads)

    def deliver(self, done):
        with self.all_in:
            self.answers |= {ask.tag: (reply.status, json.loads(reply.body)) for ask, reply in done}
            self.all_in.notify()

    def ask(self, tag, texts, seconds=10.0):
        ask = ModelRequest(
            "m", "length", json.dumps({"texts": texts}).encode(), "", time.monotonic() + seconds, tag=tag
        )
        self.engine.submit(ask)
        return ask

    def ready(self, count):
        """Wait until so many requests were made ready."""
        until = time.monotonic() + 5
        lane = self.engine._lanes["m"]
        while time.monotonic() < until and len(lane._jobs) < count:
            time.sleep(0.005)

    def found(self, count):
        with self.all_in:
            self.all_in.wait_for(lambda: len(self.answers) >= count, 10)
        return self.answers


def first_held(waiting):
    """The model holds the request 'first'; what comes now waits."""
    waiting.ask("first", ["x"])
    time.sleep(0.05)


def test_what_waits_shares_a_batch_and_gets_its_own_answers():
    w = Waiting()
    first_held(w)
    for n in range(5):
        w.ask(n, ["a" * (n + 1), "b" * 7])
    w.ready(5)
    w.go.set()
    assert {n: w.found(6)[n] for n in range(5)} == {n: (200, {"lengths": [n + 1, 7]}) for n in range(5)}
    assert [len(batch) for batch in w.batches] == [1, 10]
    w.engine.close()


def test_a_batch_keeps_to_its_budget_and_long_requests_are_cut():
    w = Waiting(batch_slots=10)
    first_held(w)
    w.ask("long", ["aaaa"] * 6)
    w.ask("short", ["bb"])
    w.ready(2)
    w.go.set()
    found = w.found(3)
    assert found["long"] == (200, {"lengths": [4] * 6})
    assert found["short"] == (200, {"lengths": [2]})
    assert all(sum(map(len, batch)) <= 10 for batch in w.batches)
    assert w.batches[1] == ["aaaa", "aaaa", "bb"]
    w.engine.close()


def test_an_item_above_the_budget_is_taken_alone():
    w = Waiting(batch_slots=3)
    w.go.set()
    w.ask(0, ["aaaaaaaa", "b"])
    assert w.found(1)[0] == (200, {"lengths": [8, 1]})
    assert w.batches == [["aaaaaaaa"], ["b"]]
    w.engine.close()


def test_the_fault_of_one_request_is_its_own():
    def run(texts):
        if "bad" in texts:
            raise ValueError("a secret: bad")
        return [len(text) for text in texts]

    w = Waiting(run)
    first_held(w)
    for tag, text in (("a", "aa"), ("b", "bad"), ("c", "ccc")):
        w.ask(tag, [text])
    w.ready(3)
    w.go.set()
    found = w.found(4)
    assert (found["a"][0], found["b"][0], found["c"][0]) == (200, 500, 200)
    assert "secret" not in json.dumps(found["b"][1])
    w.engine.close()


class Panic(BaseException):
    """As a library in Rust raises it: no Exception."""


def test_a_panic_ends_one_request_and_no_thread():
    def run(texts):
        if "bad" in texts:
            raise Panic
        return [len(text) for text in texts]

    w = Waiting(run)
    w.go.set()
    real, w.engine.served["m"].verbs["length"] = w.engine.served["m"].verbs["length"], None
    w.ask("unread", ["x"])  # while it is made ready: a verb that is none
    assert w.found(1)["unread"][0] == 500

    def prepare(body):
        if "panic" in body["texts"]:
            raise Panic
        return real.prepare(body)

    w.engine.served["m"].verbs["length"] = dataclasses.replace(real, prepare=prepare)
    for tag, text in (("a", "panic"), ("b", "bad"), ("c", "ccc")):
        w.ask(tag, [text])
    found = w.found(4)
    assert (found["a"][0], found["b"][0], found["c"]) == (500, 500, (200, {"lengths": [3]}))
    w.engine.close()


class Closed:
    """A log whose reader has gone."""

    def write(self, text):
        raise BrokenPipeError

    flush = close = write


def test_a_log_that_nobody_reads_ends_no_thread(monkeypatch):
    def run(texts):
        if "bad" in texts:
            raise ValueError
        return [len(text) for text in texts]

    w = Waiting(run)
    w.go.set()
    monkeypatch.setattr("sys.stderr", Closed())
    for tag, text in (("a", "bad"), ("b", "bb")):
        w.ask(tag, [text])
    found = w.found(2)
    assert (found["a"][0], found["b"]) == (500, (200, {"lengths": [2]}))
    w.engine.close()


def test_what_is_sent_is_not_in_the_log(capsys):
    def run(texts):
        raise ValueError(f"cannot do {texts}")

    w = Waiting(run)
    w.go.set()
    w.ask(0, ["a very private text"])
    assert w.found(1)[0][0] == 500
    said = capsys.readouterr()
    assert "ValueError" in said.err
    assert "private" not in said.err + said.out
    w.engine.close()


def test_who_has_gone_leaves_the_queue_and_who_is_late_is_told():
    w = Waiting()
    first_held(w)
    gone = w.ask("gone", ["aa"])
    w.ask("late", ["bb"], seconds=0.05)
    w.ask("there", ["cc"])
    w.ready(3)
    w.engine.cancel(gone)
    time.sleep(0.1)
    w.go.set()
    found = w.found(3)
    assert (found["late"][0], found["there"][0]) == (504, 200)
    assert "gone" not in found
    assert w.batches[1:] == [["cc"]]
    w.engine.close()


def test_closing_answers_what_was_taken():
    w = Waiting()
    for n in range(20):
        w.ask(n, ["a"] * n)
    threading.Timer(0.1, w.go.set).start()
    w.engine.close()
    assert {n: w.answers[n][0] for n in range(20)} == dict.fromkeys(range(20), 200)


def test_several_threads_answer_in_order_too():
    w = Waiting(batch_slots=8, threads=3)
    w.go.set()
    for n in range(40):
        w.ask(n, ["a" * (1 + (n + k) % 5) for k in range(9)])
    found = w.found(40)
    assert all(found[n][1]["lengths"] == [1 + (n + k) % 5 for k in range(9)] for n in range(40))
    w.engine.close()


def test_the_thread_that_loads_ends_with_that(monkeypatch):
    """And with it the threads of OpenMP that it began."""
    loaded = []
    monkeypatch.setattr(models, "serve", lambda *_, **__: loaded.append(threading.current_thread()) or counting())
    assert list(models.load_served({"m": "folder"}, Limits(), device="auto", precision="auto")) == ["m"]
    assert loaded[0] is not threading.current_thread()
    assert not loaded[0].is_alive()


def test_what_comes_alone_has_more_cores(monkeypatch):
    monkeypatch.setattr(engine, "cores_alone", lambda served: 2)
    found = []

    def run(texts):
        found.append((threading.current_thread().name, torch.get_num_threads()))
        if "held" in texts:
            go.wait(10)
        return [len(text) for text in texts]

    def when_free(number, text):
        while any(w.engine._lanes["m"]._busy):  # an answer is there a moment before its thread is free
            time.sleep(0.005)
        w.ask(number, [text])

    w, go = Waiting(run, threads=3), threading.Event()
    w.go.set()
    for number in range(5):
        when_free(number, "alone")
        w.found(number + 1)
    when_free("held", "held")
    while len(found) < 6:
        time.sleep(0.005)
    w.ask("beside", ["beside"])
    w.found(6)
    go.set()
    w.found(7)
    when_free("last", "alone")
    w.found(8)
    w.engine.close()
    (beside,) = [one for one in found if one[0] != "m-0"]
    assert beside[1] == 1
    assert [one for one in found if one[0] == "m-0"] == [("m-0", 2)] * 7


def test_an_only_thread_has_the_cores_that_torch_was_given():
    """Whatever another thread has set since: torch makes that the default of threads to come."""
    given, found = torch.get_num_threads(), []
    w = Waiting(lambda texts: found.append(torch.get_num_threads()) or [0])
    w.go.set()
    other = threading.Thread(target=torch.set_num_threads, args=(given + 1,))
    other.start()
    other.join()
    w.ask(0, ["a"])
    w.found(1)
    w.engine.close()
    assert found == [given]


@pytest.mark.parametrize(
    ("kind", "precision", "amx", "expected"),
    [
        ("text", "bf16", False, 2),
        ("text", "int8", False, 2),
        ("text", "bf16", True, 1),
        ("text", "fp32", False, 1),
        ("table", "fp32", False, 1),
    ],
)
def test_two_cores_where_a_text_gains_by_them(kind, precision, amx, expected, monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    monkeypatch.setattr("unmask.training.precision.bf16_features", lambda: ["AMX"] if amx else ["AVX512-bf16"])
    served = dataclasses.replace(counting(), kind=kind, about={"device": "cpu", "precision": precision})
    assert engine.cores_alone(served) == expected


@pytest.mark.parametrize(
    ("kind", "precision", "expected"),
    [("text", "bf16", 3), ("text", "int8", 3), ("text", "fp32", 1), ("images", "bf16", 1)],
)
def test_short_products_have_a_core_each(kind, precision, expected, monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    served = dataclasses.replace(counting(), kind=kind, about={"device": "cpu", "precision": precision})
    assert threads_of(served) == expected


def test_a_request_that_is_long_to_read_holds_up_no_other_model():
    go, found, all_in = threading.Event(), {}, threading.Event()
    slow, quick = counting(), counting()
    real = slow.verbs["length"]
    held = dataclasses.replace(real, prepare=lambda body: go.wait(20) and real.prepare(body))
    slow = dataclasses.replace(slow, verbs={"length": held}, dialects={"openai/embeddings": held})
    quick = dataclasses.replace(quick, dialects={"openai/embeddings": quick.verbs["length"]})

    def deliver(done):
        found.update({ask.tag: reply.status for ask, reply in done})
        if len(found) in (2, 3):
            all_in.set()

    engine = ServingEngine({"slow": slow, "quick": quick}, deliver, Limits(), Metrics())
    for tag, model, body in (
        ("long", "slow", {"texts": ["a"]}),
        ("verb", "quick", {"texts": ["a"]}),
        ("named", "", {"texts": ["a"], "model": "quick"}),
    ):
        action = "length" if model else "openai/embeddings"
        engine.submit(ModelRequest(model, action, json.dumps(body).encode(), "", time.monotonic() + 20, tag=tag))
    assert all_in.wait(5)
    assert found == {"verb": 200, "named": 400}  # the shape has no key `model`
    go.set()
    engine.close()
    assert found["long"] == 200


def test_threads_of_one_model_give_way_to_those_of_others():
    before = sys.getswitchinterval()
    Waiting().engine.close()
    try:
        assert sys.getswitchinterval() <= 0.001
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "not JSON"),
        (b"", 400, "not JSON"),
        (b"[" * 799, 400, "not JSON"),
        (b"[" * 100_000, 400, "more than 800 keys and values"),
        (b'{"texts": ["a"]}' + b"\xff", 400, "not JSON"),
        (b'{"texts": [NaN]}', 400, "not JSON"),
        (b'{"texts": 3}', 400, "texts: a number"),
        (json.dumps({"texts": ["a" * 300]}).encode(), 400, "300 slots"),
    ],
)
def test_bodies_that_are_wrong_are_said_to_be(body, status, said):
    w = Waiting(limits=Limits(slots=200))
    w.engine.submit(ModelRequest("m", "length", body, "", time.monotonic() + 5, tag=0))
    found = w.found(1)[0]
    assert found[0] == status
    assert said in found[1]["error"]["what"]
    w.engine.close()


def size(value):
    """Keys and values within a JSON value, and 1 for each object or list that is empty."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return (len(value) * (1 + isinstance(value, dict)) or 1) + sum(map(size, inner))
    return 0


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_keys_and_values_are_counted_as_json_has_them(piece, monkeypatch):
    monkeypatch.setattr(engine, "PIECE", piece)
    rng = random.Random(0)
    odd = ['"', "\\", '\\"', ",[{:", ']}"', "\\\\\\", 'é"']
    for _ in range(100):
        value = [values(rng), {"".join(rng.choices(odd, k=3)): "".join(rng.choices(odd, k=rng.randrange(9)))}]
        body = as_json(value)
        assert engine.counted(body) == engine.counted(json.dumps(value, indent=1).encode()) == size(value)


def joined(each, count):
    return lambda: b'{"texts":[' + b",".join([each] * count) + b"]}"


@pytest.mark.parametrize(
    "make",
    [
        lambda: b"{" + b",".join(b'"k%d":0' % n for n in range(1_000_000)) + b"}",
        joined(b"[]", 5_000_000),
        joined(b"[1]", 4_000_000),
        joined(b'{"a":1}', 2_000_000),
        joined(b"1.5", 4_000_000),
        joined(b'""', 5_000_000),
        lambda: b"[" * (16 << 20),
        lambda: b'{"a":' * 3_000_000,
    ],
)
def test_a_body_of_millions_of_values_is_refused_before_it_is_read(make, monkeypatch):
    read, body = [], make()
    monkeypatch.setattr(engine.orjson, "loads", lambda body: read.append(body) or {})
    w = Waiting()
    began = time.process_time()
    w.engine.submit(ModelRequest("m", "length", body, "", time.monotonic() + 20, tag=0))
    status, answer = w.found(1)[0]
    assert time.process_time() - began < 0.5
    assert (status, read) == (400, [])
    assert "more than 1,048,576 keys and values" in answer["error"]["what"]
    w.engine.close()


def test_a_long_text_of_commas_and_brackets_is_one_value():
    w = Waiting(limits=Limits(slots=200))
    text = r'{"texts": ["' + r"[{,:\\\"" * 1000 + '"]}'
    w.engine.submit(ModelRequest("m", "length", text.encode(), "", time.monotonic() + 5, tag=0))
    assert "slots" in w.found(1)[0][1]["error"]["what"]
    w.engine.close()
