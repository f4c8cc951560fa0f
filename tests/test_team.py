"""Threads that share a piece of work give what one thread gives, in order, and hand errors on."""

import threading
import time

import pytest
import torch

from kgexp.team import Team, cut


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_parts_come_back_in_order_and_more_than_one_thread_works(threads):
    met = threading.Barrier(threads, timeout=20)

    def work(part: int) -> tuple[int, int]:
        if part < threads:
            met.wait()  # passes only if as many threads are here at once
        return part * part, torch.get_num_threads()

    before = torch.get_num_threads()
    team = Team(threads)
    for _ in range(2):
        results = team.map(work, range(7))
        assert [result for result, _ in results] == [part * part for part in range(7)]
        assert threads == 1 or {number for _, number in results} == {1}
        met.reset()
    assert torch.get_num_threads() == before
    assert team.map(work, range(0)) == []


def test_autograd_is_off_where_it_is_off_for_the_caller_and_works_where_it_is_on():
    team = Team(2)

    def slope(power: int) -> float:
        x = torch.tensor(3.0, requires_grad=True)
        y = x**power
        return torch.autograd.grad(y, x)[0].item() if y.requires_grad else 0.0

    assert team.map(slope, [1, 2, 3]) == [1.0, 6.0, 27.0]
    with torch.no_grad():
        assert team.map(slope, [1, 2, 3]) == [0.0] * 3


def test_the_first_error_in_the_order_of_parts_is_raised_when_nothing_is_under_way():
    team, under_way = Team(2), set()
    met = threading.Barrier(2, timeout=20)

    def work(part: int) -> None:
        under_way.add(part)
        met.wait()
        time.sleep(0.05 * part)
        under_way.discard(part)
        raise ValueError(f"part {part}")

    with pytest.raises(ValueError, match="part 0"):
        team.map(work, [0, 1, 2, 3])
    assert not under_way
    assert team.map(abs, [-1, -2]) == [1, 2]


@pytest.mark.parametrize(("length", "at_most", "sizes"), [(0, 3, []), (7, 3, [2, 2, 3]), (6, 3, [3, 3]), (2, 9, [2])])
def test_cuts_are_nearly_equal(length, at_most, sizes):
    parts = cut(length, at_most)
    assert [part.stop - part.start for part in parts] == sizes
    assert [place for part in parts for place in range(part.start, part.stop)] == list(range(length))


def test_threads_end_with_their_team():
    threads = set(Team(3).map(lambda _: (time.sleep(0.01), threading.current_thread())[1], range(30)))
    for thread in threads - {threading.current_thread()}:
        thread.join(20)
        assert not thread.is_alive()
