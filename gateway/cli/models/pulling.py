"""`pagantic pull`: gets a model and shows the progress. The pulling code is loaded only when the command runs."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from gateway.cli.completion import words
from gateway.cli.failures import EXIT_USAGE
from gateway.cli.output import UsageError, note, refuse, reporting_errors, say
from pagantic_common.client.tables import cell
from pagantic_common.models.catalog import catalog
from pagantic_common.models.folder import ModelFolder, PulledModel
from pagantic_common.models.settings import ModelSettings, models_folder
from pagantic_common.settings import read_settings
from pagantic_common.storage.installed import has_services

MAX_WAIT_S = 3600.0  # Maximum wait for another pull of the same file.
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


def pull(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A name of the catalog (`pagantic models --catalog`), hf:owner/repo/file.gguf, or …@revision, an "
            "https:// URL, or a file.",
            autocompletion=words(catalog()),
        ),
    ],
    *,
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="Name for the model; else the source's.")] = "",
    sha256: Annotated[str, typer.Option("--sha256", metavar="HEX", help="Expected SHA-256 of the file.")] = "",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, max=3600, help="Longest silence of the source.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the model as JSON.")] = False,
) -> None:
    """Get a model, to serve it by its name.

    If the command is interrupted, the received data is kept, and the same command continues.
    """
    if importlib.util.find_spec("huggingface_hub") is None or importlib.util.find_spec("httpx2") is None:
        typer.echo("this installation pulls no models: `pip install 'pagantic[models]'` brings what it needs", err=True)
        raise typer.Exit(EXIT_USAGE)
    settings, problems = read_settings(ModelSettings)
    if settings is None:
        refuse(problems)
    with reporting_errors():
        if sha256 and not _SHA256.fullmatch(sha256):
            raise UsageError(f"--sha256 {sha256[:80]!r}: it has 64 hexadecimal digits")
        model, is_new = _pull(reference, settings, timeout, name, sha256, is_quiet=as_json)
    _show_pulled(model, is_new=is_new, as_json=as_json)


def _pull(
    reference: str, settings: ModelSettings, silence_s: float, name: str, sha256: str, *, is_quiet: bool
) -> tuple[PulledModel, bool]:
    # Imported only now, because the base package contains the client without the pulling code.
    from gateway.pulling.pull import Pull
    from gateway.pulling.references import source_of

    source = source_of(reference, settings, silence_s)
    with _showing_pull(is_quiet=is_quiet) as on_progress:
        try:
            return Pull(source, ModelFolder(models_folder()), wait_s=MAX_WAIT_S, on_progress=on_progress).run(
                name, sha256
            )
        except KeyboardInterrupt:
            note("interrupted; the same command continues with what has arrived")
            raise


@contextmanager
def _showing_pull(*, is_quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Yield a function that shows received bytes, total bytes and a description on a terminal.

    Elsewhere, the function shows nothing.
    """
    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True, disable=is_quiet or not console.is_terminal) as progress:
        task = progress.add_task("starting", total=None)

        def show(here: int, size: int, words: str) -> None:
            # The bytes that an earlier pull received must not count towards the transfer rate.
            if progress.tasks[0].total is None:
                progress.reset(task, total=size, completed=here, description="pulling")
            # A package is received first and extracted afterwards. `max` keeps the progress from going back.
            progress.update(task, completed=max(here, progress.tasks[0].completed), total=size)
            if words:
                progress.update(task, description=cell(words).plain)

        yield show


def _show_pulled(model: PulledModel, *, is_new: bool, as_json: bool) -> None:
    if as_json:
        file = str(ModelFolder(models_folder()).file_of(model.name))
        say(json.dumps({**model.model_dump(mode="json"), "file": file, "is_new": is_new}, indent=2))
        return
    verb = "pulled" if is_new else "already there:"
    can = " ".join(model.capabilities) or "nothing that can be served"
    say(f"{verb} {model.name} ({model.size_bytes / 1e6:.0f} MB; {can})")
    if has_services():
        note(f"serve it: PAGANTIC_INFERENCE_MODEL_PATH={model.name} pagantic up")
