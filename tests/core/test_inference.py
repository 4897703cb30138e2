"""Passes spread over cores: every item once, on one thread each, errors passed on, settings put back."""

import threading

import pytest
import torch

from unmask.core.inference import on_cores


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
        done.append(item)

    with pytest.raises(KeyError):
        on_cores(work, range(100_000))
    assert len(done) < 99_999
    assert torch.get_num_threads() == 3
