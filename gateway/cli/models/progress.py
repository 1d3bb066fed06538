"""Shows the progress of a pull: bytes, rate, and the part that is on its way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from pagantic_common.client.tables import cell


@contextmanager
def showing_pull(*, is_quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Lend a function that shows the received bytes, the total bytes, and a text; only a terminal gets a line."""
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
            # A transfer that continues is no faster for the bytes that were here before.
            if progress.tasks[0].total is None:
                progress.reset(task, total=size, completed=here, description="pulling")
            # The bytes of a package arrive first, and are read out of it afterwards.
            progress.update(task, completed=max(here, progress.tasks[0].completed), total=size)
            if words:
                progress.update(task, description=cell(words).plain)

        yield show
