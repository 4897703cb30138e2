"""Several workers are copies of one process that has loaded the models, where that can be copied."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from packages import write_metadata
from unmask import registry

CODE = """
import json
import os
import threading
import time

from unmask.modality import Modality
from unmask.serving.shapes import Field, Number, Record, Text
from unmask.serving.verbs import Served, Verb, Work

DICE = Modality(name="dice", plural="dice", load="dice:load", serves="dice:serve")


def serve(path, *, limits):
    loaded = os.getpid()
    trained = json.load(open(path + "/unmask.json"))["trained"]
    warmed = []
    if os.environ.get("DICE_THREAD"):
        threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()

    def run(some):
        time.sleep(some[0])
        return [{"loaded": loaded, "trained": trained, "warmed": list(warmed), "here": os.getpid()}]

    def prepare(body):
        return Work(items=[body["seconds"]], slots=[1], run=run, finish=lambda found: found[0])

    request = Record(seconds=Field(Number(), "To wait.", 0), model=Field(Text(), "Which model.", ""))
    verb = Verb(about="Who answers.", request=request, prepare=prepare)
    dialects = {"openai/embeddings": verb}
    warm = lambda: warmed.append(os.getpid())  # noqa: E731
    return Served(kind="dice", about={}, verbs={"who": verb}, dialects=dialects, warm=warm)
