"""Files of every format over a real socket, read by real worker processes; also through the command."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from pagantic.context.v1 import context_service_pb2 as pb
from pagantic.context.v1 import file_pb2
from services.context.settings import ContextSettings
from tests.integration.context.test_context_service import policy, serve, serve_inference
from tests.integration.context.test_hostile_files import requests_for
from tests.support.ports import free_ports
from tests.support.sample_files import docx, paragraph, pdf, pptx, row, xlsx

PAGE = (
    "<html><head><title>A page</title><style>p {}</style></head><body><nav>Home<form>Find</form></nav>"
    "<main><h1>Foxes<a class=headerlink>#</a></h1>"
    "<p>The <b>red</b>\n fox.</p><ul><li>one</li><li>two</li></ul><pre># code</pre>"
    "<table><tr><th>name</th><th>legs</th></tr><tr><td>fox</td><td>4</td></tr></table>"
    "<script>evil()</script></main><footer>2026</footer></body></html>"
)
FILES = {
    "a.txt": b"The plain fox.\r\nIt runs.",
    "b.md": b"# Foxes\n\nThe marked fox.\n\n## Dens\n\n" + b"burrow " * 250,
    "c.html": PAGE.encode(),
    "d.pdf": pdf("The printed fox", "The second page", title="Prints", bookmarks=[("Start", 0), ("End", 1)]),
    "two pages.pdf": pdf("vixen " * 150, "cub " * 150, bookmarks=[("Start", 0), ("End", 1)]),
    "e.docx": docx(paragraph("Letters", "Heading1") + paragraph("The written fox.")),
    "f.pptx": pptx(("Talk", "The shown fox"), ("End", "Thanks")),
    "g.xlsx": xlsx(row(1, "animal", "legs") + row(2, "counted fox", "4")),
    "h.json": b'{"animals": [{"name": "structured fox"}]}',
    "i.csv": b"animal,legs\nlisted fox,4\n",
    "j.txt.gz": gzip.compress(b"The packed fox."),
    "k.py": b"fox = 'source'\n",
    "l.txt": "Der Fuchs läuft über die Brücke, schöne Grüße.".encode("utf-16"),
}
TEXTS = {
    "a.txt": "The plain fox.\nIt runs.",
    "c.html": "# Foxes\n\nThe red fox.\n- one\n- two\n\n```\n# code\n```\nname | legs\nfox | 4",
    "d.pdf": "The printed fox\n\nThe second page",
    "e.docx": "# Letters\n\nThe written fox.",
    "f.pptx": "# Talk\n\nThe shown fox\n\n# End\n\nThanks",
    "g.xlsx": "# Prices\nanimal: counted fox; legs: 4",
    "h.json": "animals[0].name: structured fox",
    "i.csv": "animal: listed fox; legs: 4",
    "j.txt.gz": "The packed fox.",
    "k.py": "fox = 'source'",
    "l.txt": "Der Fuchs läuft über die Brücke, schöne Grüße.",
}


@pytest.fixture
async def context(tmp_path):
    async for address in serve_inference():
        (port,) = free_ports(1)
        settings = ContextSettings(port=port, data_folder=tmp_path / "data", inference_address=address)
        async for stub in serve(settings):
            yield stub


async def send(context, files):
    contents = ((name, lambda content=content: content) for name, content in files.items())
    return [response async for response in context.IngestFiles(requests_for(contents))]


async def test_every_format_becomes_text_with_its_pages_and_sections(context):
    *results, end = await send(context, FILES)
    assert [response.file.source for response in results] == list(FILES)
    assert {response.file.outcome for response in results} == {file_pb2.FILE_OUTCOME_ADDED}
    assert (end.summary.added, end.summary.failed) == (len(FILES), 0)
    assert end.summary.collection.chunk_count == sum(response.file.chunk_count for response in results)
    found = await context.Retrieve(pb.RetrieveRequest(query="fox fuchs page burrow thanks vixen cub", policy=policy()))
    for name, text in TEXTS.items():
        assert "".join(text.split()) == "".join(text_of(found.chunks, name).split())
    for chunk in found.chunks:  # the spans are true
        if chunk.source in TEXTS:
            assert TEXTS[chunk.source][chunk.location.start : chunk.location.end] == chunk.content
    pages = {chunk.content.split()[0]: (chunk.location.page, chunk.location.heading) for chunk in found.chunks}
    assert (pages["vixen"], pages["cub"]) == ((1, "Start"), (2, "End"))
    headings = {chunk.location.heading for chunk in found.chunks if chunk.source == "b.md"}
    assert headings >= {"Foxes > Dens"}


def text_of(chunks, source):
    parts = sorted((chunk.location.start, chunk.content) for chunk in chunks if chunk.source == source)
    return " ".join(content for _, content in parts)


async def test_a_file_names_its_title_and_media_type_unless_the_caller_does(context):
    async def requests():
        yield pb.IngestFilesRequest(collection="docs")
        header = file_pb2.FileHeader(source="x", media_type="text/html", metadata_json='{"title": "mine"}')
        yield pb.IngestFilesRequest(header=header)
        yield pb.IngestFilesRequest(content=file_pb2.FilePart(data=PAGE.encode(), is_last=True))

    assert [response async for response in context.IngestFiles(requests())][-1].summary.added == 1
    await send(context, {"y.html": PAGE.replace("red", "grey").encode()})
    found = await context.Retrieve(pb.RetrieveRequest(query="fox", policy=policy()))
    assert {chunk.source: json.loads(chunk.metadata_json) for chunk in found.chunks} == {
        "x": {"title": "mine", "media_type": "text/html"},
        "y.html": {"title": "A page", "media_type": "text/html"},
    }


async def test_files_are_added_replaced_and_left_alone(context):
    (_, first), (changed, _), (same, last) = [
        await send(context, {"a.txt": content}) for content in (b"one", b"two", b"two")
    ]
    outcomes = (changed.file.outcome, same.file.outcome, same.file.chunk_count)
    assert outcomes == (file_pb2.FILE_OUTCOME_REPLACED, file_pb2.FILE_OUTCOME_UNCHANGED, 0)
    assert (first.summary.added, last.summary.unchanged, last.summary.collection.document_count) == (1, 1, 1)


async def test_a_caller_that_leaves_keeps_what_was_reported(context):
    async def endless():
        async for request in requests_for((f"{number}.txt", lambda: b"fox") for number in range(10**6)):
            yield request

    call = context.IngestFiles(endless())
    seen = [(await call.read()).file.source for _ in range(3)]
    call.cancel()
    found = await context.Retrieve(pb.RetrieveRequest(query="fox", policy=policy()))
    assert {chunk.source for chunk in found.chunks} <= set(seen) | {f"{number}.txt" for number in range(100)}
    listed = await context.ListCollections(pb.ListCollectionsRequest())
    assert listed.collections[0].document_count >= len(seen)


async def test_the_command_sends_any_file_and_reports_the_failed_ones(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.pdf").write_bytes(FILES["d.pdf"])
    (folder / "b.md").write_bytes(FILES["b.md"])
    (folder / "c.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    async for address in serve_inference():
        (port,) = free_ports(1)
        async for _ in serve(ContextSettings(port=port, data_folder=tmp_path / "data", inference_address=address)):
            arguments = ["ingest", "docs", str(folder), "--address", f"127.0.0.1:{port}"]
            nothing = await asyncio.to_thread(
                CliRunner().invoke, app, [*arguments[:2], str(folder / "c.png"), *arguments[3:]]
            )
            partly = await asyncio.to_thread(CliRunner().invoke, app, arguments)
            as_json = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--json"])
            whole = await asyncio.to_thread(
                CliRunner().invoke, app, [*arguments[:2], str(folder / "b.md"), *arguments[3:]]
            )
    assert nothing.exit_code == partly.exit_code == as_json.exit_code == 9
    assert "docs: 0 added, 0 replaced, 0 unchanged, 1 failed; now 0 documents, 0 chunks" in nothing.stdout
    assert "docs: 2 added, 0 replaced, 0 unchanged, 1 failed; now 2 documents" in partly.stdout
    assert f"{folder / 'c.png'}: CONFIG_INVALID: the file is a PNG picture" in partly.stderr
    counts = json.loads(as_json.stdout.splitlines()[-1])
    assert (counts["unchanged"], counts["failed"], counts["collection"]["name"]) == (2, 1, "docs")
    assert [one["source"] for one in counts["failures"]] == [f"{folder / 'c.png'}"]
    assert (whole.exit_code, "1 unchanged" in whole.stdout) == (0, True)
