import io
import sys

import pytest

from kgexp.errors import ConfigError
from kgexp.tracking.progress import Progress


class Clock:
    """Seconds that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def terminal_of_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def test_lines() -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress("lines", 5000, description="train  epoch 1/2", stream=stream, clock=clock) as progress:
        for step in range(20):
            clock.now += 6 if step < 10 else 2
            if step == 15:
                progress.description = "train  epoch 2/2"
            progress.advance(250, loss=3 - step / 7, lr="1e-1")
    # Speeds are those of the last 10 to 20 s; the ends are those of the mean speed.
    assert stream.getvalue().splitlines() == [
        "train  epoch 1/2  10 %  42 triples/s  ETA 0:01:48  loss 2.857  lr 1e-1",
        "train  epoch 1/2  20 %  42 triples/s  ETA 0:01:36  loss 2.571  lr 1e-1",
        "train  epoch 1/2  30 %  42 triples/s  ETA 0:01:24  loss 2.286  lr 1e-1",
        "train  epoch 1/2  40 %  42 triples/s  ETA 0:01:12  loss 2  lr 1e-1",
        "train  epoch 1/2  50 %  42 triples/s  ETA 0:01:00  loss 1.714  lr 1e-1",
        "train  epoch 1/2  60 %  62 triples/s  ETA 0:00:43  loss 1.429  lr 1e-1",
        "train  epoch 1/2  70 %  75 triples/s  ETA 0:00:29  loss 1.143  lr 1e-1",
        "train  epoch 2/2  80 %  125 triples/s  ETA 0:00:18  loss 0.8571  lr 1e-1",
        "train  epoch 2/2  90 %  125 triples/s  ETA 0:00:08  loss 0.5714  lr 1e-1",
        "train  epoch 2/2  100 %  62 triples/s  took 0:01:20  loss 0.2857  lr 1e-1",
    ]


def test_long_work_has_a_line_every_ten_seconds() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress("lines", 10**9, stream=stream, clock=clock)
    for _ in range(100):
        clock.now += 1
        progress.advance(61_234)
    assert len(stream.getvalue().splitlines()) == 10
    assert stream.getvalue().splitlines()[0] == "0 %  61,234 triples/s  ETA 4:32:01"
    progress.close()
    assert stream.getvalue().splitlines()[-1] == "0 %  61,234 triples/s  took 0:01:40"


def test_short_work_has_one_line() -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress("lines", 501, "queries", "evaluate valid", stream, clock=clock) as progress:
        for n in [100] * 5 + [1]:
            clock.now += 0.1
            progress.advance(n)
    assert stream.getvalue() == "evaluate valid  100 %  835 queries/s  took 0:00:01\n"


def test_slow_units_keep_two_digits() -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress("lines", 4, "buckets", stream=stream, clock=clock) as progress:
        clock.now += 8
        progress.advance(1)
    assert stream.getvalue() == (
        "25 %  0.12 buckets/s  ETA 0:00:24\n"
        "25 %  0.12 buckets/s  took 0:00:08\n"
    )  # fmt: skip


def test_work_of_the_run_before_counts_as_done_and_not_as_speed() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress("lines", 1000, done=500, stream=stream, clock=clock)
    clock.now += 10
    progress.advance(100)
    assert stream.getvalue() == "60 %  10 triples/s  ETA 0:00:40\n"


def test_close_twice_says_it_once_and_nothing_done_says_nothing() -> None:
    clock, stream = Clock(), io.StringIO()
    Progress("lines", 0, stream=stream, clock=clock).close()
    assert stream.getvalue() == ""
    progress = Progress("lines", 5, stream=stream, clock=clock)
    progress.advance(5)
    progress.close()
    progress.close()
    assert len(stream.getvalue().splitlines()) == 1


def test_an_exception_still_tells_how_far_it_came() -> None:
    clock, stream = Clock(), io.StringIO()
    with pytest.raises(ZeroDivisionError), Progress("lines", 100, stream=stream, clock=clock) as progress:
        clock.now += 0.5
        progress.advance(42)
        _ = 1 / 0
    assert stream.getvalue() == "42 %  84 triples/s  took 0:00:00\n"


def test_none_is_silent() -> None:
    stream = Terminal()
    clock = Clock()
    with Progress("none", 100, stream=stream, clock=clock) as progress:
        clock.now += 60
        progress.advance(100)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("term", ["xterm", "dumb"])
@pytest.mark.parametrize("stream_type", [io.StringIO, Terminal])
def test_auto_draws_on_a_terminal_only(
    stream_type: type[io.StringIO], term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    stream = stream_type()
    with Progress("auto", 100, stream=stream, clock=Clock()) as progress:
        progress.advance(100)
    assert ("━" in stream.getvalue()) == (stream_type is Terminal and term == "xterm")
    assert stream.getvalue().splitlines()[-1].endswith("took 0:00:00")


def test_bar_shows_description_percentage_speed_and_fields() -> None:
    clock, stream = Clock(), Terminal()
    with Progress("bar", 200, description="train [1]", stream=stream, clock=clock) as progress:
        clock.now += 5
        progress.advance(84, loss=2.345)
    last_frame, end = stream.getvalue().split("train [1]")[-2:]
    for part in ("━", "42%", "17 triples/s  ETA 0:00:07  loss 2.345"):
        assert part in last_frame
    assert end == "  42 %  17 triples/s  took 0:00:05  loss 2.345\n"


def test_a_bar_inside_another_takes_its_place() -> None:
    clock, stream = Clock(), Terminal()
    with Progress("bar", 10, description="train", stream=stream, clock=clock) as outer:
        outer.advance(4)
        with Progress("bar", 5, description="evaluate", stream=stream, clock=clock) as inner:
            inner.advance(5)
            at = len(stream.getvalue())
        assert "train" in stream.getvalue()[at:]  # the outer bar is back
        outer.advance(6)
    assert "evaluate  100 %" in stream.getvalue()
    assert "train  100 %" in stream.getvalue().splitlines()[-1]


def test_what_is_printed_meanwhile_stays_in_its_own_stream(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("bar", 10, stream=Terminal(), clock=Clock()):
        print("501 entities", file=sys.stdout)
    assert capsys.readouterr().out == "501 entities\n"


def test_an_unknown_mode_is_named() -> None:
    with pytest.raises(ConfigError, match=r"tracking\.progress is one of auto, bar, lines, none, not 'bars'"):
        Progress("bars", 10, stream=io.StringIO())
