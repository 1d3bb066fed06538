"""The engine's wheel in the cache."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.local import engine_wheel
from deploy.local.engine_wheel import TILE_CONFIG, cmake_args, find_built, wheel_folder
from tests.support.needs import COMPILER_FOR_AMX, skip_without

TILES = """
#include <immintrin.h>
struct Config { unsigned char palette = 0, rest[63] = {0}; };
void configure() { Config config = {}; config.palette = 1; config.rest[47] = ROWS; _tile_loadconfig(&config); }
"""


def cxx_flags():
    (flags,) = (arg.partition("=")[2] for arg in cmake_args(cuda=False) if arg.startswith("-DCMAKE_CXX_FLAGS="))
    return flags


def assembly(flags, *, rows):
    """Compile a program that configures AMX; None where there is no compiler for it."""
    command = ["g++", *shlex.split(flags), "-O3", "-mamx-tile", "-mamx-int8", f"-DROWS={rows}"]
    try:
        compiled = subprocess.run(
            [*command, "-S", "-o", "-", "-x", "c++", "-"], input=TILES, text=True, check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return compiled.stdout


@pytest.fixture
def wheel(tmp_path):
    """Return a wheel in the cache with the hash that its build has left."""
    assert find_built(tmp_path) is None
    wheel = tmp_path / "llama_cpp_python-1.0-py3-none-any.whl"
    wheel.write_bytes(b"built")
    wheel.with_suffix(".sha256").write_text(hashlib.sha256(b"built").hexdigest())
    return wheel


def test_a_wheel_that_is_not_what_was_built_is_built_again(tmp_path, wheel):
    assert find_built(tmp_path) == wheel
    assert find_built(tmp_path) == wheel
    wheel.write_bytes(b"other")
    assert find_built(tmp_path) is None
    assert not wheel.exists()


def test_a_wheel_without_a_hash_is_not_believed(tmp_path, wheel):
    wheel.with_suffix(".sha256").unlink()
    assert find_built(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == [], "and gets none"


@pytest.mark.parametrize("name", [".", "llama_cpp_python-1.0-py3-none-any.whl"])
def test_a_wheel_that_others_may_change_is_built_again(tmp_path, wheel, name, monkeypatch):
    path = tmp_path / name
    mode = path.stat().st_mode
    path.chmod(mode | 0o002)
    assert find_built(tmp_path) is None
    wheel.write_bytes(b"built")
    path.chmod(mode)
    assert find_built(tmp_path) == wheel
    monkeypatch.setattr(os, "getuid", lambda: 65534)
    if os.geteuid() != 0:  # what belongs to root is believed
        assert find_built(tmp_path) is None


def test_a_wheel_is_found_by_flags_and_header_wherever_the_checkout_lies(tmp_path, monkeypatch):
    monkeypatch.delenv("PAGANTIC_ENGINE_CMAKE_ARGS", raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    lock = tmp_path / "lock"
    lock.write_text("llama-cpp-python")
    here = wheel_folder(tmp_path, lock, cuda=False)
    (tmp_path / "it's another checkout").mkdir()
    moved = Path(shutil.copy(TILE_CONFIG, tmp_path / "it's another checkout"))
    monkeypatch.setattr(engine_wheel, "TILE_CONFIG", moved)
    assert wheel_folder(tmp_path, lock, cuda=False) == here
    assert shlex.split(cxx_flags())[-1] == str(moved)
    moved.write_text("changed")
    assert wheel_folder(tmp_path, lock, cuda=False) != here
    monkeypatch.undo()
    monkeypatch.setenv("PAGANTIC_ENGINE_CMAKE_ARGS", "-DGGML_CPU_REPACK=OFF")
    assert wheel_folder(tmp_path, lock, cuda=False) != here


def test_the_compiler_keeps_a_whole_tile_configuration(monkeypatch):
    monkeypatch.delenv("PAGANTIC_ENGINE_CMAKE_ARGS", raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    eight, nine = (assembly(cxx_flags(), rows=rows) for rows in (8, 9))
    if eight is None:
        skip_without(COMPILER_FOR_AMX)
    assert eight != nine
