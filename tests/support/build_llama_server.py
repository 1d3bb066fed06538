"""`python -m tests.support.build_llama_server`: builds llama.cpp's own server from the sources that the engine has.

It prints the path of the program, which stays in the cache folder for the next call.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from deploy.local.engine_wheel import cmake_args, with_header_text

NEEDLESS = ("TESTS", "EXAMPLES", "MTMD", "UI", "WEBUI")
# Only the Python binding reads LLAVA_BUILD. It stays, since the options name the folder of what is built.
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    *(f"-DLLAMA_BUILD_{name}=OFF" for name in NEEDLESS),
    "-DLLAVA_BUILD=OFF",
)


def find_or_build(cache, lock, *, cuda=False):
    """Return the program, which is built when the cache does not have it."""
    options = [*OPTIONS, *cmake_args(cuda=cuda)]
    parts = [lock.read_text(encoding="utf-8"), *with_header_text(options)]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    program = cache / "llama-server" / key / "llama-server"
    if program.is_file():
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    log = program.with_name("build.log")
    sys.stderr.write(f"llama-server: building it (10 to 30 minutes on 2 cores, once; log: {log})\n")
    with tempfile.TemporaryDirectory() as folder, log.open("wb") as sink:
        built = _build(Path(folder), lock, options, sink)
        partial = program.with_name("llama-server.partial")
        shutil.copy2(built, partial)
        partial.rename(program)
    return program


def _build(folder, lock, options, sink):
    def run(*command):
        subprocess.run(command, check=True, stdout=sink, stderr=subprocess.STDOUT)

    pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:")
    run(*pip, "--require-hashes", "-r", str(lock), "-d", str(folder))
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        sources.extractall(folder, filter="data")
    (source,) = folder.glob("*/vendor/llama.cpp")
    run("cmake", "-S", str(source), "-B", str(folder / "build"), *options)
    run("cmake", "--build", str(folder / "build"), "--target", "llama-server", "-j", str(os.cpu_count() or 2))
    return folder / "build" / "bin" / "llama-server"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--cuda", action="store_true", help="for NVIDIA GPUs; needs nvcc")
    arguments = parser.parse_args()
    sys.stdout.write(f"{find_or_build(arguments.cache, arguments.lock, cuda=arguments.cuda)}\n")


if __name__ == "__main__":
    main()
