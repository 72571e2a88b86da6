"""The native build: patches, the archive's checksum, the cache; and the C functions it adds."""

from __future__ import annotations

import ctypes
import io
import math
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import native  # noqa: E402
import progress  # noqa: E402

# Patches

SOURCE = "one\ntwo\nthree\nfour\nfive\n"
PATCH = """\
What it is for.

--- a/src/file.cpp
+++ b/src/file.cpp
@@ -1,3 +1,4 @@
 one
-two
+2
+2.5
 three
@@ -5,1 +6,2 @@
 five
+six
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "src").mkdir(parents=True)
    (root / "src" / "file.cpp").write_text(SOURCE)
    return root


def write_patch(directory: Path, text: str, name: str = "0007-name.patch") -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(text)
    return path


def test_patch_applies(tree: Path, tmp_path: Path) -> None:
    native.apply_patch(write_patch(tmp_path / "p", PATCH), tree)
    assert (tree / "src" / "file.cpp").read_text() == "one\n2\n2.5\nthree\nfour\nfive\nsix\n"


def test_patch_creates_and_removes_files(tree: Path, tmp_path: Path) -> None:
    text = (
        "--- /dev/null\n+++ b/new/a.h\n@@ -0,0 +1,2 @@\n+x\n+y\n"
        "--- a/src/file.cpp\n+++ /dev/null\n@@ -1,5 +0,0 @@\n-one\n-two\n-three\n-four\n-five\n"
    )
    native.apply_patch(write_patch(tmp_path / "p", text), tree)
    assert (tree / "new" / "a.h").read_text() == "x\ny\n"
    assert not (tree / "src" / "file.cpp").exists()


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (PATCH.replace("-two", "-zwei"), "file.cpp differs at line 1"),
        (PATCH.replace("@@ -1,3 +1,4 @@", "@@ -2,3 +2,4 @@"), "file.cpp differs at line 2"),
        (PATCH.replace("src/file.cpp", "src/gone.cpp"), "there is no file src/gone.cpp"),
        (PATCH.replace("@@ -5,1 +6,2 @@", "@@ -5,2 +6,3 @@"), "cut short"),
        ("no diff here\n", "contains no diff"),
    ],
)
def test_patch_that_does_not_apply_fails_with_its_name(
    tree: Path, tmp_path: Path, patch: str, why: str
) -> None:
    with pytest.raises(native.NativeBuildError, match=re.escape("0007-name.patch")) as error:
        native.apply_patch(write_patch(tmp_path / "p", patch), tree)
    assert why in str(error.value)
    assert (tree / "src" / "file.cpp").read_text() == SOURCE


def test_patches_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("0010-b.patch", "0002-z.patch", "0001-a.patch", "README.md", "notes.patch"):
        write_patch(tmp_path / "p", "", name)
    names = [path.name for path in native.patch_files(tmp_path / "p")]
    assert names == ["0001-a.patch", "0002-z.patch", "0010-b.patch"]


def test_shipped_patches_are_numbered_without_gaps() -> None:
    numbers = [int(path.name[:4]) for path in native.patch_files()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers


# The archive


def make_archive(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def test_archive_with_another_checksum_is_refused(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / native.ARCHIVE, {"x/PKG-INFO": "not it"})
    with pytest.raises(native.NativeBuildError, match=f"{native.SHA256} is expected"):
        native.fetch_archive(tmp_path / "cache", tmp_path, given=archive)
    assert not (tmp_path / "cache").exists()


def test_archive_that_is_not_there_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(native.NativeBuildError, match=r"PARSE_LOCAL_LLAMA_SDIST names .*nowhere"):
        native.fetch_archive(tmp_path, tmp_path, given=tmp_path / "nowhere.tar.gz")


def test_unreachable_index_names_the_way_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = SimpleNamespace(returncode=1, stderr="ERROR: No matching distribution", stdout="")
    monkeypatch.setattr(native.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(native.NativeBuildError, match="DPARSE_LOCAL_LLAMA_SDIST="):
        native.fetch_archive(tmp_path / "cache", tmp_path)
    assert "No matching distribution" in capsys.readouterr().out


def test_damaged_cached_archive_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = b"the pinned archive"
    monkeypatch.setattr(native, "SHA256", native.hashlib.sha256(good).hexdigest())
    cache, scratch = tmp_path / "cache", tmp_path / "scratch"
    cache.mkdir()
    scratch.mkdir()
    (cache / native.ARCHIVE).write_bytes(good[:-1])

    def download(directory: Path) -> Path:
        path = directory / native.ARCHIVE
        path.write_bytes(good)
        return path

    monkeypatch.setattr(native, "_download", download)
    assert native.fetch_archive(cache, scratch).read_bytes() == good
    assert (cache / native.ARCHIVE).read_bytes() == good


def test_unpack_takes_the_library_and_its_declarations_only(tmp_path: Path) -> None:
    top = "llama_cpp_python-0.3.36"
    archive = make_archive(
        tmp_path / "a.tar.gz",
        {
            f"{top}/LICENSE.md": "MIT",
            f"{top}/llama_cpp/llama_cpp.py": "declarations",
            f"{top}/llama_cpp/server/app.py": "",
            f"{top}/vendor/llama.cpp/src/llama.cpp": "code",
            f"{top}/vendor/llama.cpp/tests/test.cpp": "",
            f"{top}/vendor/llama.cpp/../../../outside": "",
        },
    )
    native.unpack(archive, tmp_path / "out")
    found = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.*")}
    assert found == {
        "llama.cpp",
        "llama.cpp/src/llama.cpp",
        "llama_cpp/LICENSE.md",
        "llama_cpp/llama_cpp.py",
    }
    assert not (tmp_path / "outside").exists()


# The cache of finished builds


def test_key_changes_with_all_that_the_build_depends_on(tmp_path: Path) -> None:
    patch = write_patch(tmp_path, PATCH)

    def key(
        compiler: str = "GNU 12", flags: tuple[str, ...] = ("A=1", "B=2"), cpu: str = "avx2"
    ) -> str:
        return str(native.build_key(compiler, flags, cpu, [patch]))

    first = key()
    assert key() == first
    assert key(flags=("B=2", "A=1")) == first
    others = [key(compiler="GNU 13"), key(flags=("A=1", "B=3")), key(cpu="avx512")]
    patch.write_text(PATCH + "\n")
    others.append(key())
    assert len({first, *others}) == 5


def make_build(directory: Path, content: str = "library") -> Path:
    for part, name in (("lib", "libllama.so"), ("_vendor", "declarations.py")):
        (directory / part).mkdir(parents=True)
        (directory / part / name).write_text(content)
    return directory


def test_stored_build_is_found_whole(tmp_path: Path) -> None:
    built = make_build(tmp_path / "built")
    (built / "engine.py").write_text("not part of the build")
    entry = tmp_path / "cache" / "0.3.36-abc"
    assert not native.find_build(entry)
    native.store_build(built, entry)
    assert native.find_build(entry)
    assert (entry / "lib" / "libllama.so").read_text() == "library"
    assert not (entry / "engine.py").exists()
    assert [path.name for path in entry.parent.iterdir()] == [entry.name]


@pytest.mark.parametrize("damage", ["changed", "missing", "no manifest", "broken manifest"])
def test_damaged_build_is_not_used(tmp_path: Path, damage: str) -> None:
    entry = tmp_path / "cache" / "0.3.36-abc"
    native.store_build(make_build(tmp_path / "built"), entry)
    if damage == "changed":
        (entry / "lib" / "libllama.so").write_text("librarz")
    elif damage == "missing":
        (entry / "lib" / "libllama.so").unlink()
    elif damage == "no manifest":
        (entry / "manifest.json").unlink()
    else:
        (entry / "manifest.json").write_text("{")
    assert not native.find_build(entry)
    assert not entry.exists()


def test_builds_not_used_for_longest_are_removed(tmp_path: Path) -> None:
    built = make_build(tmp_path / "built")
    entries = [tmp_path / "cache" / f"0.3.36-{i}" for i in range(native.KEEP_BUILDS + 1)]
    for age, entry in enumerate(reversed(entries[:-1])):
        native.store_build(built, entry)
        native.os.utime(entry, (1e9 - age, 1e9 - age))
    native.store_build(built, entries[-1])
    assert [entry.exists() for entry in entries] == [False, *[True] * native.KEEP_BUILDS]


def test_unchanged_sources_keep_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = "llama_cpp_python-0.3.36"
    archive = make_archive(
        tmp_path / "a.tar.gz",
        {
            f"{top}/vendor/llama.cpp/src/file.cpp": SOURCE,
            f"{top}/vendor/llama.cpp/src/other.cpp": "other",
            f"{top}/llama_cpp/llama_cpp.py": "",
        },
    )
    patch = write_patch(tmp_path / "patches", PATCH)
    monkeypatch.setattr(native, "patch_files", lambda: [patch])
    target = tmp_path / "source"

    def prepare(scratch: str) -> dict[str, int]:
        (tmp_path / scratch).mkdir()
        native.prepare_source(archive, target, tmp_path / scratch)
        files = (target / "llama.cpp" / "src").iterdir()
        return {path.name: path.stat().st_mtime_ns for path in files}

    first = prepare("1")
    (target / "llama.cpp" / "src" / "left-over.cpp").write_text("of a patch that is gone")
    patch.write_text(PATCH.replace("+six", "+sechs"))
    second = prepare("2")
    assert second.keys() == first.keys() == {"file.cpp", "other.cpp"}
    assert second["other.cpp"] == first["other.cpp"]
    assert second["file.cpp"] > first["file.cpp"]


# The progress bar


def test_progress_lists_tenths_and_keeps_the_log(tmp_path: Path) -> None:
    code = "for i in range(1, 41): print(f'  [{i}/40] Building x.o')"
    command = [sys.executable, str(ROOT / "scripts" / "progress.py"), str(tmp_path / "log")]
    run = subprocess.run(
        [*command, sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    lines = run.stdout.splitlines()
    assert lines[0] == "Building llama.cpp: 40 steps, some minutes, once"
    assert [re.findall(r"\d+%", line)[0] for line in lines[1:]] == [
        f"{tenth}0%" for tenth in range(1, 11)
    ]
    assert (tmp_path / "log").read_text().count("Building x.o") == 40


def test_progress_ends_with_the_reason(tmp_path: Path) -> None:
    code = (
        "import sys; print('''-- Configuring\\n  CMake Error at CMakeLists.txt:29 (message):\\n"
        "    No C compiler was\\n    found: install one.\\n\\n  -- Configuring incomplete'''); "
        "sys.exit(3)"
    )
    command = [sys.executable, str(ROOT / "scripts" / "progress.py"), str(tmp_path / "log")]
    run = subprocess.run(
        [*command, sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert run.returncode == 3
    assert run.stderr.splitlines()[-1] == "No C compiler was found: install one."


def test_reason_names_the_remedy_where_pip_reached_no_index() -> None:
    error = "ERROR: No matching distribution found for click"
    assert progress.reason([error, "error: subprocess-exited-with-error"]) == (
        f"{error}; check the network connection and pip's index settings (pip config list)"
    )


def test_reason_is_pips_last_error_where_cmake_gave_none() -> None:
    lines = ["ERROR: first", "text", "error: second", "error: subprocess-exited-with-error"]
    assert progress.reason(lines) == "error: second"
    assert progress.reason(["all fine"]) is None


# libparse_local


@pytest.fixture(scope="module")
def shim() -> Any:
    from parse_local.llama import library

    shim = library.shim()
    if shim is None:
        pytest.skip("a stock llama.cpp is in use")
    shim.parse_local_abort_requested.restype = ctypes.c_bool
    return shim


def pointer(array: np.ndarray[Any, Any] | None) -> Any:
    return None if array is None else array.ctypes.data_as(ctypes.c_void_p)


OUTPUTS = {
    "argmax": np.int32,
    "logprob": np.float32,
    "rank": np.int32,
    "entropy": np.float32,
    "max_logprob": np.float32,
}


def score(
    shim: Any, logits: Any, tokens: Any, *, n_threads: int = 2, wanted: Any = tuple(OUTPUTS)
) -> dict[str, Any]:
    n_rows, n_vocab = logits.shape
    out = {
        name: np.full(n_rows, 77, dtype) if name in wanted else None
        for name, dtype in OUTPUTS.items()
    }
    ids = None if tokens is None else np.asarray(tokens, np.int32)
    status = shim.parse_local_score_rows(
        pointer(logits), n_rows, n_vocab, pointer(ids), n_threads, *map(pointer, out.values())
    )
    assert status == 0
    return {name: array for name, array in out.items() if array is not None}


def reference(logits: Any, tokens: Any) -> dict[str, Any]:
    """The same in float64, from the definitions."""
    x = logits.astype(np.float64)
    x = x - x.max(axis=1, keepdims=True)
    logprobs = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    p = np.exp(logprobs)
    picked = np.take_along_axis(logits, np.asarray(tokens)[:, None], axis=1)
    return {
        "argmax": logits.argmax(axis=1),
        "logprob": np.take_along_axis(logprobs, np.asarray(tokens)[:, None], axis=1)[:, 0],
        "rank": (logits > picked).sum(axis=1),
        "entropy": -np.where(p > 0, p * np.where(p > 0, logprobs, 0), 0).sum(axis=1),
        "max_logprob": logprobs.max(axis=1),
    }


def assert_matches(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, values in found.items():
        if OUTPUTS[name] is np.int32:
            np.testing.assert_array_equal(values, expected[name], err_msg=name)
        else:
            np.testing.assert_allclose(values, expected[name], rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("n_threads", [0, 1, 3])
@pytest.mark.parametrize(
    ("n_rows", "n_vocab"), [(1, 1), (1, 151_936), (40, 32_001), (300, 17), (7, 1024)]
)
def test_rows_match_float64(shim: Any, n_rows: int, n_vocab: int, n_threads: int) -> None:
    rng = np.random.default_rng(n_rows)
    logits = rng.standard_normal((n_rows, n_vocab), np.float32) * 5 - 3
    logits[:, n_vocab // 2] += 12
    tokens = rng.integers(0, n_vocab, n_rows)
    tokens[: n_rows // 2] = n_vocab // 2
    found = score(shim, logits, tokens, n_threads=n_threads)
    assert_matches(found, reference(logits, tokens))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(st.floats(-60, 60, width=32), st.just(-math.inf), st.sampled_from([0.0, 1.0])),
        min_size=1,
        max_size=70,
    ).filter(lambda row: any(map(math.isfinite, row))),
    st.data(),
)
def test_any_row_matches_float64(shim: Any, row: list[float], data: Any) -> None:
    logits = np.array([row], np.float32)
    tokens = [data.draw(st.integers(0, len(row) - 1))]
    found = score(shim, logits, tokens)
    with np.errstate(divide="ignore", invalid="ignore"):
        assert_matches(found, reference(logits, tokens))


def test_masked_tokens_ties_and_rows_without_a_token(shim: Any) -> None:
    inf = math.inf
    logits = np.array(
        [[-inf, 2, 2, -inf], [0, 0, 0, 0], [-inf, -inf, -inf, 9], [-inf] * 4], np.float32
    )
    found = score(shim, logits, [0, -1, 3, 1])
    assert found["argmax"].tolist() == [1, 0, 3, -1]
    assert found["rank"].tolist() == [2, -1, 0, -1]
    ln2, ln4, nan = math.log(2), math.log(4), math.nan
    np.testing.assert_allclose(found["logprob"], [-inf, nan, 0, nan], atol=1e-6)
    np.testing.assert_allclose(found["entropy"], [ln2, ln4, 0, nan], atol=1e-6)
    np.testing.assert_allclose(found["max_logprob"], [-ln2, -ln4, 0, nan], atol=1e-6)


@pytest.mark.parametrize("name", OUTPUTS)
def test_each_output_alone_is_what_it_is_among_all(shim: Any, name: str) -> None:
    logits = np.random.default_rng(3).standard_normal((20, 5_000), np.float32)
    tokens = np.arange(20)
    alone = score(shim, logits, tokens, wanted=[name])
    np.testing.assert_allclose(alone[name], score(shim, logits, tokens)[name], atol=1e-6)


def test_tokens_may_be_missing_where_none_is_looked_up(shim: Any) -> None:
    logits = np.zeros((3, 8), np.float32)
    found = score(shim, logits, None, wanted=["argmax", "entropy"])
    np.testing.assert_allclose(found["entropy"], [math.log(8)] * 3, atol=1e-6)


def test_labels_match_float64(shim: Any) -> None:
    logits = np.random.default_rng(4).standard_normal((90, 20_000), np.float32) * 6
    labels = np.array([5, 19_999, 5], np.int32)
    out = np.empty((90, 3), np.float32)
    status = shim.parse_local_label_logprobs(pointer(logits), 90, 20_000, pointer(labels), 3, 2, pointer(out))  # fmt: skip # noqa: E501
    assert status == 0
    for column, label in enumerate(labels):
        expected = reference(logits, np.full(90, label))["logprob"]
        np.testing.assert_allclose(out[:, column], expected, rtol=0, atol=1e-5)


def test_wrong_arguments_are_refused_and_nothing_is_written(shim: Any) -> None:
    logits, ids = np.zeros((2, 4), np.float32), np.array([0, 4], np.int32)
    out = np.full(2, 77, np.float32)
    rows, labels = shim.parse_local_score_rows, shim.parse_local_label_logprobs
    x, t, o = pointer(logits), pointer(ids), pointer(out)
    assert rows(x, 2, 4, t, 1, None, o, None, None, None) == -2
    assert rows(x, 2, 4, None, 1, None, o, None, None, None) == -1
    assert rows(None, 2, 4, t, 1, None, o, None, None, None) == -1
    assert rows(x, -1, 4, t, 1, None, o, None, None, None) == -1
    assert rows(x, 2, 0, t, 1, None, o, None, None, None) == -1
    assert rows(x, 0, 4, t, 1, None, o, None, None, None) == 0
    assert labels(x, 2, 4, t, 2, 1, o) == -2
    assert labels(x, 2, 4, t, 1, 1, None) == -1
    assert labels(x, 2, 4, None, 0, 1, None) == 0
    assert out.tolist() == [77, 77]


def test_abort_flag_is_read_in_place(shim: Any) -> None:
    flag = ctypes.c_int32(0)
    assert not shim.parse_local_abort_requested(ctypes.byref(flag))
    flag.value = 1
    assert shim.parse_local_abort_requested(ctypes.byref(flag))
    assert not shim.parse_local_abort_requested(None)


def test_shim_says_its_version(shim: Any) -> None:
    assert shim.parse_local_shim_version() == b"2"
