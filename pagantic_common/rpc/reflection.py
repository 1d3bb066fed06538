"""Server reflection that keeps the comments of the proto files, so that `grpcurl describe` reads as documentation.

The descriptors in generated Python code have no comments. The comments come from the descriptor set next to that code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from grpc_reflection.v1alpha._async import ReflectionServicer


@cache
def _commented_files() -> dict[str, descriptor_pb2.FileDescriptorProto]:
    data = resources.files("pagantic").joinpath("descriptors.binpb").read_bytes()
    return {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(data).file}


class _CommentedFile:
    """A file descriptor for reflection: it has a name, dependencies and CopyToProto."""

    def __init__(self, plain: Any) -> None:
        self.name: str = plain.name
        self.dependencies = [_CommentedFile(dependency) for dependency in plain.dependencies]
        self._plain = plain

    def CopyToProto(self, proto: descriptor_pb2.FileDescriptorProto) -> None:  # noqa: N802 - protobuf's name
        if (commented := _commented_files().get(self.name)) is not None:
            proto.CopyFrom(commented)
        else:
            self._plain.CopyToProto(proto)


class _CommentedPool:
    """The default descriptor pool, with comments."""

    def __init__(self) -> None:
        self._pool: Any = descriptor_pool.Default()

    def FindFileByName(self, name: str) -> _CommentedFile:  # noqa: N802 - protobuf's name
        return _CommentedFile(self._pool.FindFileByName(name))

    def FindFileContainingSymbol(self, symbol: str) -> _CommentedFile:  # noqa: N802 - protobuf's name
        return _CommentedFile(self._pool.FindFileContainingSymbol(symbol))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


def add_reflection(server: grpc.aio.Server, service_names: Sequence[str]) -> None:
    """Serve reflection for the named services."""
    servicer = ReflectionServicer((*service_names, reflection.SERVICE_NAME), pool=_CommentedPool())
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
