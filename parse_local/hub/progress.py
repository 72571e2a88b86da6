"""What a pull tells its caller; drawing it is the caller's business."""

from __future__ import annotations


class Progress:
    """Receives the progress of a pull. This base class keeps silent."""

    def note(self, text: str) -> None:
        """One sentence about what happens now (the source in use, a retry)."""

    def begin(self, task: str, done: int, total: int) -> None:
        """A task starts, with `done` of its `total` bytes there from an earlier try."""

    def update(self, done: int) -> None:
        """The task has `done` bytes; after a restart it may be fewer than before."""

    def end(self) -> None:
        """The task is over, whether it succeeded or not."""
