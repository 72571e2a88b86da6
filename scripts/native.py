"""Everything about the native build that is not compiling; called by CMakeLists.txt.

    native.py prepare   fetch llama.cpp's pinned source, check it, patch it, or
                        find that a finished build of exactly this is in the cache
    native.py store     keep a finished build in the cache

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

VERSION = "0.3.36"
ARCHIVE = f"llama_cpp_python-{VERSION}.tar.gz"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"

# Finished builds kept in the cache: two revisions of the plain one, that with Vulkan and
# that with sanitizers. A CUDA one takes some hundred megabytes.
KEEP_BUILDS = 6

ROOT = Path(__file__).resolve().parent.parent
PATCHES = ROOT / "ggml_patches"
# Below vendor/llama.cpp, what no library is built from; half of the files.
_UNUSED = ("benches", "docs", "examples", "gguf-py", "media", "models", "tests", "tools")
# llama-cpp-python's parts that need libraries which are not built here.
_UNUSED_PYTHON = ("server", "llava_cpp.py", "mtmd_cpp.py", "__init__.py")


class NativeBuildError(Exception):
    """One sentence that says what failed and what to do."""


def cache_dir() -> Path:
    """Per-user directory of the source archive and of finished builds.

    PARSE_LOCAL_BUILD_CACHE names another one. The rest follows what
    parse_local.paths does through platformdirs, which is not installed yet.
    """
    if value := os.environ.get("PARSE_LOCAL_BUILD_CACHE"):
        return Path(value).expanduser()
    if value := os.environ.get("PARSE_LOCAL_HOME"):
        return Path(value).expanduser() / "native"
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "parse-local" / "native"


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# The source archive


def fetch_archive(cache: Path, scratch: Path, given: Path | None = None) -> Path:
    """Return the pinned source distribution: the given one, the cached one, or pip's.

    Args:
        cache: where an archive is looked for and kept.
        scratch: a directory that may be written to where the cache cannot.
        given: an archive that the user has brought along.

    Raises:
        NativeBuildError: it is not the pinned one, or it cannot be fetched.
    """
    if given is not None:
        if not given.is_file():
            raise NativeBuildError(
                f"PARSE_LOCAL_LLAMA_SDIST names {given}, which is not a file: correct the path."
            )
        check_archive(given, "pass the original file in PARSE_LOCAL_LLAMA_SDIST")
        return given
    cached = cache / ARCHIVE
    if cached.is_file():
        if sha256_of(cached) == SHA256:
            return cached
        print(f"The cached {ARCHIVE} is damaged; fetching it again.", flush=True)
        cached.unlink()
    fetched = _download(scratch)
    check_archive(fetched, "check the package index that pip uses (pip config list)")
    try:
        return _place(fetched, cached)
    except OSError as error:
        print(f"{ARCHIVE} is not kept for the next build: {error}", flush=True)
        return fetched


def check_archive(path: Path, remedy: str) -> None:
    """Refuse an archive that is not the pinned one."""
    found = sha256_of(path)
    if found != SHA256:
        raise NativeBuildError(
            f"{path.name} has SHA-256 {found} where {SHA256} is expected, "
            f"so it was not used: {remedy}."
        )


def _download(scratch: Path) -> Path:
    # Through pip, so that a user's index, proxy and certificate settings hold.
    # Without isolation, because reading the archive's metadata needs only
    # scikit-build-core, which is what runs this build.
    print(f"Fetching {ARCHIVE} with pip ...", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    command += ["--no-binary", "llama-cpp-python", "--dest", str(scratch)]
    command += [f"llama-cpp-python=={VERSION}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    archive = scratch / ARCHIVE
    if run.returncode != 0 or not archive.is_file():
        print((run.stderr or run.stdout).strip(), flush=True)
        raise NativeBuildError(
            f"pip could not fetch llama-cpp-python {VERSION}: check the network connection and "
            f"pip's index settings, or bring {ARCHIVE} along from another machine and set "
            f"CMAKE_ARGS=-DPARSE_LOCAL_LLAMA_SDIST=/path/to/{ARCHIVE}."
        )
    return archive


def _place(source: Path, target: Path) -> Path:
    """Copy a file or directory so that `target` never exists half-written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    try:
        staged = staging / target.name
        if source.is_dir():
            shutil.copytree(source, staged)
        else:
            shutil.copyfile(source, staged)
        try:
            staged.replace(target)
        except OSError:
            if not target.exists():  # else another build was faster, with the same content
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def unpack(archive: Path, target: Path) -> None:
    """Unpack llama.cpp to target/llama.cpp and the Python declarations to target/llama_cpp."""
    with tarfile.open(archive) as tar:
        for member in tar:
            inside = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            place = _place_of(inside)
            if place is None or not member.isfile():
                continue
            file = tar.extractfile(member)
            assert file is not None
            path = target / place
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as out:
                shutil.copyfileobj(file, out)


