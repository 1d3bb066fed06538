"""Broken and hostile files, sent to a context service in a process of its own: each fails alone, or goes in."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import sys
import time
import zipfile
from io import BytesIO
from pathlib import Path
from unittest.mock import ANY

import grpc
import psutil
import pytest

from pagantic.context.v1 import context_service_pb2 as pb
from pagantic.context.v1 import context_service_pb2_grpc as pb_grpc
from pagantic.context.v1 import file_pb2
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.rpc.call import call_stream
from tests.integration.context.test_context_service import serve_inference
from tests.support.examples import sample
from tests.support.ports import free_ports
from tests.support.sample_files import docx, flate, paragraph, pdf, pdf_of, pptx, row, xlsx
from tests.support.service_process import ROOT

MIB = 1024 * 1024
MAX_READING_S, MAX_READING_MIB = 8, 256
TOO_MUCH = "this takes more than|too little of the processor"  # the latter on a busy machine
MAX_SERVICE_MIB = 700  # the service's own peak; it reads no file itself
PNG = b"\x89PNG\r\n\x1a\n" + bytes(1000)
BILLION = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
LAUGHS = f'<!DOCTYPE d [<!ENTITY e0 "ha">{BILLION}]>'
XXE = '<!DOCTYPE d [<!ENTITY secret SYSTEM "file:///etc/passwd">]>'


def pdf_bomb():
    """Return a PDF whose one page unpacks to a gigabyte."""
    content = flate(b"BT (a) Tj ET\n" * (80 * MIB // 13 * 12))
    page = "<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R>>"
    return pdf_of(["<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Count 1/Kids[3 0 R]>>", page, content])


def pdf_of_pages(count):
    """Return a PDF that claims many pages and has one of them."""
    return pdf("one").replace(b"/Count 1", b"/Count %d" % count)


def zip_bomb():
    """Return a document whose text unpacks to a quarter of a gigabyte."""
    file = BytesIO(docx(paragraph("small")))
    made = zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED, compresslevel=1)
    with made, made.open("word/styles.xml", "w", force_zip64=True) as part:
        for _ in range(256):
            part.write(bytes(MIB))
    return file.getvalue()


def encrypted(archive):
    """Return a ZIP archive whose headers say that each entry is encrypted."""
    marked = bytearray(archive)
    for head, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = marked.find(head)
        while at >= 0:
            marked[at + flags] |= 1
            at = marked.find(head, at + 4)
    return bytes(marked)


def long_line(size):
    """Yield one line of a file in parts."""
    for _ in range(size // MIB):
        yield b"word " * (MIB // 5)


# For each file: its content or the parts of it, and the words of its failure; None for one that goes in.
FILES = {
    "page-bomb.pdf": (pdf_bomb, f"{TOO_MUCH}|has no text"),
    "many-pages.pdf": (lambda: pdf_of_pages(2_000_000), None),
    "cut.pdf": (lambda: pdf("one fox", "two")[:300], "damaged or cut"),
    "encrypted.pdf": (lambda: locked(pdf("secret")), "protected by a password"),
    "no-text.pdf": (lambda: pdf(""), "has no text"),
    "only-head.pdf": (lambda: b"%PDF-1.7", "damaged or cut"),
    "deep.html": (lambda: b"<div>" * 100_000 + b"bottom", TOO_MUCH),
    "many-attributes.html": (lambda: b"<p " + b"a=1 " * 500_000 + b">text</p>", None),
    "open-comment.html": (lambda: b"<p>seen</p><!--" + b"-" * MIB, None),
    "zip-bomb.docx": (zip_bomb, "unpacks to 2"),
    "external-entity.docx": (lambda: docx(paragraph("&secret;"), XXE), "has no text|damaged"),
    "billion-laughs.docx": (lambda: docx(paragraph("&e9;"), LAUGHS), f"damaged|{TOO_MUCH}"),
    "deep.docx": (lambda: docx("<w:sdt>" * 20_000 + "</w:sdt>" * 20_000), f"damaged|has no text|{TOO_MUCH}"),
    "no-parts.docx": (lambda: docx("").replace(b"word/document.xml", b"word/documenq.xml"), "damaged"),
    "empty-rows.xlsx": (
        lambda: xlsx("".join(f'<row r="{n}"/>' for n in range(1, 1_000_000))),
        f"has no text|{TOO_MUCH}",
    ),
    "far-cell.xlsx": (lambda: xlsx(row(1, "name") + row(1_048_576, "far").replace("A1048576", "XFD1048576")), None),
    "laughing-slide.pptx": (lambda: pptx(("t", "&e9;"), head=LAUGHS), "damaged"),
    "encrypted.docx": (lambda: encrypted(docx(paragraph("fox"))), "encrypted"),
    "not-a-zip.docx": (lambda: b"PK\x03\x04" + os.urandom(5000), "damaged or cut"),
    "jar.docx": (lambda: zip_of("META-INF/MANIFEST.MF"), "is a ZIP archive"),
    "latin.txt": (lambda: "Größe und Überfluß, ein Café für müde Füße.".encode("latin-1") * 20, None),
    "wrong-mark.txt": (lambda: b"\xff\xfe" + b"a" * 1001, None),
    "random.txt": (lambda: os.urandom(100_000), "no text of a known encoding|too many control"),
    "nul.txt": (lambda: b"one fox " * 200 + b"\0" + b"two foxes " * 200, None),
    "only-nul.txt": (lambda: bytes(10_000), "too many control characters"),
    "huge-line.txt": (lambda: long_line(100 * MIB), "67108865 bytes or more"),
    "long-line.txt": (lambda: long_line(8 * MIB), "characters or more, at most 2000000"),
    "bomb.txt.gz": (lambda: gzip.compress(bytes(50 * MIB)), "more than 200 times its size|bytes or more"),
    "cut.txt.gz": (lambda: gzip.compress(b"fox " * 1000)[:-20], "is cut"),
    "nested.txt.gz": (lambda: gzip.compress(gzip.compress(b"fox")), "another one in it"),
    "picture.md": (lambda: PNG, "a PNG picture"),
    "deep.json": (lambda: b"[" * 100_000 + b"]" * 100_000, None),
    "many-keys.json": (lambda: json.dumps({"k" * 1000: {str(n): n for n in range(20_000)}}).encode(), "2000000"),
    "wide.csv": (lambda: b"name,text\nfox," + b"x" * 10 * MIB, "characters or more"),
    "many-headings.md": (lambda: b"# a\n" * 20_000, None),
    "nested-quotes.md": (lambda: b">" * 200_000 + b" deep", None),
    "open-links.md": (lambda: b"[" * 200_000, None),
    "empty.txt": (lambda: b"", "the file is empty"),
    "empty.txt.gz": (lambda: gzip.compress(b""), "the file is empty"),
    "name\nof two lines.txt": (lambda: b"fox", "printable characters"),
    "../../etc/passwd": (lambda: b"a label, no path", None),
}
SENT = dict(sample(FILES.items(), 10))


def zip_of(*names):
    """Return an archive of empty files."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name in names:
            made.writestr(name, b"")
    return file.getvalue()


