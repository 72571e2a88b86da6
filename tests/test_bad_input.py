"""Wrong input ends in one clear sentence: no traceback, no abort, nothing on stdout.

Each call is a process of its own, because an assertion inside llama.cpp would end ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parse_local.llama import library

Tiny = Callable[..., Path]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> Path:
    """A directory with good files and bad ones."""
    place = tmp_path_factory.mktemp("bad")
    good = tiny(seed=1)
    for name, source in {
        "t.gguf": good,
        "d.gguf": tiny(seed=2, weights_from=1),
        "bert.gguf": tiny(seed=1, architecture="bert", causal=False),
        "noncausal.gguf": tiny(seed=1, causal=False),
        "t5.gguf": tiny(seed=1, architecture="t5"),
        "unknown.gguf": tiny(seed=1, architecture="hal9000"),
        "dream.gguf": tiny(seed=1, architecture="dream"),
        "syntax.gguf": tiny(seed=1, template="{% for %}"),
        "raises.gguf": tiny(seed=1, template="{{ raise_exception('only in verse') }}"),
    }.items():
        (place / name).symlink_to(source)
    data = good.read_bytes()
    (place / "header.gguf").write_bytes(data[:12])
    (place / "metadata.gguf").write_bytes(data[:1000])
    (place / "tensors.gguf").write_bytes(data[:-1000])
    (place / "text.gguf").write_text("This is no model.")
    (place / "empty.gguf").write_bytes(b"")
    (place / "directory.gguf").mkdir()
    (place / "latin1.txt").write_bytes("Grüße".encode("latin-1"))
    (place / "q.txt").write_text("Why?\n")
    (place / "a.txt").write_text("One. Two.\n")
    (place / "empty.txt").write_text("")
    (place / "string.toml").write_text('tau_full = "high"\n')
    (place / "unknown.toml").write_text("tau = 0.5\n")
    (place / "zero.toml").write_text(
        "[fusion]\nintercept=0\nthreshold_full=0\nthreshold_prefix=0\n"
        "[fusion.terms.log_odds]\nmean=0\nstd=0\nweight=1\n"
    )
    (place / "not.toml").write_text("tau_full is high\n")
    return place


def parse_local(place: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PARSE_LOCAL_HOME": str(place / "home"), "HF_HUB_OFFLINE": "1"}
    environment["HF_HOME"] = str(place / "hf")
    return subprocess.run(
        [sys.executable, "-m", "parse_local.cli", *arguments],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **{"stdin": subprocess.DEVNULL, **options},
    )


RUN = ["run", "--threads", "1", "--ctx", "512", "--max-tokens", "5"]
PAIR = [*RUN, "--target", "t.gguf", "--draft", "d.gguf"]
ALONE = [*RUN, "--strategy", "target", "--target"]
VERIFY = ["verify", "--threads", "1", "--target", "t.gguf", "--prompt-file"]


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        # files
        ([*ALONE, "header.gguf", "x"], 1, "header.gguf is truncated or damaged; delete it"),
        ([*ALONE, "metadata.gguf", "x"], 1, "metadata.gguf is truncated or damaged; delete it"),
        ([*ALONE, "tensors.gguf", "x"], 1, "tensors.gguf is truncated or damaged; delete it"),
        ([*ALONE, "text.gguf", "x"], 1, "text.gguf is not a GGUF file; convert the model"),
        ([*ALONE, "empty.gguf", "x"], 1, "empty.gguf is not a GGUF file; convert the model"),
        ([*ALONE, "directory.gguf", "x"], 1, "Cannot read directory.gguf: Is a directory."),
        ([*ALONE, "none.gguf", "x"], 1, "There is no file none.gguf; check the path"),
        ([*ALONE, "bert.gguf", "x"], 1, "bert.gguf is an embedding model (bert)"),
        ([*ALONE, "noncausal.gguf", "x"], 1, "noncausal.gguf is an embedding model (llama)"),
        ([*ALONE, "t5.gguf", "x"], 1, "t5.gguf is an encoder-decoder model (t5)"),
        ([*ALONE, "dream.gguf", "x"], 1, "dream.gguf is a diffusion model (dream)"),
        ([*PAIR, "--draft", "dream.gguf", "x"], 1, "dream.gguf is a diffusion model (dream)"),
        (["chat", "--target", "t5.gguf", "--draft", "d.gguf"], 1, "t5.gguf is an encoder-decoder"),
        (
            ["verify", "--target", "bert.gguf", "--prompt-file", "q.txt", "--draft-file", "a.txt"],
            1,
            "is an embedding model",
        ),
        ([*ALONE, "unknown.gguf", "x"], 1, "'hal9000', which this llama.cpp does not know"),
        ([*ALONE, "syntax.gguf", "x"], 1, "chat template of syntax.gguf is not valid Jinja"),
        ([*ALONE, "raises.gguf", "x"], 1, "refuses this conversation (only in verse)"),
        ([*PAIR, "--draft", "tensors.gguf", "x"], 1, "tensors.gguf is truncated or damaged"),
        # sizes
        ([*PAIR, "--ctx", "100000000000", "x"], 1, "This needs about"),
        ([*PAIR, "--ctx", "30", "x" * 40], 1, "tokens and the context of t.gguf holds 30"),
        ([*PAIR, "--threads", "100000", "x"], 2, "100000 is not in the range 1<=x<=512"),
        ([*PAIR, "--max-forks", "256", "x"], 2, "256 is not in the range 1<=x<=255"),
        ([*PAIR, "--gpu-layers", "-2", "x"], 2, "-2 is not in the range"),
        ([*PAIR, "--kv-type", "q8_0", "x"], 2, "use --kv-type f16"),
        ([*PAIR, "--temperature", "nan", "x"], 2, "temperature must be at least 0, not nan"),
        ([*PAIR, "--tau", "1.5", "x"], 2, "1.5 is not in the range 0<=x<=1"),
        # names
        (
            [*RUN, "--pair", "nosuch", "x"],
            2,
            "There is no pair named 'nosuch'; `parse-local models",
        ),
        (
            [*RUN, "--pair", "qwen3-32b", "x"],
            1,
            "fetch it with `parse-local models pull qwen3-32b`",
        ),
        ([*RUN, "--draft", "d.gguf", "x"], 1, "parse-local models pull qwen2.5-coder-1.5b"),
        # options that contradict each other
        ([*PAIR, "--accept", "fused", "x"], 2, "--accept fused needs a profile"),
        (
            [*RUN, "--target", "t.gguf", "--strategy", "parse", "x"],
            2,
            "needs a draft model; name a pair or give --draft",
        ),
        ([*RUN, "--target", "t.gguf", "--strategy", "draft", "x"], 2, "needs a draft model"),
        # profiles
        ([*PAIR, "--profile", "none.toml", "x"], 2, "profile none.toml: No such file"),
        ([*PAIR, "--profile", "not.toml", "x"], 2, "Cannot use the profile not.toml: "),
        ([*PAIR, "--profile", "string.toml", "x"], 2, "tau_full must be a number, not 'high'"),
        ([*PAIR, "--profile", "unknown.toml", "x"], 2, "unexpected keyword argument 'tau'"),
        ([*PAIR, "--profile", "zero.toml", "x"], 2, "std must be above 0, not 0"),
        # texts
        ([*PAIR, ""], 2, "There is no prompt; give one"),
        (PAIR, 2, "There is no prompt; give one"),
        ([*VERIFY, "q.txt", "--draft-file", "latin1.txt"], 2, "latin1.txt is not UTF-8 text"),
        ([*VERIFY, "latin1.txt", "--draft-file", "a.txt"], 2, "latin1.txt is not UTF-8 text"),
        ([*VERIFY, "q.txt", "--draft-file", "empty.txt"], 2, "There is no text to judge"),
        ([*VERIFY, "none.txt", "--draft-file", "a.txt"], 2, "Cannot read none.txt: No such file"),
        ([*VERIFY, "q.txt", "--draft-file", "a.txt", "--ctx", "20"], 1, "raise --ctx"),
    ],
    ids=lambda value: " ".join(value[-3:]) if isinstance(value, list) else None,
)
def test_one_sentence(place: Path, arguments: list[str], status: int, sentence: str) -> None:
    done = parse_local(place, *arguments)
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    *usage, last = done.stderr.strip().splitlines()
    assert last.startswith("Error: ")
    assert sentence in last
    assert "Traceback" not in done.stderr
    # Only click's own errors have more: how to get help.
    assert all(line.startswith(("Usage: ", "Try ")) or not line for line in usage)


def test_a_file_cut_anywhere_is_refused(place: Path) -> None:
    code = """
