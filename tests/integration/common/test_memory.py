import subprocess
import sys

import pytest

FREES_MUCH = """
import asyncio, ctypes, psutil
from pagantic_common.rpc.process import program

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def mib():
    return psutil.Process().memory_info().rss / 2**20

async def main():
    blocks = [libc.malloc(60_000) for _ in range(2_000)]
    for block in blocks:
        ctypes.memset(block, 1, 60_000)
    full = mib()
    for block in blocks[:-1]:  # the last one holds the end of the heap, as whatever lives longer does
        libc.free(block)
    kept = mib()
    program.RETURN_INTERVAL_S = 0.01
    returning = asyncio.create_task(program.return_freed_memory())
    await asyncio.sleep(1)
    print(full - kept, kept - mib())
    returning.cancel()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_freed_memory_goes_back_to_the_system():
    done = subprocess.run([sys.executable, "-c", FREES_MUCH], capture_output=True, text=True, check=True, timeout=60)
    went_at_once, went_later = map(float, done.stdout.split())
    assert went_at_once < 10
    assert went_later > 90
