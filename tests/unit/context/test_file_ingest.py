"""The ingest of a served folder over a real store and real folders."""

from __future__ import annotations

import errno
import os
from contextlib import closing

from pagantic_common.domain.calls.principal import DEFAULT_TENANT
from services.context.adapters.reading.rooted_folders import RootedFolders
from services.context.adapters.store.collections import SqlSources
from services.context.app.file_ingest import FileIngest
from services.context.core.document import Document
from services.context.core.reading.files import FileOutcome, FolderSelection
from tests.support.context_app import Context, key


async def test_a_root_that_cannot_be_listed_loses_no_document(tmp_path, monkeypatch):
    root = tmp_path / "in"
    root.mkdir()
    with closing(Context(f"sqlite:///{tmp_path / 'context.sqlite3'}")) as context:
        await context.ingest(Document("r/a.txt", "alpha"), Document("r/b/c.txt", "beta"), tenant=DEFAULT_TENANT)
        folders = RootedFolders({"r": root}, max_file_bytes=1000)
        # No file is read here, so nothing keeps or reads one.
        ingest = FileIngest(context.library, SqlSources(context.access), None, None, folders)
        monkeypatch.setattr(os, "scandir", _fail)
        selection = FolderSelection("r", "", "", prunes=True)
        failed, summary = [event async for event in ingest.ingest_folder(key("docs", DEFAULT_TENANT), selection)]
        assert (failed.source, failed.outcome) == ("r", FileOutcome.FAILED)
        assert (summary.pruned, summary.collection.document_count) == (0, 2)


def _fail(_folder):
    raise OSError(errno.ESTALE, "Stale file handle")