def _place_of(inside: PurePosixPath) -> PurePosixPath | None:
    parts = inside.parts
    if ".." in parts:
        return None
    if parts[:2] == ("vendor", "llama.cpp") and len(parts) > 2:
        return None if parts[2] in _UNUSED else PurePosixPath(*parts[1:])
    if parts[:1] == ("llama_cpp",) and len(parts) > 1:
        return None if parts[1] in _UNUSED_PYTHON else inside
    return PurePosixPath("llama_cpp", "LICENSE.md") if parts == ("LICENSE.md",) else None


# Patches

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def patch_files(directory: Path = PATCHES) -> list[Path]:
    """The patches, NNNN-name.patch, in the order of their numbers."""
    return sorted(directory.glob("[0-9][0-9][0-9][0-9]-*.patch"))


def apply_patch(patch: Path, root: Path) -> None:
    """Apply a unified diff (paths a/... and b/...) to the files below `root`.

    Not with `git apply` or `patch`: a user's machine may have neither, and both
    would shift or fuzz a hunk into place where the source isn't what it was
    made for. The source is pinned, so every line must be exactly where it was.

    Raises:
        NativeBuildError: it does not apply; nothing below `root` has changed.
    """
    results: dict[Path, str | None] = {}
    lines = patch.read_text(encoding="utf-8").split("\n")
    i = 0
    while i < len(lines):
        if [line[:4] for line in lines[i : i + 2]] != ["--- ", "+++ "]:
            i += 1
            continue
        old_name, new_name = (_patched_name(line) for line in lines[i : i + 2])
        i += 2
        path = root / (new_name or old_name or "")
        try:
            source = path.read_text(encoding="utf-8").split("\n") if old_name else []
        except OSError:
            raise _does_not_apply(patch, f"there is no file {old_name}") from None
        if old_name is None and path.exists():
            raise _does_not_apply(patch, f"{new_name} exists already")
        result: list[str] = []
        used = 0
        while i < len(lines) and (hunk := _HUNK.match(lines[i])):
            start, n_old = int(hunk[1]), int(hunk[2] or 1)
            n_new = int(hunk[4] or 1)
            i += 1
            old: list[str] = []
            new: list[str] = []
            while (len(old) < n_old or len(new) < n_new) and i < len(lines):
                kind, text = lines[i][:1], lines[i][1:]
                if kind not in (" ", "-", "+"):
                    break
                old += [text] if kind != "+" else []
                new += [text] if kind != "-" else []
                i += 1
            if (len(old), len(new)) != (n_old, n_new):
                raise _does_not_apply(patch, f"its hunk for {path.name}:{start} is cut short")
            at = start - 1 if n_old else start
            if at < used or source[at : at + n_old] != old:
                raise _does_not_apply(patch, f"{path.name} differs at line {start}")
            result += source[used:at] + new
            used = at + n_old
            if i < len(lines) and lines[i].startswith("\\"):
                raise _does_not_apply(patch, "files without a final newline are not supported")
        tail = source[used:] if old_name else [""]
        results[path] = "\n".join(result + tail) if new_name else None
    if not results:
        raise _does_not_apply(patch, "it contains no diff")
    for path, content in results.items():
        if content is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8", newline="\n")


def _patched_name(line: str) -> str | None:
    name = line[4:].split("\t")[0].strip()
    return None if name == "/dev/null" else name.split("/", 1)[1]


def _does_not_apply(patch: Path, why: str) -> NativeBuildError:
    return NativeBuildError(
        f"{patch.name} does not apply to llama.cpp of llama-cpp-python {VERSION} ({why}): "
        "regenerate it as ggml_patches/README.md says, or remove it."
    )


def prepare_source(archive: Path, target: Path, scratch: Path) -> None:
    """Bring `target` up to date with archive and patches, touching only files that change.

    An unchanged file keeps its time, so that in a build directory which is
    used again only what a patch touches is compiled again.
    """
    fresh = scratch / "fresh"
    unpack(archive, fresh)
    for patch in patch_files():
        apply_patch(patch, fresh / "llama.cpp")
        print(f"Applied {patch.name}", flush=True)
    shutil.copyfile(PATCHES / "src" / "llama_cpp_init.py", fresh / "llama_cpp" / "__init__.py")
    wanted = {path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file()}
    for path in [p for p in target.rglob("*") if p.is_file()]:
        if path.relative_to(target) not in wanted:
            path.unlink()
    for name in wanted:
        old, new = target / name, fresh / name
        if old.is_file() and old.read_bytes() == new.read_bytes():
            continue
        old.parent.mkdir(parents=True, exist_ok=True)
        new.replace(old)


# Finished builds


def build_key(compiler: str, flags: Iterable[str], features: str, inputs: Iterable[Path]) -> str:
    """Name of a finished build: equal where the same libraries would come out.

    Args:
        compiler: identification and version.
        flags: the settings of this build, NAME=VALUE.
        features: what the machine's processor can do, "" for a portable build.
        inputs: files whose content goes into the build.
    """
    digest = hashlib.sha256()
    system = f"{platform.system()} {platform.machine()}"
    for part in (SHA256, compiler, features, system, *sorted(flags)):
        digest.update(part.encode() + b"\0")
    for path in inputs:
        digest.update(f"{path.name} {sha256_of(path)}".encode() + b"\0")
    return f"{VERSION}-{digest.hexdigest()[:16]}"