"""


@pytest.fixture
def dice(tmp_path, start):
    """Starts servers of a model that needs no torch; with `thread`, loading starts a thread."""
    (tmp_path / "dice.py").write_text(CODE)
    write_metadata(tmp_path, "dice", {registry.MODALITIES.group: {"dice": "dice:DICE"}})
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "unmask.json").write_text(json.dumps({"kind": "dice", "trained": 1}))

    def started(workers, *options, thread=False):
        options = options if workers is None else ("--workers", workers, *options)
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        more = {"DICE_THREAD": "1"} if thread else {}
        return start(tmp_path / "m", *options, environment={"PYTHONPATH": path, **more})

    return started


def all_of(server, count):
    """What each of so many workers says of itself."""
    found, until = {}, time.monotonic() + 20
    while len(found) < count and time.monotonic() < until:
        with ThreadPoolExecutor(count) as pool:
            for status, answer in pool.map(lambda _: server.post("models/m/who", {"seconds": 0.05}), range(count)):
                if status == 200:
                    found[answer["here"]] = answer
    assert len(found) == count
    return list(found.values())


def test_workers_are_copies_of_one_that_has_loaded(dice):
    server = dice(3)
    found = all_of(server, 3)
    (loaded,) = {one["loaded"] for one in found}
    assert all(one["warmed"] == [loaded] for one in found)
    assert loaded not in {one["here"] for one in found}
    assert {one.pid for one in server.workers()} == {loaded, *(one["here"] for one in found)}
    assert server.end() == (0, "")


def test_a_copy_that_is_killed_is_replaced_and_so_is_what_is_copied(dice):
    server = dice(2)
    first = all_of(server, 2)
    psutil.Process(first[0]["here"]).kill()
    until = time.monotonic() + 20
    while b"restarts_total 1" not in server.get("metrics")[1] and time.monotonic() < until:
        time.sleep(0.01)
    found = all_of(server, 2)
    assert {one["loaded"] for one in found} == {first[0]["loaded"]}
    assert first[0]["here"] not in {one["here"] for one in found}
    psutil.Process(first[0]["loaded"]).kill()
    psutil.Process(found[0]["here"]).kill()
    assert server.post("models/m/who", {})[0] in (200, 503)
    until = time.monotonic() + 20
    while len({one["loaded"] for one in all_of(server, 2)}) == 1 and time.monotonic() < until:
        time.sleep(0.05)
    again = {one["loaded"] for one in all_of(server, 2)}
    assert len(again) == 2
    assert first[0]["loaded"] in again
    assert server.end() == (0, "")


@pytest.mark.parametrize("thread", [False, True])
def test_a_folder_that_was_replaced_is_loaded_by_no_process(dice, tmp_path, thread):
    server = dice(2, thread=thread)
    first = all_of(server, 2)
    (tmp_path / "m" / "unmask.json").write_text(json.dumps({"kind": "dice", "trained": 2}))
    for pid in {first[0]["loaded"], first[0]["here"]}:
        psutil.Process(pid).kill()
    until = time.monotonic() + 3
    while time.monotonic() < until:
        status, answer = server.post("models/m/who", {})
        assert (status, answer["trained"]) == (200, 1)
    assert server.get("ready")[0] == 200
    psutil.Process(first[1]["here"]).kill()
    until = time.monotonic() + 20
    said = "m: its folder was replaced since the server began"
    while said not in str(server.post("models/m/who", {})) and time.monotonic() < until:
        time.sleep(0.02)
    status, answer = server.post("models/m/who", {})
    assert (status, said in answer["error"]["what"]) == (503, True)
    code, said = server.end()
    assert code == 0
    assert 1 <= said.count("its folder was replaced") <= 2  # once per process


def test_requests_of_a_process_that_died_are_answered_by_another(dice):
    server = dice(2)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(server.post, "models/m/who", {"seconds": 0.5}) for _ in range(8)]
        time.sleep(0.3)
        copies = [one for one in server.workers() if one.ppid() != server.process.pid]
        copies[0].kill()
        found = [one.result() for one in answers]
    assert [status for status, _ in found] == [200] * 8
    assert copies[0].pid not in {answer["here"] for _, answer in found}
    assert server.end() == (0, "")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_process_that_is_stuck_is_replaced(dice, workers):
    server = dice(workers, "--seconds", 1)
    with ThreadPoolExecutor(2) as pool:  # each goes to another process
        assert [s for s, _ in pool.map(lambda _: server.post("models/m/who", {"seconds": 600}), range(2))] == [504] * 2
    until = time.monotonic() + 20
    while (status := server.post("models/m/who", {})[0]) != 200 and time.monotonic() < until:
        time.sleep(0.05)
    assert status == 200
    assert server.end() == (0, "")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_process_that_reads_nothing_holds_up_no_other_request(dice, workers):
    server = dice(workers)
    stopped = psutil.Process(all_of(server, workers)[0]["here"])
    stopped.suspend()
    try:
        with ThreadPoolExecutor(4) as pool:
            large = {"seconds": 0} | {" " * 8_000_000: 0}
            sent = [pool.submit(server.post, "models/m/who", large) for _ in range(2 * workers)]
            time.sleep(0.5)
            began = time.monotonic()
            assert server.get("health")[0] == 200
            assert time.monotonic() - began < 2
            stopped.resume()
            assert [one.result()[0] for one in sent] == [400] * len(sent)  # no such key
    finally:
        stopped.resume()
    assert server.end() == (0, "")


def test_a_server_ends_though_a_model_is_stuck(dice):
    server = dice(0, "--seconds", 1)
    assert server.post("models/m/who", {"seconds": 600})[0] == 504
    assert server.end() == (0, "")


def test_a_process_with_threads_is_not_copied(dice):
    server = dice(2, thread=True)
    found = all_of(server, 2)
    assert all(one["loaded"] == one["here"] for one in found)
    assert {one.pid for one in server.workers()} == {one["here"] for one in found}
    assert server.end() == (0, "")


def who(server, model):
    """The processes that answer for a model, of a dozen requests at once: by its address, and named in the body."""
    paths = [(f"models/{model}/who", {})] * 6 + [("v1/embeddings", {"seconds": 0.02, "model": model})] * 6
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda one: server.post(*one), paths))
    assert {status for status, _ in found} == {200}
    return {answer["here"] for _, answer in found}


@pytest.mark.parametrize("thread", [False, True])
def test_each_of_several_models_has_a_process_of_its_own(dice, tmp_path, thread):
    server = dice(None, f"n={tmp_path / 'm'}", thread=thread)
    first, second = who(server, "m"), who(server, "n")
    assert (len(first), len(second), len(server.workers())) == (1, 1, 2)
    assert first != second
    assert server.get("ready")[0] == 200
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(server.post, "models/m/who", {"seconds": 0.5})
        time.sleep(0.2)
        psutil.Process(*first).kill()
        assert who(server, "n") == second  # meanwhile
        assert server.post("models/m/who", {})[0] == 200  # waits as well
        status, answer = slow.result()  # was held until there was a process again
    assert (status, {answer["here"]} & (first | second)) == (200, set())
    assert who(server, "m") == {answer["here"]}
    assert server.end() == (0, "")


def test_a_body_that_names_no_model_that_is_here(dice, tmp_path):
    for workers in (None, 0, 1):
        server = dice(workers, f"n={tmp_path / 'm'}")
        assert server.post("v1/embeddings", {"model": "o"})[0] == 404
        assert server.post("v1/embeddings", {"seconds": 0})[0] == 400
        assert server.end() == (0, "")
