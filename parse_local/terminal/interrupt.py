"""Ctrl-C stops the answer, not the program."""

from __future__ import annotations

import queue
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol, TypeVar

T = TypeVar("T")

# A blocked queue wakes up this often to see whether Ctrl-C was pressed: on
# Windows nothing else wakes it.
_POLL_S = 0.1


class Cancellable(Protocol):
    """Whatever has a running answer that can be stopped."""

    def cancel(self) -> None:
        """Ask the running answer to end soon; callable from any thread, any number of times."""


@dataclass
class _End:
    error: BaseException | None = None


def interruptible(
    engine: Cancellable, events: Iterator[T], idle: Callable[[], None] = lambda: None
) -> Generator[T, None, None]:
    """Run a blocking iterator in a thread of its own; Ctrl-C cancels it.

    Python runs signal handlers between bytecodes only, so a main thread inside
    llama.cpp would notice Ctrl-C a decode step late. While this generator runs, Ctrl-C
    raises nothing: it calls `engine.cancel()`, and all events up to the last one are
    still delivered. Closing the generator early cancels too and waits for the thread.

    Args:
        engine: what `events` comes from.
        events: `engine.stream(...)`, not started yet.
        idle: called every 0.1 s while no event comes.

    Yields:
        The events, in order, none lost.

    Raises:
        BaseException: whatever the iterator raised, in the caller's thread.
    """
    items: queue.SimpleQueue[T | _End] = queue.SimpleQueue()

    def work() -> None:
        try:
            for event in events:
                items.put(event)
        except BaseException as error:
            items.put(_End(error))
        else:
            items.put(_End())

    worker = threading.Thread(target=work, name="parse-local answer", daemon=True)
    ended = False
    with on_interrupt(engine.cancel) as pressed:
        worker.start()
        try:
            while True:
                if pressed:
                    # Again at each event: an answer that is just starting clears the flag.
                    engine.cancel()
                try:
                    item = items.get(timeout=_POLL_S)
                except queue.Empty:
                    idle()
                    continue
                if isinstance(item, _End):
                    ended = True
                    if item.error is not None:
                        raise item.error
                    return
                yield item
        finally:
            while not ended and worker.is_alive():
                engine.cancel()
                worker.join(_POLL_S)
            worker.join()


@contextmanager
def on_interrupt(action: Callable[[], None]) -> Iterator[list[int]]:
    """Let Ctrl-C call `action` instead of raising KeyboardInterrupt; yields the presses."""
    pressed: list[int] = []  # a lock in a signal handler could wait for itself
    previous = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    # An ignored SIGINT (a job started with nohup or in the background) stays ignored.
    if not main or previous is None or previous is signal.SIG_IGN:
        yield pressed
        return

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        action()

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def silent_keyboard() -> Iterator[None]:
    """Don't echo keys while an answer is drawn: an echoed Enter would move the cursor.

    What is typed is kept for the next prompt. Does nothing where stdin is no terminal.
    """
    if sys.platform == "win32" or not sys.stdin or not sys.stdin.isatty():
        yield
        return
    import termios

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    quiet = termios.tcgetattr(fd)
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    quiet[3] |= termios.NOFLSH  # Ctrl-C would throw away what was typed ahead
    termios.tcsetattr(fd, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
