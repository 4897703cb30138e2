"""How far loops are: those within others count as parts of an item, and nobody is told where nobody listens."""

from __future__ import annotations

import threading

from unmask.progress import counted, counts, reporting_to


class Heard(list):
    """What a listener was told."""

    def begin(self):
        self.append("begin")

    def __call__(self, done, *, whole):
        self.append(round(done, 3) if whole else ("count", done))


def test_a_loop_says_its_share_by_size():
    with reporting_to(heard := Heard()):
        assert list(counted(["ab", "c", "d"], 4, len)) == ["ab", "c", "d"]
    assert heard == ["begin", 0.5, 0.75, 1.0]


def test_loops_within_are_parts_of_an_item():
    with reporting_to(heard := Heard()):
        for _ in counted(range(2), 2):
            for _ in counted(range(2), 2):
                pass
        list(counted("a", 1))
    assert heard == ["begin", 0.25, 0.5, 0.5, 0.75, 1.0, 1.0, "begin", 1.0]


def test_what_has_no_end_is_counted():
    with reporting_to(heard := Heard()):
        for _ in counted(iter(["ab", "c"]), size=len):
            list(counted(range(3)))  # no share of it is known
    assert heard == ["begin", 0.0, 0.0, 0.0, ("count", 2), 0.0, 0.0, 0.0, ("count", 3)]


def test_a_loop_that_is_left_early_ends():
    with reporting_to(heard := Heard()):
        for _ in counted(range(4), 4):
            break
        list(counted("a", 1))
    assert heard == ["begin", "begin", 1.0]


def test_other_threads_and_callers_without_a_listener_are_left_alone():
    @counts(len)
    def pairs(items):
        yield from (items[i : i + 2] for i in range(0, len(items), 2))

    assert list(pairs("abc")) == ["ab", "c"]
    with reporting_to(heard := Heard()):
        thread = threading.Thread(target=lambda: list(pairs("abc")))
        thread.start()
        thread.join()
        assert heard == []
        assert list(pairs("abc")) == ["ab", "c"]
    assert heard == ["begin", 0.667, 1.0]
    assert list(counted("ab", 2)) == ["a", "b"]
    assert len(heard) == 3
