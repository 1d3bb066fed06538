"""Build the llama-cpp-python wheel for this CPU once, cache it, and install it. Uses only the standard library.

The cache key covers the lock, the flags, our header, Python and the CPU. A native build for one CPU may contain
instructions that are illegal on another, and pip's own wheel cache ignores CMAKE_ARGS.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

# A bug in some GCC versions makes llama.cpp's AMX kernels crash. This header works around it.
TILE_CONFIG = Path(__file__).resolve().with_name("tile_config.h")
# With AVX512-FP16, llama.cpp's flash attention processes heads of fewer than 128 dimensions one number at a time.
NO_AVX512_FP16 = "-U__AVX512FP16__"
DEFAULT_CMAKE_ARGS = ("-DGGML_NATIVE=ON",)
# LLAVA_BUILD builds the multimodal library, and MTMD_VIDEO would make it start ffmpeg.
BINDING_CMAKE_ARGS = ("-DLLAVA_BUILD=ON", "-DMTMD_VIDEO=OFF")
PROGRESS_INTERVAL_S = 5.0
TAIL_LINES = 30


def cmake_args(*, cuda: bool) -> list[str]:
    """Return the CMake arguments of this build: the defaults, flags for the CPU family, and the user's arguments.

    Of several arguments with the same name, the last takes effect. A user's CMAKE_CXX_FLAGS therefore replaces ours.
    """
    args = list(DEFAULT_CMAKE_ARGS)
    if platform.machine() in ("x86_64", "AMD64"):
        args.append(f"-DCMAKE_C_FLAGS={NO_AVX512_FP16}")
        args.append(f"-DCMAKE_CXX_FLAGS={NO_AVX512_FP16} -include {shlex.quote(str(TILE_CONFIG))}")
    if cuda:
        args.append("-DGGML_CUDA=ON")
    extra = os.environ.get("PAGANTIC_ENGINE_CMAKE_ARGS", "")
    return args + extra.split()


def wheel_args(*, cuda: bool) -> list[str]:
    """Return the CMake arguments of the wheel: the Python binding's arguments, followed by the engine's."""
    return [*BINDING_CMAKE_ARGS, *cmake_args(cuda=cuda)]


def with_header_text(args: list[str]) -> list[str]:
    """Return the arguments with our header's text in place of its path, which differs between checkouts."""
    path, text = shlex.quote(str(TILE_CONFIG)), TILE_CONFIG.read_text(encoding="utf-8")
    return [arg.replace(path, text) for arg in args]


def cpu_identity() -> str:
    """Return the model name and feature flags of the first CPU, or the machine type if /proc/cpuinfo is missing."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    lines = re.findall(r"^(?:model name|flags|Features)\s*:.*$", text.split("\n\n")[0], re.MULTILINE)
    return "\n".join(sorted(lines)) or platform.machine()


def wheel_folder(cache: Path, lock: Path, *, cuda: bool) -> Path:
    """Return the folder that holds the wheel of exactly this build."""
    args = with_header_text(wheel_args(cuda=cuda))
    parts = [lock.read_text(encoding="utf-8"), *args, sysconfig.get_platform(), sys.version.split()[0], cpu_identity()]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache / "engine" / key


def build(folder: Path, lock: Path, *, cuda: bool) -> Path:
    """Build the wheel in `folder`, showing progress. If the build fails, exit with the last lines of its log."""
    device = "this CPU"
    if cuda:
        device = "this CPU and NVIDIA GPUs"
        _require_cuda()
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "build.log"
    print(f"engine: building llama-cpp-python for {device} (5 to 7 minutes on 2 cores, once; log: {log})", flush=True)
    started_s = time.monotonic()
    # scikit-build-core splits a flag that contains spaces unless the list uses shell quoting.
    quoted = shlex.join(wheel_args(cuda=cuda))
    env = {**os.environ, "CMAKE_ARGS": quoted, "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 2)}
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-cache-dir", "--no-deps", "--no-build-isolation"]
    command += ["--require-hashes", "--no-binary", ":all:", "-r", str(lock), "-w", str(folder)]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=env)
        _show_progress(process, log, started_s)
    wheels = sorted(folder.glob("llama_cpp_python-*.whl"))
    if process.returncode != 0 or not wheels:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
        sys.exit("\n".join([*tail, f"engine: the build failed (exit {process.returncode}); whole log: {log}"]))
    print(f"engine: built in {time.monotonic() - started_s:.0f} s", flush=True)
    _hash_file(wheels[-1]).write_text(_hash_of(wheels[-1]), encoding="ascii")
    return wheels[-1]


def _require_cuda() -> None:
    if shutil.which("nvcc") is None and "CUDACXX" not in os.environ:
        sys.exit(
            "engine: CUDA needs its toolkit, and there is no nvcc: put it on PATH, set CUDACXX, or build without CUDA"
        )


def _show_progress(process: subprocess.Popen[bytes], log: Path, started_s: float) -> None:
    """Print each new state of the build until the process ends."""
    shown = ""
    while process.poll() is None:
        time.sleep(PROGRESS_INTERVAL_S)
        state = "unpacking and configuring"
        if steps := re.findall(rb"\[(\d+/\d+)\]", log.read_bytes()):
            state = f"compiled {steps[-1].decode()} files"
        if state != shown:
            print(f"engine: {time.monotonic() - started_s:4.0f} s, {state}", flush=True)
            shown = state


def find_built(folder: Path) -> Path | None:
    """Return the wheel of an earlier build, or None if it is missing, damaged or open to other users.

    The hash file next to the wheel reveals damage, but not a change by a user who may write both files. Their owner is
    therefore checked too.
    """
    wheels = sorted(folder.glob("llama_cpp_python-*.whl"))
    if not wheels:
        return None
    wheel = wheels[-1]
    if not all(map(_is_ours, (folder, wheel))):
        print(f"engine: another user may change {wheel.name} in the cache: it is built again", flush=True)
    elif not _hash_file(wheel).exists():
        print(f"engine: {wheel.name} in the cache has no hash: it is built again", flush=True)
    elif _hash_file(wheel).read_text(encoding="ascii") != _hash_of(wheel):
        print(f"engine: {wheel.name} in the cache has changed since its build: it is built again", flush=True)
    else:
        return wheel
    with contextlib.suppress(OSError):  # The folder may belong to another user.
        wheel.unlink()
    return None


def _is_ours(path: Path) -> bool:
    """Return whether a path belongs to this user or root and is not writable by everyone."""
    status = path.stat()
    return status.st_uid in {os.getuid(), 0} and not status.st_mode & stat.S_IWOTH


def _hash_file(wheel: Path) -> Path:
    return wheel.with_suffix(".sha256")


def _hash_of(wheel: Path) -> str:
    with wheel.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def main() -> None:
    """Find or build the wheel, then install it into the running interpreter's environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--cuda", action="store_true", help="build for NVIDIA GPUs, too; needs nvcc")
    options = parser.parse_args()
    folder = wheel_folder(options.cache, options.lock, cuda=options.cuda)
    wheel = find_built(folder) or build(folder, options.lock, cuda=options.cuda)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--force-reinstall", str(wheel)]
    subprocess.run(command, check=True)
    print(f"engine: installed {wheel.name}", flush=True)


if __name__ == "__main__":
    main()
