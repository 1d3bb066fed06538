"""Pages are short, their links lead somewhere, their code works, and every setting is on one of them."""

from __future__ import annotations

import ast
import importlib
import json
import re

import pytest
from google.protobuf import json_format

from gateway.http.settings import HttpSettings
from gateway.mcp.settings import McpSettings
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic_common.settings import CallerSettings, InnerSettings, ServiceSettings
from tests.support.pages import ROOT, blocks, pages

AREAS = ("orchestrator", "inference", "constraint", "context", "rerank", "tools")
DOCS = ROOT / "deploy" / "docs"
MAX_LINES = {"README.md": 140, "CHANGELOG.md": 400, "AGENTS.md": 120} | {
    f"{folder}/README.md": 50 for folder in ("deploy/kubernetes", *(f"services/{area}" for area in AREAS))
}
ADVICE = re.compile(r"(Set|Raise|Lower|Change|Leave) \w+ .*\b(when|where|for|on|unless|together|to|as|before)\b")
LINK = re.compile(r"\[[^\]\n]+\]\(([^)\s]+)\)")
MARKDOWN = [page for page in pages() if page.suffix == ".md"]


def own_settings(area):
    module = importlib.import_module(f"services.{area}.settings")
    (cls,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ServiceSettings) and value.__module__ == module.__name__
    ]
    return cls


def rows_of(title):
    """Return the rows of a section of the settings page, each a list of cells."""
    sections = re.split(r"^## ", (DOCS / "settings.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    (section,) = [section for section in sections if section.splitlines()[0] == title]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows if " meaning " not in row]


def settings_of(title):
    """Return the names in the first column of a section of the settings page."""
    return {name for row in rows_of(title) for name in re.findall(r"\b[A-Z][A-Z0-9_]+\b", row[0])}


def upper_names(cls):
    return {name.upper() for name in cls.model_fields}


def anchor(heading):
    """The anchor that Markdown makes of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def anchors(page):
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)}


SHARED = upper_names(CallerSettings) | upper_names(InnerSettings)


@pytest.mark.parametrize("name", MAX_LINES)
def test_a_page_fits_its_length(name):
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= MAX_LINES[name]


@pytest.mark.parametrize("area", AREAS)
def test_the_settings_page_has_exactly_the_settings_of_a_service(area):
    own = upper_names(own_settings(area)) - SHARED
    assert settings_of(area.capitalize()) == own


@pytest.mark.parametrize(("title", "settings"), [("MCP server", McpSettings), ("HTTP gateway", HttpSettings)])
def test_the_settings_page_has_exactly_the_settings_of_a_door(title, settings):
    assert settings_of(title) == upper_names(settings)


def test_the_settings_page_has_exactly_the_settings_that_services_share():
    assert settings_of("Every service") == SHARED


@pytest.mark.parametrize(
    "title", ["Every service", "The commands", *map(str.capitalize, AREAS), "HTTP gateway", "MCP server"]
)
def test_the_settings_page_says_of_each_setting_when_to_change_it(title):
    rows = rows_of(title)
    assert rows
    assert [row for row in rows if len(row) != 4 or not ADVICE.match(row[-1])] == []


def test_the_page_of_tools_has_a_row_with_the_class_of_each_built_in_tool():
    folder, own = ROOT / "services" / "tools" / "adapters" / "builtin", ROOT / "services/orchestrator/core/tools"
    names = {"document_search.py": "search_documents", "asking.py": "ask_user"}
    calls = [
        {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords} | {"file": path.name}
        for path in (*folder.glob("*.py"), *(own / name for name in names))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ToolDefinition"
    ]
    made = {
        names.get(call["file"], call["name"].strip("'")): call["safety"].removeprefix("ToolSafety.").lower()
        for call in calls
    }
    page = (DOCS / "tools.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| (\w+) \| (none|read|write|external) \|", page, flags=re.MULTILINE)) == made


@pytest.mark.parametrize("area", AREAS)
def test_a_services_page_names_its_rpcs_and_links_to_its_settings(area):
    page = (ROOT / "services" / area / "README.md").read_text(encoding="utf-8")
    (service,) = (ROOT / "proto" / "pagantic" / area / "v1").glob("*_service.proto")
    rpcs = set(re.findall(r"^  rpc (\w+)\(", service.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert rpcs <= set(re.findall(r"\w+", page))
    assert f"settings.md#{area}" in page


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page):
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    for path, _, fragment in (link.partition("#") for link in links):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} is not there"
        assert not fragment or fragment in anchors(target), f"{path} has no heading #{fragment}"


def test_the_readme_leads_to_every_page():
    linked = set(LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    assert {str(page.relative_to(ROOT)) for page in MARKDOWN} - {"README.md"} <= linked


def test_llms_txt_leads_to_every_page_of_the_documentation_and_to_nothing_else():
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    title, _, summary, *_ = text.splitlines()
    assert (title, summary[:2]) == ("# pagantic", "> ")
    linked = LINK.findall(text)
    assert len(linked) == len(set(linked))
    assert {f"deploy/docs/{page.name}" for page in DOCS.glob("*.md")} <= set(linked)
    assert [link for link in linked if not (ROOT / link).is_file()] == []


def test_the_readme_leads_to_llms_txt():
    assert "llms.txt" in LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))


def test_the_request_in_the_readme_is_a_request():
    (body,) = re.findall(r"-d '(\{.*?\n\})'", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    request = json_format.Parse(body, execution_pb2.SystemRequest())
    assert json.loads(request.output.schema_json)["required"] == ["color"]


def test_the_plan_on_its_page_is_a_plan():
    (body,) = blocks((DOCS / "plans.md").read_text(encoding="utf-8"), "json")
    plan = json_format.Parse(body, plan_pb2.ExecutionPlan())
    assert [json.loads(step.parameters_json) for step in plan.steps][1] == {"max_tokens": 120}


def test_the_example_without_a_service_prints_what_its_comment_says(capsys):
    (code,) = blocks((DOCS / "output-contracts.md").read_text(encoding="utf-8"), "python")
    exec(compile(code, "output-contracts.md", "exec"), {})  # noqa: S102 (our own page)
    assert capsys.readouterr().out.strip() == code.rpartition("# ")[2].strip()
