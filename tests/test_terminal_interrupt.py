import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from parse_local.errors import DecodeError
from parse_local.terminal.interrupt import interruptible, silent_keyboard

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs os.kill with SIGINT")


class Counter:
    """Yields numbers until it is cancelled, then two more: what is left, and an end."""

    def __init__(self, *, pause: float = 0.005, clears: bool = False) -> None:
        self.pause = pause
        self.clears = clears
        self.n_cancels = 0
        self.thread: threading.Thread | None = None
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        self.n_cancels += 1
        self._cancelled.set()

    def stream(self) -> Iterator[object]:
        self.thread = threading.current_thread()
        if self.clears:
            time.sleep(0.1)
            self._cancelled.clear()
        n = 0
        while not self._cancelled.wait(self.pause):
            yield n
            n += 1
        yield n
        yield "end"


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_cancels_and_no_event_is_lost() -> None:
    engine = Counter()
    seen = []
    for item in interruptible(engine, engine.stream()):
        seen.append(item)
        if item == 3:
            press_ctrl_c()
    assert seen[-1] == "end"
    assert seen[:-1] == list(range(len(seen) - 1))
    assert len(seen) >= 5


def test_more_presses_change_nothing() -> None:
    engine = Counter()
    seen = []
    for item in interruptible(engine, engine.stream()):
        seen.append(item)
        if item in (2, 3):
            press_ctrl_c()
            press_ctrl_c()
    assert seen[-1] == "end"


def test_a_press_while_nothing_arrives_is_noticed_at_once() -> None:
    engine = Counter(pause=30)
    timer = threading.Timer(0.2, press_ctrl_c)
    timer.start()
    started = time.monotonic()
    assert list(interruptible(engine, engine.stream())) == [0, "end"]
    assert time.monotonic() - started < 5


def test_a_press_before_the_engine_clears_its_flag_still_counts() -> None:
    engine = Counter(pause=30, clears=True)
    timer = threading.Timer(0.02, press_ctrl_c)
    timer.start()
    assert list(interruptible(engine, engine.stream())) == [0, "end"]
    assert engine.n_cancels >= 2


def test_ctrl_c_means_what_it_did_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert list(interruptible(Counter(), iter([1, 2]))) == [1, 2]
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        press_ctrl_c()


def test_errors_arrive_after_the_events_before_them() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise DecodeError("llama_decode failed.")

    events = interruptible(Counter(), broken())
    assert next(events) == 1
    with pytest.raises(DecodeError, match=r"llama_decode failed\."):
        next(events)


def test_closing_early_cancels_and_ends_the_thread() -> None:
    engine = Counter()
    events = interruptible(engine, engine.stream())
    assert next(events) == 0
    events.close()
    assert engine.n_cancels >= 1
    assert engine.thread is not None
    assert not engine.thread.is_alive()


def test_an_answer_that_ends_by_itself_is_not_cancelled() -> None:
    engine = Counter()
    assert list(interruptible(engine, iter("abc"))) == ["a", "b", "c"]
    assert engine.n_cancels == 0


def test_works_outside_the_main_thread() -> None:
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.extend(interruptible(Counter(), iter("ab"))))
    thread.start()
    thread.join(10)
    assert seen == ["a", "b"]


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for item in interruptible(Counter(), iter([1, 2])):
            press_ctrl_c()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert item in (1, 2)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudoterminals of this kind")
def test_what_is_typed_ahead_survives_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard, terminal = os.openpty()
    with os.fdopen(terminal, "r") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with silent_keyboard():
            os.write(keyboard, b"/regen\r\x03")
            assert os.read(terminal, 100) == b"/regen\n"
    os.close(keyboard)
