"""Commands that list, load, unload and delete models."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import grpc
import typer

from gateway.cli import options
from gateway.cli.completion import PULLED, names_of
from gateway.cli.models.listing import catalog_table, models_table, rows_of, size_text
from gateway.cli.operator_token import operator_credentials
from gateway.cli.output import UsageError, note, print_json, reporting_errors, say, show
from gateway.cli.tree import PlainCommand
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as pb_grpc
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.domain.errors import Unreachable
from pagantic_common.models.catalog import catalog
from pagantic_common.models.folder import ModelFolder
from pagantic_common.models.settings import models_folder
from pagantic_common.rpc.access.tls.calling import find_target
from pagantic_common.rpc.call import call_unary

LIST_TIMEOUT_S = 10.0
LOAD_TIMEOUT_S = 300.0
ReplyT = TypeVar("ReplyT")

InferenceAddress = Annotated[
    str,
    typer.Option(metavar="HOST:PORT", envvar="PAGANTIC_INFERENCE_ADDRESS", help="Address of the inference service."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the model.", autocompletion=names_of("models"))]

models = typer.Typer(
    help="List, load and unload models.",
    invoke_without_command=True,
)


def rm(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Name of the model.", autocompletion=names_of(PULLED))
    ] = "",
    *,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Delete what interrupted pulls left.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was deleted as JSON.")] = False,
) -> None:
    """Delete a pulled model, or files of interrupted pulls.

    A model that a service of this machine serves stays, and so does the partial file of a running pull.
    """
    with reporting_errors():
        folder = ModelFolder(models_folder())
        if bool(name) == unfinished:
            raise UsageError("give the name of a model, or --unfinished")
        if unfinished:
            freed = folder.remove_unfinished()
            say(json.dumps({"freed_bytes": freed}) if as_json else f"deleted {size_text(freed)} of unfinished pulls")
            return
        removed = folder.remove(name, LIST_TIMEOUT_S)
    if as_json:
        say(json.dumps(removed.model_dump(mode="json"), indent=2))
        return
    say(f"deleted {removed.name} ({size_text(removed.size_bytes)})")


@models.callback()
def list_models(
    context: typer.Context,
    *,
    from_catalog: Annotated[bool, typer.Option("--catalog", help="List what `pull` knows by a short name.")] = False,
    timeout: options.Timeout = LIST_TIMEOUT_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    address: InferenceAddress = options.INFERENCE,
) -> None:
    """List the models that a request may name with --model, and the pulled models."""
    if context.invoked_subcommand is not None:
        return
    if from_catalog:
        _show_catalog(as_json=as_json)
        return
    with reporting_errors():
        folder = ModelFolder(models_folder())
        pulled = folder.models()
        listed = _ask_system(address, timeout, is_needed=not pulled)
    rows = rows_of(pulled, listed)
    if as_json:
        say(json.dumps({"system": address if listed else None, "models": [row.as_json() for row in rows]}, indent=2))
        return
    show(models_table(rows))
    if listed is None:
        note(f"no system runs at {address}: these are the pulled models, of {folder.path}")
    if unfinished := folder.unfinished_bytes():
        note(f"unfinished pulls hold {size_text(unfinished)}: pull again to continue, or `pagantic rm --unfinished`")


@models.command("load", cls=PlainCommand)
def load_model(
    name: Name,
    *,
    timeout: options.Timeout = LOAD_TIMEOUT_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print the model as JSON.")] = False,
    address: InferenceAddress = options.INFERENCE,
) -> None:
    """Load a model of the running system, before a request needs it."""
    request = pb.LoadModelRequest(model=name)
    with reporting_errors():
        reply = _call(address, lambda stub: stub.LoadModel, request, timeout)
    if as_json:
        print_json(reply.model)
        return
    say(f"loaded {reply.model.name}")


@models.command("unload", cls=PlainCommand)
def unload_model(
    name: Name,
    *,
    timeout: options.Timeout = LOAD_TIMEOUT_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print whether it was loaded as JSON.")] = False,
    address: InferenceAddress = options.INFERENCE,
) -> None:
    """Unload a model of the running system; its next request loads it again."""
    request = pb.UnloadModelRequest(model=name)
    with reporting_errors():
        reply = _call(address, lambda stub: stub.UnloadModel, request, timeout)
    if as_json:
        say(json.dumps({"name": name, "was_loaded": reply.was_loaded}))
        return
    say(f"unloaded {name}" if reply.was_loaded else f"{name} was not loaded")


def _show_catalog(*, as_json: bool) -> None:
    catalog_models = list(catalog().values())
    if as_json:
        say(json.dumps({"models": [model.model_dump(mode="json") for model in catalog_models]}, indent=2))
        return
    show(catalog_table(catalog_models))


def _ask_system(address: str, timeout_s: float, *, is_needed: bool) -> pb.ListModelsResponse | None:
    """Return the models that a system serves.

    If no system runs, the function returns None, or raises Unreachable if `is_needed` is set.
    """
    request = pb.ListModelsRequest()
    try:
        return _call(address, lambda stub: stub.ListModels, request, timeout_s)
    except Unreachable:
        if is_needed:
            raise
        return None


def _call(
    address: str,
    method_of: Callable[[pb_grpc.InferenceServiceAsyncStub], grpc.aio.UnaryUnaryMultiCallable[Any, ReplyT]],
    request: Any,
    timeout_s: float,
) -> ReplyT:
    """Call the inference service of a running system. Raises PaganticError if the call fails."""

    async def run() -> ReplyT:
        target = find_target(address, os.environ)
        async with target.open(MAX_MESSAGE_BYTES) as channel:
            stub: pb_grpc.InferenceServiceAsyncStub = pb_grpc.InferenceServiceStub(channel)
            credentials = operator_credentials("inference", target)
            return await call_unary("inference", method_of(stub), request, timeout_s, credentials=credentials)

    return asyncio.run(run())