import sys
from pathlib import Path
from parse_local.errors import ModelError
from parse_local.llama.model import Model
data, cut = Path("t.gguf").read_bytes(), Path("cut.gguf")
offsets = [*range(4, 64), *range(64, 12000, 211), *range(12000, len(data), 9973), len(data) - 1]
for offset in offsets:
    cut.write_bytes(data[:offset])
    for headers_only in (True, False):
        try:
            Model(cut, headers_only=headers_only)
        except ModelError as error:
            assert "is truncated or damaged" in str(error), (offset, str(error))
        else:
            raise AssertionError(f"loaded with {offset} bytes")
print(len(offsets))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 120


def test_a_vocabulary_with_the_same_token_twice_is_refused(place: Path) -> None:
    if library.seq_fork() is None:
        pytest.skip("a stock llama.cpp ends the process")
    # A string is its length in 8 bytes and its text; the tokens of the bytes come first, in order.
    a, b = (len(text).to_bytes(8, "little") + text for text in (b"a", b"b"))
    data = (place / "t.gguf").read_bytes()
    assert data.count(a) == 1
    (place / "twice.gguf").write_bytes(data.replace(a, b))
    done = parse_local(place, *ALONE, "twice.gguf", "x")
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("Error: llama.cpp cannot load twice.gguf (")
    assert "token 98 has the same text as token 97" in done.stderr  # ASCII of b, of a
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
@pytest.mark.parametrize("command", ["run", "chat"])
def test_bytes_that_are_no_text_on_stdin(
    place: Path, monkeypatch: pytest.MonkeyPatch, command: str, errors: str
) -> None:
    # How Python opens stdin depends on the locale.
    monkeypatch.setenv("PYTHONIOENCODING", f"utf-8:{errors}")
    with (place / "latin1.txt").open("rb") as stdin:
        done = parse_local(place, command, *PAIR[1:], stdin=stdin)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "Error: What came on stdin is not utf-8 text; convert it first.\n"


@pytest.mark.skipif(sys.platform == "win32", reason="arguments are text there")
def test_bytes_that_are_no_text_in_the_prompt(place: Path) -> None:
    done = parse_local(place, *PAIR, b"\xff\xfe hi")  # type: ignore[arg-type]
    assert done.returncode == 2
    assert done.stderr.startswith("Error: The prompt is not utf-8 text; convert it first.")
