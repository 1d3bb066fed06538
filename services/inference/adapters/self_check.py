"""Finds out, in a child process, whether this build of llama.cpp can decode on this CPU.

A build for a CPU whose matrix units the virtual machine does not let us use dies with a signal on the first large
batch; without the extra buffer types it lives. Run as a module it decodes one batch and exits.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.domain.messages import ModelInfo
from pagantic_common.telemetry.logging import get_logger
from services.inference.adapters.llama_cpp_engine import EngineOptions, LlamaCppEngine
from services.inference.core.batch import Slice

CHECK_TOKENS = 64
CHECK_CONTEXT_TOKENS = 128
CHECK_TIMEOUT_S = 300.0

log = get_logger(__name__)


async def choose_options(path: Path, options: EngineOptions) -> EngineOptions:
    """Return `options`, without extra buffer types if only so it lives. Raises PreconditionFailed if it dies anyway."""
    exit_code = await _run_child(path, options)
    if exit_code >= 0:  # lived; a model that does not load is told of by the parent, in its own words
        return options
    reduced = replace(options, use_extra_bufts=False)
    if await _run_child(path, reduced) == 0:
        log.warning("the engine dies on this CPU with extra buffer types and runs without them", exit_code=exit_code)
        return reduced
    raise PreconditionFailed(
        f"the engine dies on this machine (exit {exit_code}) while it decodes {path.name!r}: rebuild it with "
        "PAGANTIC_ENGINE_CMAKE_ARGS=-DGGML_NATIVE=OFF, or try another model file",
        code=ErrorCode.CONFIG_NO_ENGINE,
    )


async def _run_child(path: Path, options: EngineOptions) -> int:
    extra = "1" if options.use_extra_bufts else "0"
    command = [sys.executable, "-m", __name__, str(path), extra, str(options.gpu_layers)]
    child = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
    try:
        return await asyncio.wait_for(child.wait(), CHECK_TIMEOUT_S)
    except (TimeoutError, asyncio.CancelledError):
        child.kill()
        await child.wait()
        raise


def main(path: str, extra: str, gpu_layers: str) -> None:
    """Decode one batch and exit; a build that does not fit dies here."""
    options = EngineOptions(
        context_tokens=CHECK_CONTEXT_TOKENS,
        kv_tokens=CHECK_CONTEXT_TOKENS,
        use_extra_bufts=extra == "1",
        gpu_layers=int(gpu_layers),
    )
    engine = LlamaCppEngine(Path(path), ModelInfo("self-check", CHECK_CONTEXT_TOKENS), options)
    engine.decode([Slice(0, [1] * CHECK_TOKENS, 0, 1)])
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
