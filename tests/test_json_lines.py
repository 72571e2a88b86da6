"""A file that was being written when the power went."""

from __future__ import annotations

from pathlib import Path

import pytest

from parse_local.json_lines import drop_torn_line, whole_lines


@pytest.mark.parametrize(
    ("content", "lines", "kept"),
    [
        (b"", [], b""),
        (b'{"a": 1}', [], b""),
        (b'{"a": 1}\n{"b"', [b'{"a": 1}'], b'{"a": 1}\n'),
        (b"1\n\xc3\xa9\n\xc3", [b"1", b"\xc3\xa9"], b"1\n\xc3\xa9\n"),  # inside a character
        (b"1\r\n2\n", [b"1\r", b"2"], b"1\r\n2\n"),
    ],
)
def test_a_torn_last_line_counts_for_nothing(
    tmp_path: Path, content: bytes, lines: list[bytes], kept: bytes
) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(content)
    assert whole_lines(path) == lines
    drop_torn_line(path)
    assert path.read_bytes() == kept
    assert whole_lines(path) == lines


def test_a_file_that_is_not_there_holds_no_lines(tmp_path: Path) -> None:
    drop_torn_line(tmp_path / "none.jsonl")
    assert whole_lines(tmp_path / "none.jsonl") == []
    assert not (tmp_path / "none.jsonl").exists()
