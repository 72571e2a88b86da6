"""Other programs in the same run: what `--peer` says, and servers that are started for it.

A server that was started here is ended with the run, also where the run is killed (on Linux).
"""

from __future__ import annotations

import contextlib
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from parse_local.bench.openai_peer import OpenAIPeer
from parse_local.engine import Engine
from parse_local.errors import PeerError, UsageError
from parse_local.load_options import LoadOptions

KINDS = ("llama-server=PATH", "openai=URL", "mlx_lm=MODEL")
START_S = 300.0
"""Seconds that a server may take to load its model."""
MODES = ("target", "draft-16", "draft-3", "ngram")
"""How llama-server is run: the target alone, and its own speculative decoding."""


@dataclass(frozen=True)
class PeerSpec:
    """One `--peer`.

    Args:
        kind: "llama-server", "openai" or "mlx_lm".
        where: program, address or model.
        options: what follows it.
    """

    kind: str
    where: str
    options: dict[str, str]


def parse_peer(text: str) -> PeerSpec:
    """Read "llama-server=PATH[,modes=target+draft-16]", "openai=URL[,model=NAME]", "mlx_lm=MODEL".

    Raises:
        UsageError: it is none of these.
    """
    kind, _, rest = text.partition("=")
    allowed = {"llama-server": {"modes"}, "openai": {"model"}, "mlx_lm": set[str]()}
    where, *settings = rest.split(",")
    options = dict(s.partition("=")[::2] for s in settings)
    if kind not in allowed or not where or not options.keys() <= allowed[kind]:
        raise UsageError(f"--peer {text!r} is none of: {', '.join(KINDS)} (see the help).")
    for mode in _modes(options):
        if mode not in MODES:
            raise UsageError(
                f"--peer llama-server has no mode {mode!r}; there are: {_plus(MODES)}."
            )
    if kind == "mlx_lm" and (sys.platform, platform.machine()) != ("darwin", "arm64"):
        raise UsageError("--peer mlx_lm runs on Apple Silicon only; leave it out here.")
    return PeerSpec(kind, where, options)


def _modes(options: dict[str, str]) -> list[str]:
    return options.get("modes", _plus(MODES)).split("+")


def _plus(names: Sequence[str]) -> str:
    return "+".join(names)


class Peers:
    """The peers of a run; leaving the context ends every server that was started.

    Args:
        specs: what was asked for.
        engine: whose files llama-server loads, with as many threads.
        options: how the pair is loaded; context, cache types and GPU layers are the same.
    """

    def __init__(self, specs: Sequence[PeerSpec], engine: Engine, options: LoadOptions) -> None:
        self.systems: list[OpenAIPeer] = []
        self._engine = engine
        self._options = options
        self._servers = contextlib.ExitStack()
        try:
            for spec in specs:
                self._add(spec)
        except BaseException:
            self.close()
            raise
        names = [s.name for s in self.systems]
        twice = next((n for i, n in enumerate(names) if n in names[:i]), None)
        if twice is not None:
            self.close()
            raise UsageError(f"--peer gives {twice!r} twice; leave one out.")

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the servers."""
        self._servers.close()

    def _add(self, spec: PeerSpec) -> None:
        vocabulary = self._engine.target.model
        if spec.kind == "openai":
            model = spec.options.get("model", "default")
            name = f"openai {model}" if "model" in spec.options else f"openai {spec.where}"
            self.systems.append(OpenAIPeer(name, spec.where, vocabulary=vocabulary, model=model))
            return
        if spec.kind == "mlx_lm":
            command = [sys.executable, "-m", "mlx_lm", "server", "--model", spec.where]
            url, pid = self._serve(command, "mlx_lm")
            self.systems.append(
                OpenAIPeer("mlx_lm", f"{url}/v1", vocabulary=vocabulary, model=spec.where, pid=pid)
            )
            return
        program = shutil.which(spec.where)
        if program is None:
            raise PeerError(f"{spec.where} is no program; give --peer llama-server=PATH.")
        for mode in _modes(spec.options):
            url, pid = self._serve(
                [program, *self._llama_arguments(), *self._mode_arguments(mode)],
                f"llama-server {mode}",
            )
            self.systems.append(
                OpenAIPeer(
                    f"llama-server {mode}",
                    f"{url}/v1",
                    vocabulary=vocabulary,
                    pid=pid,
                    extra={"cache_prompt": False},  # each answer from an empty cache, as ours
                    counts_end=True,
                )
            )

    def _llama_arguments(self) -> list[str]:
        options, context = self._options, self._engine.target.context
        arguments = [
            *("--model", str(self._engine.target.model.path)),
            *("--ctx-size", str(context.n_ctx)),
            *("--threads", str(context.n_threads), "--threads-batch", str(context.n_threads)),
            *("--cache-type-k", options.kv_type, "--cache-type-v", options.kv_type),
            *("--flash-attn", options.flash_attn),
            *("--parallel", "1", "--jinja"),
        ]
        if options.n_gpu_layers >= 0:
            arguments += ["--n-gpu-layers", str(options.n_gpu_layers)]
        return arguments

    def _mode_arguments(self, mode: str) -> list[str]:
        if mode == "target":
            return []
        if mode == "ngram":
            return ["--spec-type", "ngram-simple"]
        draft = self._engine.draft
        if draft is None:
            raise UsageError(
                f"llama-server's mode {mode} needs a draft model; name a pair, or choose others: "
                "--peer llama-server=PATH,modes=target+ngram."
            )
        n_max = mode.rpartition("-")[2]
        arguments = ["--model-draft", str(draft.model.path), "--spec-type", "draft-simple"]
        arguments += ["--spec-draft-n-max", n_max]
        for flag in ("--spec-draft-threads", "--spec-draft-threads-batch"):
            arguments += [flag, str(self._engine.target.context.n_threads)]
        return arguments

    def _serve(self, command: Sequence[str], name: str) -> tuple[str, int]:
        # Start a server on a free port of this machine alone; (address, process id) when ready.
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        log = Path(self._servers.enter_context(tempfile.TemporaryDirectory())) / "log"
        with log.open("wb") as file:
            try:
                process = subprocess.Popen(
                    [*command, "--host", "127.0.0.1", "--port", str(port)],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for the benchmark; it ends the server
                    preexec_fn=_end_with_parent(),
                )
            except OSError as error:
                raise PeerError(f"{command[0]} cannot be run ({error.strerror}).") from error
        self._servers.callback(_end, process)
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + START_S
        while not _ready(f"{url}/health"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise PeerError(f"{name} did not start: {_last_line(log)}")
            time.sleep(0.05)
        return url, process.pid


def _ready(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False  # 503 while the model is being loaded


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_with_parent() -> Callable[[], None] | None:
    # Linux: the kernel ends the server when this process dies, however it does.
    if sys.platform != "linux":
        return None
    import ctypes

    prctl, set_death_signal = ctypes.CDLL(None).prctl, 1

    def ask() -> None:
        prctl(set_death_signal, int(signal.SIGKILL))

    return ask


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if "error" in line.lower()]
    return (errors or said or ["it said nothing"])[-1][:300].rstrip(".") + "."
