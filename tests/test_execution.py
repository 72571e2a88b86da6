"""Generated code cannot reach the network, other processes, or files outside its directory."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest

from parse_local.bench.execution import passes

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux shuts more in")


def test_what_ends_well_passes_and_what_fails_does_not() -> None:
    assert passes("x = 1 + 1\nassert x == 2\nprint('done')")
    assert not passes("assert False")
    assert not passes("def broken(:")
    assert not passes("raise SystemExit(1)")


@pytest.mark.parametrize(
    "leaving", ["import sys; sys.exit(0)", "import os; os._exit(0)", "exit()", "quit()"]
)
def test_leaving_early_is_not_passing(leaving: str) -> None:
    assert not passes(f"{leaving}\nassert False")


def test_what_it_prints_cannot_pass_for_success() -> None:
    shout = "import os\nfor fd in range(1, 9):\n    try: os.write(fd, b'0' * 32)\n"
    assert not passes(f"{shout}    except OSError: pass\nos._exit(0)")


def test_time_is_limited() -> None:
    started = time.monotonic()
    assert not passes("while True: pass", timeout_s=1)
    assert not passes("import time; time.sleep(60)", timeout_s=1)
    assert time.monotonic() - started < 20


@linux
def test_memory_is_limited() -> None:
    # Catching the error shows that it was refused, and did not just take too long.
    program = "try: bytearray({})\nexcept MemoryError: pass\nelse: assert False"
    assert passes(program.format(2 << 30))
    assert not passes(program.format(1 << 20))
    assert not passes("hog = []\nwhile True: hog.append(bytearray(1 << 20))", memory_bytes=1 << 28)


def _connect(port: int) -> str:
    return f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=5)"


def test_the_network_is_out_of_reach() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        assert not passes(_connect(server.getsockname()[1]))
        with pytest.raises(BlockingIOError):  # nobody has knocked
            server.accept()


@pytest.mark.parametrize(
    "program",
    [
        "import os\nif os.fork() == 0: os._exit(0)",
        "import subprocess\nsubprocess.run(['true'], check=True)",
        "import os\nassert os.system('true') == 0",
        "import os\nos.kill(os.getppid(), 0)",
        "import os\nwhile True: os.fork()",
        "import ctypes\nctypes.CDLL(None)",
    ],
)
def test_there_are_no_other_processes(program: str) -> None:
    assert not passes(program)


@linux
def test_the_kernel_refuses_what_python_cannot_see() -> None:
    # The same limits without the audit hook, as code would have them that gets around it.
    import subprocess

    from parse_local.bench import sandbox

    program = f"""
import errno, os, runpy, socket, subprocess, sys
sandbox = runpy.run_path({sandbox.__file__!r})
sandbox["main"].__globals__["_refuse"] = lambda *_: None
sandbox["main"]()
"""
    code = """
import errno, os, socket
def refused(call, *arguments):
    try: call(*arguments)
    except OSError as error: return error.errno == errno.EPERM
assert refused(socket.socket), "socket"
assert refused(os.fork), "fork"
assert refused(os.execv, "/bin/true", ["true"]), "execve"
assert refused(os.kill, os.getppid(), 0), "kill"
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "10", str(1 << 30)],
        input=f"secret\n{code}",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("secret", "")


def test_files_are_made_in_a_directory_of_its_own_that_goes(tmp_path: Path) -> None:
    assert passes("open('a.txt', 'w').write('x'); assert open('a.txt').read() == 'x'")
    assert not (Path.cwd() / "a.txt").exists()
    assert passes("import os; assert not os.listdir('.') and not os.environ.get('HOME')")
    assert not passes("open('big', 'wb').write(bytes(2 << 20))")


@linux
def test_files_elsewhere_stay_as_they_are(tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("mine")
    tmp_path.chmod(0o777)
    for harm in (
        f"open({str(kept)!r}, 'w').write('theirs')",
        f"import os; os.remove({str(kept)!r})",
        f"import os; os.rename({str(kept)!r}, 'taken')",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"import os; os.truncate({str(kept)!r}, 0)",
    ):
        assert not passes(harm), harm
    assert kept.read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["kept.txt"]
    assert passes(f"assert open({str(kept)!r}).read() == 'mine'")
