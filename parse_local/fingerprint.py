"""Which file this is, without reading all of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

_BLOCK = 1 << 16
_N_BLOCKS = 16


def fingerprint(path: Path) -> str:
    """Identity of a model file: its size and a digest of 1 MiB spread over it.

    The name does not count, so a file may be moved or renamed. Metadata alone would not
    do: the same model with other weights shares them.

    Args:
        path: the file; one of up to 1 MiB is read whole.

    Returns:
        "SIZE-DIGEST", 16 hexadecimal digits of SHA-256.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = file.seek(0, 2)
        last = max(0, size - _BLOCK)
        for i in range(_N_BLOCKS):  # the first holds metadata, the others mostly weights
            file.seek(last * i // (_N_BLOCKS - 1))
            digest.update(file.read(_BLOCK))
    return f"{size}-{digest.hexdigest()[:16]}"
