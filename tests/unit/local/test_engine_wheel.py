"""The engine's wheel in the cache."""

import platform
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.local import engine_wheel
from deploy.local.engine_wheel import TILE_CONFIG, cmake_args, find_built, wheel_folder, without_folders

TILES = """
#include <immintrin.h>
struct Config { unsigned char palette = 0, rest[63] = {0}; };
void configure() { Config config = {}; config.palette = 1; config.rest[47] = 8; _tile_loadconfig(&config); }
"""


def test_a_wheel_that_is_not_what_was_built_is_built_again(tmp_path):
    assert find_built(tmp_path) is None
    wheel = tmp_path / "llama_cpp_python-1.0-py3-none-any.whl"
    wheel.write_bytes(b"built")
    assert find_built(tmp_path) == wheel
    assert find_built(tmp_path) == wheel
    wheel.write_bytes(b"other")
    assert find_built(tmp_path) is None
    assert not wheel.exists()


def test_a_wheel_is_found_by_the_flags_wherever_the_checkout_lies(tmp_path, monkeypatch):
    lock = tmp_path / "lock"
    lock.write_text("llama-cpp-python")
    here = wheel_folder(tmp_path, lock, cuda=False)
    (tmp_path / "another checkout").mkdir()
    moved = Path(shutil.copy(TILE_CONFIG, tmp_path / "another checkout"))
    monkeypatch.setattr(engine_wheel, "TILE_CONFIG", moved)
    assert wheel_folder(tmp_path, lock, cuda=False) == here
    assert str(tmp_path) not in " ".join(without_folders(cmake_args(cuda=False)))
    monkeypatch.setenv("PAGANTIC_ENGINE_CMAKE_ARGS", "-DGGML_NATIVE=OFF")
    assert wheel_folder(tmp_path, lock, cuda=False) != here


@pytest.mark.skipif(platform.machine() != "x86_64" or shutil.which("g++") is None, reason="needs g++ for x86-64")
def test_the_compiler_knows_that_a_whole_tile_configuration_is_read(tmp_path):
    (flags,) = (arg.partition("=")[2] for arg in cmake_args(cuda=False) if arg.startswith("-DCMAKE_CXX_FLAGS="))
    command = ["g++", *shlex.split(flags), "-O3", "-mamx-tile", "-mamx-int8", "-S", "-o", "-", "-x", "c++", "-"]
    assembly = subprocess.run(command, input=TILES, text=True, check=True, capture_output=True).stdout
    assert "tile_config.h" in assembly.partition("ldtilecfg")[0].splitlines()[-2]