def locked(body):
    """Return a PDF that asks for a password."""
    lock = f"<</Filter/Standard/V 1/R 2/P -4/O<{'41' * 32}>/U<{'42' * 32}>>>"
    objects = body[: body.index(b"xref\n")].split(b"endobj\n")[:-1]
    bodies = [one.split(b" obj\n", 1)[1].rstrip(b"\n") for one in objects]
    number = len(bodies) + 1
    return pdf_of([*bodies, lock], f"/Encrypt {number} 0 R/ID[<{'43' * 16}><{'43' * 16}>]")


@contextlib.asynccontextmanager
async def service(folder, **settings):
    """Run a context service in a process of its own, and give its stub and its process."""
    (port,) = free_ports(1)
    async for inference in serve_inference():
        values = {
            "port": port,
            "data_folder": folder / "data",
            "inference_address": inference,
            "embedding_model": "",
            "workers": 2,
            "max_reading_s": MAX_READING_S,
            "max_reading_mib": MAX_READING_MIB,
            **settings,
        }
        environment = {f"PAGANTIC_CONTEXT_{name.upper()}": str(value) for name, value in values.items()}
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "services.context", cwd=ROOT, env=os.environ | environment, stdout=log, stderr=log
            )
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await asyncio.wait_for(channel.channel_ready(), 60)
                yield pb_grpc.ContextServiceStub(channel), psutil.Process(process.pid)
        except BaseException as error:
            error.add_note((folder / "log").read_text(errors="replace")[-4000:])
            raise
        finally:
            process.terminate()
            await process.wait()


