"""What scripts/check_wheel finds in a wheel, before anybody installs it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from script_loader import load_script

check_wheel = load_script("check_wheel")

LINUX = "parse_local-0.1.0-py3-none-manylinux_2_28_x86_64.whl"
VENDORED = "parse_local/_vendor/llama_cpp/llama_cpp.py"


def wheel(directory: Path, name: str, *, without: str = "", also: tuple[str, ...] = ()) -> Path:
    match = check_wheel.NAME.fullmatch(name)
    platform = match["platform"] if match else "linux_x86_64"
    files = {f"parse_local/lib/{file}" for file in check_wheel.library_files(platform)}
    files |= check_wheel.package_files() | {VENDORED}
    path = directory / name
    with zipfile.ZipFile(path, "w") as archive:
        for file in [*sorted(files - {without}), *also]:
            archive.writestr(file, "")
    return path


@pytest.mark.parametrize(
    "name",
    [
        LINUX,
        "parse_local-0.1.0-py3-none-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl",
        "parse_local-0.1.0-py3-none-macosx_14_0_arm64.whl",
        "parse_local-0.1.0-py3-none-macosx_14_0_x86_64.whl",
        "parse_local-0.1.0-py3-none-win_amd64.whl",
    ],
)
def test_a_whole_wheel(tmp_path: Path, name: str) -> None:
    found = wheel(tmp_path, name, also=("parse_local.libs/libgomp-f9a9ad78.so.1.0.0",))
    assert check_wheel.problems(found, "0.1.0") == []


def test_what_the_checkout_has_to_install() -> None:
    files = check_wheel.package_files()
    assert {
        "parse_local/py.typed",
        "parse_local/engine.py",
        "parse_local/models/catalog.toml",
        "parse_local/models/profiles/qwen2.5-coder-1.5b.toml",
    } <= files
    assert not [file for file in files if "__pycache__" in file or file.endswith(".so")]


@pytest.mark.parametrize(
    ("without", "also", "problem"),
    [
        ("parse_local/lib/libllama.so", (), "libllama.so is missing from parse_local/lib."),
        ("parse_local/py.typed", (), "parse_local/py.typed is missing."),
        (VENDORED, (), f"{VENDORED} is missing."),
        (
            "",
            ("parse_local.libs/libllama-1a2b3c4d.so",),
            "parse_local.libs/libllama-1a2b3c4d.so is a shared library that should not be there.",
        ),
        (
            "",
            ("lib/libggml.so.0",),
            "lib/libggml.so.0 is a shared library that should not be there.",
        ),
    ],
)
def test_what_is_missing_or_too_much(
    tmp_path: Path, without: str, also: tuple[str, ...], problem: str
) -> None:
    assert check_wheel.problems(wheel(tmp_path, LINUX, without=without, also=also)) == [problem]


def test_a_wheel_of_another_version_or_for_one_python(tmp_path: Path) -> None:
    found = wheel(tmp_path, LINUX)
    assert check_wheel.problems(found, "0.2.0") == [f"{LINUX} is not of version 0.2.0."]
    narrow = wheel(tmp_path, "parse_local-0.1.0-cp312-cp312-linux_x86_64.whl")
    assert "not named as a wheel for any Python 3" in check_wheel.problems(narrow)[0]
