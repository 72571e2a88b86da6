# Sourced by scripts/demo, scripts/test and .ci/run: brings .venv in this checkout up to date.
#
#     setup_env [EXTRA]      install the package, with an extra of pyproject.toml
#
# The first time this builds llama.cpp, some minutes; later it takes as long as
# comparing a checksum. Python sources are used from the checkout as they are.
# PYTHON names the interpreter to use, CMAKE_ARGS goes to the native build.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv

fail() {
    printf '%s\n' "$1" >&2
    exit 1
}

# Print the first Python that is new enough.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.10 or newer was not found${PYTHON:+ as $PYTHON}: install it (Debian and Ubuntu: apt install python3 python3-venv; macOS: brew install python), or name it in PYTHON."
}

check_compiler() {
    case ${CMAKE_ARGS:-} in *PARSE_LOCAL_NATIVE=OFF*) return ;; esac
    local candidate
    for candidate in ${CXX:-c++ g++ clang++}; do
        # macOS has a c++ that only offers to install the real one.
        if "$candidate" --version >/dev/null 2>&1; then
            return
        fi
    done
    fail "No C++ compiler was found: install one (Debian and Ubuntu: apt install build-essential; Fedora: dnf install gcc-c++; macOS: xcode-select --install) and try again."
}

# Checksum of all that an installation depends on; Python sources are not among it.
installation_stamp() {
    "$venv/bin/python" - "$root" <<'PYTHON'
import hashlib, os, pathlib, sys
root = pathlib.Path(sys.argv[1])
files = [root / name for name in ("pyproject.toml", "CMakeLists.txt", "scripts/native.py")]
files += sorted(p for p in (root / "ggml_patches").rglob("*") if p.is_file())
digest = hashlib.sha256(f"{root} {sys.version} {os.environ.get('CMAKE_ARGS')}".encode())
for file in files:
    digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
print(digest.hexdigest())
PYTHON
}

setup_env() {
    local extra=${1:-} python stamp
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        python=$(find_python)
        "$python" -c 'import venv, ensurepip' 2>/dev/null ||
            fail "$python cannot create virtual environments: install its venv module (Debian and Ubuntu: apt install python3-venv)."
        printf 'Creating %s\n' "$venv"
        "$python" -m venv --clear "$venv" ||
            fail "$python could not create $venv: see the message above."
    fi
    stamp=$(installation_stamp)
    if [ "$(cat "$venv/installed${extra:+-$extra}" 2>/dev/null)" = "$stamp" ]; then
        return
    fi
    check_compiler
    printf 'Installing parse-local%s into %s\n' "${extra:+ [$extra]}" "$venv"
    "$venv/bin/python" "$root/scripts/progress.py" "$venv/install.log" \
        "$venv/bin/python" -m pip install --verbose --no-input --editable "$root${extra:+[$extra]}" ||
        exit # progress.py has said why
    printf '%s\n' "$stamp" >"$venv/installed"
    printf '%s\n' "$stamp" >"$venv/installed${extra:+-$extra}"
}
