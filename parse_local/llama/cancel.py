"""The flag that stops a running decode."""

from __future__ import annotations

import ctypes


class CancelFlag:
    """A flag that llama.cpp polls while it computes; may be set from any thread or handler."""

    def __init__(self) -> None:
        self.value = ctypes.c_int32(0)

    def set(self) -> None:
        """Ask the running decode to stop."""
        self.value.value = 1

    def clear(self) -> None:
        """Forget an earlier request."""
        self.value.value = 0

    def __bool__(self) -> bool:
        return self.value.value != 0
