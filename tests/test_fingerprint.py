"""A file's identity: what changes it, and what does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parse_local.fingerprint import fingerprint

MIB = 1 << 20


@pytest.mark.parametrize("size", [10, MIB, 5 * MIB + 3])
def test_it_follows_the_content(size: int, tmp_path: Path) -> None:
    data = np.random.default_rng(0).bytes(size)
    file = tmp_path / "a.gguf"
    file.write_bytes(data)
    first = fingerprint(file)
    assert first.startswith(f"{size}-")
    assert fingerprint(file.rename(tmp_path / "b.gguf")) == first
    for place in (0, size - 1):
        changed = bytearray(data)
        changed[place] ^= 1
        file.write_bytes(changed)
        assert fingerprint(file) != first
    file.write_bytes(data + b"x")
    assert fingerprint(file) != first


def test_a_file_of_one_mebibyte_is_read_whole(tmp_path: Path) -> None:
    data = bytearray(np.random.default_rng(0).bytes(MIB))
    file = tmp_path / "a.gguf"
    file.write_bytes(data)
    first = fingerprint(file)
    for place in range(0, MIB, MIB // 13):
        data[place] ^= 1
        file.write_bytes(data)
        assert fingerprint(file) != first
        data[place] ^= 1