async def requests_for(files, collection="docs"):
    yield pb.IngestFilesRequest(collection=collection)
    for name, content in files:
        yield pb.IngestFilesRequest(header=file_pb2.FileHeader(source=name))
        for part in parts_of(content()):
            yield pb.IngestFilesRequest(content=file_pb2.FilePart(data=part))
        yield pb.IngestFilesRequest(content=file_pb2.FilePart(is_last=True))


def parts_of(content):
    if isinstance(content, bytes):
        return [content[start : start + MIB] for start in range(0, len(content), MIB)]
    return content


def beside_good_ones(files):
    for number, (name, (content, _)) in enumerate(files.items()):
        yield name, content
        yield f"good-{number}.md", lambda number=number: f"# Good\n\nThe lighthouse number {number}.".encode()


@pytest.mark.sampled
@pytest.mark.timeout(300)
async def test_hostile_files_fail_alone_and_the_files_beside_them_go_in(tmp_path):
    table, results = [], {}
    async with service(tmp_path) as (stub, process):
        before_s = time.monotonic()
        async for response in call_stream("context", stub.IngestFiles, requests_for(beside_good_ones(SENT))):
            if response.HasField("summary"):
                summary = response.summary
                break
            results[response.file.source] = response.file
            if not response.file.source.startswith("good-"):
                outcome = file_pb2.FileOutcome.Name(response.file.outcome).removeprefix("FILE_OUTCOME_")
                table.append((response.file.source, outcome, time.monotonic() - before_s, response.file.error.message))
            before_s = time.monotonic()
        peak_mib = peak_mib_of(process)
        workers = [child for child in process.children() if child.is_running()]
        listed = await stub.ListCollections(pb.ListCollectionsRequest())
    sys.stdout.writelines(f"{name!r:32} {end:9} {took_s:6.2f} s  {why[:90]}\n" for name, end, took_s, why in table)
    sys.stdout.write(f"peak of the service: {peak_mib:.0f} MiB, {len(workers)} workers\n")
    good = [result for name, result in results.items() if name.startswith("good-")]
    assert [result.outcome for result in good] == [file_pb2.FILE_OUTCOME_ADDED] * len(SENT)
    wrong = {name: results[name] for name, (_, failure) in SENT.items() if not is_expected(results[name], failure)}
    assert not wrong
    assert (summary.failed, len(workers)) == (sum(1 for _, failure in SENT.values() if failure), 2)
    assert listed.collections[0].document_count == summary.added
    assert peak_mib < MAX_SERVICE_MIB


def is_expected(result, failure):
    if failure is None:
        return result.outcome == file_pb2.FILE_OUTCOME_ADDED
    is_failed = result.outcome == file_pb2.FILE_OUTCOME_FAILED and result.error.code
    return is_failed and any(words in result.error.message for words in failure.split("|"))


def peak_mib_of(process):
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1024


