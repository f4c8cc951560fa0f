import threading

import pytest

from kgexp.data.ahead import ahead, in_order


def stream(drawn: list[int], stop: int):
    for i in range(stop):
        drawn.append(i)
        yield i
    raise OSError("the disk is gone")


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_order_and_errors_in_their_turn(threads: int):
    results = in_order(lambda i: 10 // (7 - i), ahead(stream([], 5)), threads)
    assert [next(results) for _ in range(5)] == [1, 1, 2, 2, 3]
    with pytest.raises(OSError, match="disk"):
        next(results)
    results = in_order(lambda i: 10 // (3 - i), stream([], 5), threads)
    assert [next(results) for _ in range(3)] == [3, 5, 10]
    with pytest.raises(ZeroDivisionError):  # the first of both
        next(results)


def test_several_are_worked_on_at_once_but_no_more_than_were_asked_for():
    met, drawn = threading.Barrier(2, timeout=20), []

    def work(i: int) -> int:
        met.wait()  # two threads have to come
        return i

    results = in_order(work, stream(drawn, 10), 2)
    assert next(results) == 0
    assert len(drawn) == 3
    assert [next(results) for _ in range(6)] == list(range(1, 7))
    assert len(drawn) == 9
    met.abort()  # the ninth waits for a tenth
    results.close()