def build_inputs() -> list[Path]:
    """The recipe, the patches and the sources that are built with llama.cpp."""
    sources = sorted(path for path in (PATCHES / "src").iterdir() if path.is_file())
    return [ROOT / "CMakeLists.txt", *patch_files(), *sources]


def machine_features(cxx: str, flags: Sequence[str]) -> str:
    """What a build for this very machine depends on: its CPU's features, its GPU's kind."""
    on = {flag.partition("=")[0] for flag in flags if _is_on(flag.partition("=")[2])}
    off = {flag.partition("=")[0] for flag in flags} - on
    found = []
    if "GGML_NATIVE" not in off:
        macros = [cxx, "-march=native", "-dM", "-E", "-x", "c++", os.devnull]
        found += [_output(macros) or platform.processor()]
    if "GGML_CUDA" in on:
        found += [_output([os.environ.get("CUDACXX", "nvcc"), "--version"])]
        found += [_output(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])]
    if "GGML_VULKAN" in on:  # which shaders there are depends on their compiler
        found += [_output(["glslc", "--version"])]
    return "\n".join(found)


def _is_on(value: str) -> bool:
    return value.upper() in ("1", "ON", "YES", "TRUE", "Y")


def _output(command: list[str]) -> str:
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return run.stdout if run.returncode == 0 else ""


_MANIFEST = "manifest.json"


def find_build(entry: Path) -> bool:
    """Whether the cache holds this build, whole; a damaged one is removed."""
    if not entry.exists():
        return False
    try:
        manifest = json.loads((entry / _MANIFEST).read_text(encoding="utf-8"))
        whole = bool(manifest) and all(
            sha256_of(entry / name) == digest for name, digest in manifest.items()
        )
    except (OSError, ValueError, AttributeError):
        whole = False
    if whole:
        with suppress(OSError):
            os.utime(entry)  # read by `store_build` when it makes room
    else:
        print(f"The cached build {entry.name} is damaged; building again.", flush=True)
        shutil.rmtree(entry, ignore_errors=True)
    return whole


def store_build(built: Path, entry: Path) -> None:
    """Keep a finished build in the cache, and remove the ones not used for longest."""
    manifest = {}
    with tempfile.TemporaryDirectory() as directory:
        staged = Path(directory) / "build"
        for part in ("lib", "_vendor"):  # an installation has the Python package beside them
            shutil.copytree(built / part, staged / part)
        for path in sorted(path for path in staged.rglob("*") if path.is_file()):
            manifest[path.relative_to(staged).as_posix()] = sha256_of(path)
        (staged / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        _place(staged, entry)
    entries = [path for path in entry.parent.glob("[0-9]*") if (path / _MANIFEST).is_file()]
    for old in sorted(entries, key=lambda path: path.stat().st_mtime)[:-KEEP_BUILDS]:
        shutil.rmtree(old, ignore_errors=True)


# Commands


def prepare(arguments: argparse.Namespace) -> None:
    """Write `native.cmake`: where the source is, and where the finished build is or will be."""
    build_dir: Path = arguments.build_dir
    cache = cache_dir()
    features = machine_features(arguments.cxx, arguments.flag)
    key = build_key(arguments.compiler, arguments.flag, features, build_inputs())
    entry = cache / key
    source = build_dir / "source"
    found = not arguments.no_cache and find_build(entry)
    if found:
        print(f"Using the native build in {entry}", flush=True)
    else:
        build_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=build_dir) as scratch:
            archive = fetch_archive(cache, Path(scratch), arguments.sdist)
            prepare_source(archive, source, Path(scratch))
    values = {
        "NATIVE_FOUND": "ON" if found else "OFF",
        "NATIVE_ENTRY": "" if arguments.no_cache else entry.as_posix(),
        "NATIVE_SOURCE": source.as_posix(),
    }
    text = "".join(f"set({name} [==[{value}]==])\n" for name, value in values.items())
    arguments.write.write_text(text, encoding="utf-8")


def store(arguments: argparse.Namespace) -> None:
    """Keep what has been built; a cache that cannot be written is no reason to fail."""
    try:
        store_build(arguments.built, arguments.entry)
        print(f"Kept the native build in {arguments.entry}", flush=True)
    except OSError as error:
        print(f"The native build is not kept for the next installation: {error}", flush=True)


def main() -> int:
    """Run one command; errors go to stderr as one sentence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("prepare")
    command.set_defaults(run=prepare)
    command.add_argument("--build-dir", type=Path, required=True)
    command.add_argument("--write", type=Path, required=True)
    command.add_argument("--compiler", required=True)
    command.add_argument("--cxx", required=True)
    command.add_argument("--flag", action="append", default=[])
    command.add_argument("--sdist", type=Path)
    command.add_argument("--no-cache", action="store_true")
    command = commands.add_parser("store")
    command.set_defaults(run=store)
    command.add_argument("--built", type=Path, required=True)
    command.add_argument("--entry", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except NativeBuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
