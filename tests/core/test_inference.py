"""Passes spread over cores: every item once, on one thread each, errors passed on, settings put back."""

import threading
import time

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from unmask.kernels.threads import on_cores, one_core


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_every_item_is_worked_on_once_at_rest_and_on_one_thread():
    seen, meet = {}, threading.Barrier(3, timeout=30)

    def work(item: int) -> None:
        if item < 3:
            meet.wait()  # the first three are worked on at a time
        assert item not in seen
        seen[item] = (torch.get_num_threads(), torch.is_inference_mode_enabled())

    on_cores(work, range(20))
    assert seen == dict.fromkeys(range(20), (1, True))
    assert torch.get_num_threads() == 3
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [3]


@pytest.mark.usefixtures("three_threads")
def test_an_error_stops_the_work_and_reaches_the_caller():
    done = []

    def work(item: int) -> None:
        if item == 5:
            raise KeyError(item)
        time.sleep(0.001)
        done.append(item)

    with pytest.raises(KeyError):
        on_cores(work, range(5_000))
    assert len(done) < 1_000  # the map alone hands on all that its threads can take before the caller sees the error
    assert torch.get_num_threads() == 3


def blas() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


@pytest.mark.usefixtures("three_threads")
def test_one_core_holds_for_torch_and_numpy_and_is_put_back():
    def work() -> None:
        with one_core() as cores:
            assert (cores, torch.get_num_threads(), set(blas())) == (3, 1, {1})
            with one_core() as cores:
                assert cores == 3
            assert (torch.get_num_threads(), set(blas())) == (1, {1})
            raise KeyError

    with threadpool_limits(3, user_api="blas"):
        with pytest.raises(KeyError):
            work()
        assert (torch.get_num_threads(), set(blas())) == (3, {3})


@pytest.mark.usefixtures("three_threads")
def test_work_on_cores_within_such_work_stays_on_its_core():
    seen = []

    def inner(item: int) -> None:
        seen.append((threading.get_ident(), torch.get_num_threads()))

    def outer(item: int) -> None:
        before = len(seen)
        on_cores(inner, range(4))
        assert {own for own in seen[before:] if own[0] == threading.get_ident()} == {(threading.get_ident(), 1)}
        assert torch.get_num_threads() == 1

    on_cores(outer, range(6))
    assert len(seen) == 24
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_threads_may_leave_one_core_in_any_order():
    entered, left = threading.Event(), threading.Event()
    other = []

    def work() -> None:
        with one_core():
            entered.set()
            left.wait(30)
        other.append(torch.get_num_threads())

    with threadpool_limits(3, user_api="blas"):
        thread = threading.Thread(target=work)
        with one_core():
            thread.start()
            entered.wait(30)
        assert torch.get_num_threads() == 3
        left.set()
        thread.join()
        assert other == [3]
        assert set(blas()) == {3}
