import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from kgexp.train.signals import STOP_SIGNALS, StopRequested, StopSignal, strongest


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """The handlers of a fresh Python, whatever the test runner was started with."""
    before = {signum: signal.getsignal(signum) for signum in STOP_SIGNALS}
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def send(signum: int) -> None:
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize("signum", STOP_SIGNALS)
def test_a_signal_sets_the_flag_and_nothing_else(signum: signal.Signals) -> None:
    with StopSignal() as stop:
        assert stop.requested is None
        send(signum)
        assert stop.requested is signum


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR2])
def test_finish_exits_as_shells_have_it(signum: signal.Signals) -> None:
    with StopSignal() as stop:
        send(signum)
        with pytest.raises(SystemExit) as end:
            stop.finish()
    assert end.value.code == 128 + signum


def test_finish_after_an_interrupt_is_an_interrupt() -> None:
    with StopSignal() as stop:
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            stop.finish()


def test_finish_without_a_signal_returns() -> None:
    with StopSignal() as stop:
        stop.finish()
    assert stop.requested is None


def test_second_interrupt_raises_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), StopSignal() as stop:
        send(signal.SIGINT)
        assert stop.requested is signal.SIGINT
        send(signal.SIGINT)
        pytest.fail("the second interrupt was only noted")


def test_second_interrupt_raises_whatever_else_was_requested() -> None:
    with pytest.raises(KeyboardInterrupt), StopSignal() as stop:
        send(signal.SIGTERM)
        send(signal.SIGINT)
        assert stop.requested is signal.SIGTERM
        send(signal.SIGINT)
        pytest.fail("the second interrupt was only noted")


def test_second_termination_is_only_noted() -> None:
    with StopSignal() as stop:
        send(signal.SIGTERM)
        send(signal.SIGTERM)
        assert stop.requested is signal.SIGTERM


@pytest.mark.parametrize("order", [(signal.SIGTERM, signal.SIGUSR2), (signal.SIGUSR2, signal.SIGTERM)])
def test_usr2_wins_over_a_termination_that_comes_with_it(order: tuple[signal.Signals, ...]) -> None:
    with StopSignal() as stop:
        for signum in order:
            send(signum)
        assert stop.requested is signal.SIGUSR2


def test_finish_chains_to_the_handler_that_was_there() -> None:
    calls: list[int] = []

    def requeue(signum: int, frame: object) -> None:
        calls.append(signum)
        raise SystemExit(-1)

    signal.signal(signal.SIGUSR2, requeue)
    with StopSignal() as stop:
        send(signal.SIGUSR2)
        assert calls == []  # only once the run has saved
        with pytest.raises(SystemExit) as end:
            stop.finish()
    assert calls == [signal.SIGUSR2]
    assert end.value.code == -1
    assert signal.getsignal(signal.SIGUSR2) is requeue


def test_finish_exits_where_the_earlier_handler_returns() -> None:
    calls: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, frame: calls.append(signum))
    with StopSignal() as stop:
        send(signal.SIGTERM)
        with pytest.raises(SystemExit) as end:
            stop.finish()
    assert (calls, end.value.code) == ([signal.SIGTERM], 128 + signal.SIGTERM)


def test_handlers_are_restored_after_an_error_too() -> None:
    before = [signal.getsignal(signum) for signum in STOP_SIGNALS]
    with pytest.raises(ZeroDivisionError), StopSignal():
        assert [signal.getsignal(signum) for signum in STOP_SIGNALS] != before
        _ = 1 / 0
    assert [signal.getsignal(signum) for signum in STOP_SIGNALS] == before


def test_outside_the_main_thread_nothing_is_installed() -> None:
    before = [signal.getsignal(signum) for signum in STOP_SIGNALS]
    seen: list[object] = []

    def work() -> None:
        with StopSignal() as stop:
            seen.extend(signal.getsignal(signum) for signum in STOP_SIGNALS)
            stop.finish()
            seen.append(stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [*before, None]


@pytest.mark.parametrize(
    ("codes", "agreed"),
    [
        ([], 0),
        ([0, 0, 0], 0),
        ([0, signal.SIGINT], signal.SIGINT),
        ([signal.SIGINT, 0, signal.SIGTERM], signal.SIGTERM),
        ([signal.SIGTERM, signal.SIGUSR2, signal.SIGINT, 0], signal.SIGUSR2),
    ],
)
def test_ranks_agree_on_the_strongest_signal(codes: list[int], agreed: int) -> None:
    assert strongest(codes) == agreed
    assert strongest(reversed(codes)) == agreed


def test_a_rank_stops_for_what_was_agreed_on_not_for_what_it_was_sent() -> None:
    with StopSignal(shared=True) as stop:
        send(signal.SIGTERM)
        assert (stop.noted, stop.requested) == (signal.SIGTERM, None)
        stop.check()
        stop.finish()
        stop.adopt(0)
        assert stop.requested is None
        stop.adopt(signal.SIGUSR2)
        assert (stop.noted, stop.requested) == (signal.SIGTERM, signal.SIGUSR2)
        with pytest.raises(StopRequested):
            stop.check()
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        with pytest.raises(SystemExit) as end:
            stop.finish()
    assert end.value.code == 128 + signal.SIGUSR2


def test_a_rank_that_was_started_to_ignore_interrupts_ignores_them() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopSignal(shared=True) as stop:
        send(signal.SIGINT)
        send(signal.SIGINT)
        assert stop.noted is None
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_signal_that_was_held_back_arrives_when_somebody_listens() -> None:
    def listen() -> bool:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        send(signal.SIGTERM)
        with StopSignal() as stop:
            return stop.noted is signal.SIGTERM

    assert in_child(listen)  # where no other thread takes the signal


def in_child(work: Callable[[], bool]) -> bool:
    """Whether `work` is true in a forked child."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_ignores_the_signals() -> None:
    with StopSignal() as stop:

        def receive_all() -> bool:
            for signum in (*STOP_SIGNALS, signal.SIGINT):
                send(signum)
            return stop.requested is None

        assert in_child(receive_all)
        assert stop.requested is None
        send(signal.SIGTERM)  # the parent still listens
        assert stop.requested is signal.SIGTERM
