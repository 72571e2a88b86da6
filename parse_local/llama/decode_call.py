"""What surrounds a call of llama_decode: how it is stopped, and in words why it failed."""

from __future__ import annotations

import ctypes
from typing import Any

from parse_local.errors import Cancelled, ContextLengthError, DecodeError, ParseLocalError
from parse_local.llama import library
from parse_local.llama._bindings import lib
from parse_local.llama.cancel import CancelFlag

OK, NO_SLOT, ABORTED = 0, 1, 2
"""What llama_decode returns; below 0 for other failures."""


def poll(handle: Any, cancel: CancelFlag) -> Any:
    """Have every decode of a context end where the flag is set.

    Args:
        handle: llama_context_t.
        cancel: read between the operations of a compute graph.

    Returns:
        The callback, to be kept for as long as the context lives.

    Source: llama_set_abort_callback.
    """
    shim = library.shim()
    if shim is not None:  # no Python call inside the compute graph
        callback = ctypes.cast(shim.parse_local_abort_requested, lib.ggml_abort_callback)
    else:
        callback = lib.ggml_abort_callback(lambda _data: bool(cancel))
    flag = ctypes.cast(ctypes.byref(cancel.value), ctypes.c_void_p)
    lib.llama_set_abort_callback(handle, callback, flag)
    return callback


def failure(status: int, reason: str, file_name: str, cancel: CancelFlag) -> ParseLocalError:
    """What to raise for a call that did not return `OK`.

    Args:
        status: what it returned.
        reason: llama.cpp's last words.
        file_name: of the model.
        cancel: whether it was to stop.
    """
    if status == ABORTED or cancel:
        return Cancelled("Stopped.")
    if status == NO_SLOT:
        return ContextLengthError(
            f"The KV cache of {file_name} is full; raise --ctx or lower --max-forks."
        )
    return DecodeError(
        f"llama.cpp failed to decode with {file_name} (code {status}: {reason}); "
        "run again with --verbose, and with less --gpu-layers if the GPU is short of memory."
    )