async def test_a_folder_gives_only_its_own_regular_files(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "in" / "deep").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.txt").write_text("secret", encoding="utf-8")
    (root / "a.md").write_text("# A\n\nThe fox.", encoding="utf-8")
    (root / "in" / "deep" / "b.txt").write_text("The dog.", encoding="utf-8")
    (root / ".hidden.txt").write_text("hidden", encoding="utf-8")
    (root / "link.txt").symlink_to(outside / "secret.txt")
    (root / "folder").symlink_to(outside)
    (root / "two\nlines.txt").write_text("named badly", encoding="utf-8")
    (root / "...").write_text("dots", encoding="utf-8")
    os.mkfifo(root / "pipe.txt")
    async with service(tmp_path, ingest_roots=json.dumps({"docs": str(root)})) as (stub, _):
        outcomes, summary = await ingest_folder(stub, root="docs")
        assert outcomes == {"docs/a.md": "ADDED", "docs/in/deep/b.txt": "ADDED", "docs/two\nlines.txt": "FAILED"}
        assert (summary.added, summary.failed, summary.collection.document_count) == (2, 1, 2)
        assert await ingest_folder(stub, root="docs", glob="*.md") == ({"docs/a.md": "UNCHANGED"}, ANY)
        for path in ("../outside", "/etc", "in/../../outside"):
            with pytest.raises(grpc.aio.AioRpcError, match="leads out of its root"):
                await ingest_folder(stub, root="docs", path=path)
        with pytest.raises(grpc.aio.AioRpcError, match="it is a link"):
            await ingest_folder(stub, root="docs", path="folder")
        with pytest.raises(grpc.aio.AioRpcError, match="no folder is named 'other': the folders are 'docs'"):
            await ingest_folder(stub, root="other")


async def test_pruning_deletes_only_documents_whose_files_are_gone(tmp_path):
    for name in ("a.md", "in/b.md", "in/c.txt", "out/d.md"):
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(f"The file {name}.", encoding="utf-8")
    async with service(tmp_path, ingest_roots=json.dumps({"docs": str(tmp_path / "root")})) as (stub, _):
        await ingest_folder(stub, root="docs")
        await stub.Ingest(pb.IngestRequest(collection="docs", documents=[{"source": "elsewhere/in/x", "content": "x"}]))
        for name in ("in/b.md", "in/c.txt", "out/d.md"):
            (tmp_path / "root" / name).unlink()
        (tmp_path / "root" / "a.md").write_text("no more text \0" * 100, encoding="utf-8")
        assert (await ingest_folder(stub, root="docs"))[1].pruned == 0
        assert (await ingest_folder(stub, root="docs", path="in", glob="*.md", prune=True))[1].pruned == 1
        _, summary = await ingest_folder(stub, root="docs", path="in", prune=True)
        assert (summary.pruned, summary.collection.document_count) == (1, 3)  # a.md, out/d.md and the other one


async def test_without_roots_no_folder_is_read(tmp_path):
    async with service(tmp_path) as (stub, _):
        with pytest.raises(grpc.aio.AioRpcError, match="PAGANTIC_CONTEXT_INGEST_ROOTS") as refused:
            await ingest_folder(stub, root="docs")
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def ingest_folder(stub, **fields):
    outcomes = {}
    async for response in stub.IngestFolder(pb.IngestFolderRequest(collection="docs", **fields)):
        if response.HasField("summary"):
            return outcomes, response.summary
        outcomes[response.file.source] = file_pb2.FileOutcome.Name(response.file.outcome).removeprefix("FILE_OUTCOME_")
    raise AssertionError("the stream has no summary")


async def test_a_stream_that_breaks_the_order_is_refused_and_what_was_stored_stays(tmp_path):
    good = pb.IngestFilesRequest(header=file_pb2.FileHeader(source="good.txt"))
    part = pb.IngestFilesRequest(content=file_pb2.FilePart(data=b"The fox.", is_last=True))
    opened = pb.IngestFilesRequest(content=file_pb2.FilePart(data=b"The"))
    start = pb.IngestFilesRequest(collection="docs")
    async with service(tmp_path) as (stub, _):
        for wrong, words in (
            ([part], "without a header"),
            ([good, opened, good], "'good.txt' has no end"),
            ([good, opened], "'good.txt' has no end"),
            ([start], "neither a header nor content"),
        ):
            with pytest.raises(InvalidRequest, match=words):
                await send(stub, [start, good, part, *wrong])
        with pytest.raises(InvalidRequest, match="does not match"):
            await send(stub, [good, part])
        listed = await stub.ListCollections(pb.ListCollectionsRequest())
        assert [one.document_count for one in listed.collections] == [1]


async def send(stub, messages):
    async def requests():
        for one in messages:
            yield one

    return [response async for response in call_stream("context", stub.IngestFiles, requests())]
