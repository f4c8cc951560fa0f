"""Steps are prepared in order, the next one while this one is trained."""

import threading

import pytest

from kgexp.train.ahead import Ahead


def test_the_next_step_is_prepared_by_another_thread_meanwhile():
    asked, ready = [], threading.Event()

    def prepare(step):
        asked.append((step, threading.current_thread() is threading.main_thread()))
        if step == 1:
            ready.set()
        return step

    ahead = Ahead(prepare, threaded=True)
    assert ahead(0, following=True) == 0
    assert ready.wait(10)  # nobody has asked for it yet
    assert ahead(1, following=False) == 1
    assert ahead(2, following=False) == 2
    assert asked == [(0, False), (1, False), (2, False)]


def test_without_a_thread_each_is_prepared_when_it_is_asked_for():
    asked = []
    ahead = Ahead(lambda step: asked.append(step) or step, threaded=False)
    assert ahead(4, following=True) == 4
    assert asked == [4]


def test_what_goes_wrong_is_raised_where_the_step_is_asked_for():
    def prepare(step):
        if step == 1:
            raise ValueError("step 1")
        return step

    ahead = Ahead(prepare, threaded=True)
    ahead(0, following=True)
    with pytest.raises(ValueError, match="step 1"):
        ahead(1, following=True)


def test_steps_go_on_one_by_one():
    ahead = Ahead(lambda step: step, threaded=True)
    ahead(0, following=True)
    with pytest.raises(RuntimeError, match="step 1 was prepared, not 5"):
        ahead(5, following=True)


def test_the_thread_ends_with_the_context():
    before = threading.active_count()
    with Ahead(lambda step: step, threaded=True) as ahead:
        ahead(0, following=True)  # the next step is wanted by nobody
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
