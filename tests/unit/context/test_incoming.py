"""Files that are received: tenants share the room of the folder for them."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pagantic_common.domain.errors import ErrorCode, Overloaded
from services.context.adapters.reading.incoming import FILES, TemporaryFiles

MAX_BYTES = 1000


def size_of(path):
    return Path(path).stat().st_size


async def test_the_files_of_a_tenant_leave_room_for_those_of_others():
    with TemporaryFiles(MAX_BYTES, has_tenants=True) as files:
        async with AsyncExitStack() as stack:
            for _ in range(FILES // 2):
                await (await stack.enter_async_context(files.open("acme"))).write(b"x" * MAX_BYTES)
            another = await stack.enter_async_context(files.open("acme"))
            with pytest.raises(Overloaded, match="files of 3000 bytes are being received") as refused:
                await another.write(b"x")
            assert refused.value.code is ErrorCode.QUOTA_CONCURRENCY
            async with files.open("beta") as others:
                await others.write(b"x" * MAX_BYTES)
        async with files.open("acme") as later:
            await later.write(b"x" * MAX_BYTES)


async def test_a_single_user_may_take_all_the_room():
    with TemporaryFiles(MAX_BYTES, has_tenants=False) as files:
        async with AsyncExitStack() as stack:
            for _ in range(FILES):
                await (await stack.enter_async_context(files.open("default"))).write(b"x" * MAX_BYTES)
            another = await stack.enter_async_context(files.open("default"))
            with pytest.raises(Overloaded):
                await another.write(b"x")


async def test_a_file_that_is_too_large_is_kept_with_one_byte_more():
    with TemporaryFiles(MAX_BYTES, has_tenants=True) as files:
        async with files.open("acme") as file:
            for _ in range(10):
                await file.write(b"x" * MAX_BYTES)
            assert size_of(file.path) == MAX_BYTES + 1
        async with files.open("acme") as file:
            for _ in range(3):
                await file.write(b"x" * MAX_BYTES)
