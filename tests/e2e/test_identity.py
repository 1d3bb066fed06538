"""API keys as an operator and a caller use them: a real orchestrator, and the commands."""

import json
import sqlite3
import time
import uuid
from contextlib import closing

import grpc
import pytest
from joserfc.jwk import ECKey

from pagantic.orchestrator.v1 import execution_pb2, key_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from pagantic_common.domain.defaults import EMBEDDING_MODEL
from pagantic_common.telemetry.names import ERROR_DOMAIN
from tests.e2e.test_kill_orchestrator import connected
from tests.support.identity_provider import AUDIENCE, IdentityProvider
from tests.support.killing import wait_until
from tests.support.live_requests import STORY, request, say
from tests.support.service_process import ServiceProcess
from tests.support.taxonomy import ACCESS, told_by

ANYWHERE = "0.0.0.0"  # noqa: S104 - no service comes to listen there


class Guarded:
    """An orchestrator of its own beside a system whose callers need keys, and the commands against it."""

    def __init__(self, system, folder, **settings):
        self.system = system
        self.admin = system.admin
        self.log = folder / "log"
        journal = f"sqlite:///{folder / 'journal.sqlite3'}"
        self.process = ServiceProcess(
            "orchestrator",
            system,
            self.log,
            journal_url=journal,
            metrics_port=0,
            **settings,
        )

    def run(self, *command, key, **more):
        """Run a command with a key, "" for none."""
        environment = dict(self.system.environment)
        self.system.environment |= {"PAGANTIC_API_KEY": key, "PAGANTIC_ADDRESS": self.process.address}
        self.system.environment.pop("PAGANTIC_CONTEXT_ADDRESS")
        try:
            return self.system.run("pagantic", *command, **more)
        finally:
            self.system.environment = environment

    def create(self, name, *options):
        """Create a key; returns its id and its text."""
        created = json.loads(self.run("keys", "create", name, "--json", *options, key=self.admin).stdout)
        return created["key"]["key_id"], created["text"]


def bearer(key):
    return (("authorization", f"Bearer {key}"),)


@pytest.fixture
def guarded(keyed, tmp_path):
    made = Guarded(keyed, tmp_path)
    with made.process:
        yield made


def test_an_operator_lets_a_caller_in_and_shuts_it_out_again(guarded):
    refused = guarded.run("chat", "hi", key="", check=False)
    assert refused.returncode == 3
    assert "AUTH_MISSING" in refused.stderr
    assert "PAGANTIC_API_KEY_FILE" in refused.stderr
    key_id, text = guarded.create("billing", "--tenant", "acme", "--expires", "90d")
    chat = ("chat", "Say hello.", "--max-tokens", "8", "--request-id", "first", "--session", "talk")
    assert guarded.run(*chat, key=text).stdout.strip()
    assert "first" in guarded.run("executions", key=text).stdout
    denied = guarded.run("keys", "list", key=text, check=False)
    assert denied.returncode == 3
    assert "AUTH_DENIED" in denied.stderr
    assert "'admin'" in denied.stderr
    listed = guarded.run("keys", "list", key=guarded.admin).stdout
    assert all(word in listed for word in (key_id, "acme", "billing", "execute, read", "valid until"))
    guarded.run("keys", "revoke", key_id, key=guarded.admin)
    ended = guarded.run("chat", "hi", key=text, check=False)
    assert "AUTH_INVALID" in ended.stderr
    assert "revoked" not in ended.stderr
    assert "revoked" in guarded.run("keys", "list", key=guarded.admin).stdout
    log = guarded.log.read_text()
    assert "the key is revoked" in log
    for secret in (text, guarded.admin):
        assert secret.split("_")[2] not in log


def test_two_tenants_see_nothing_of_each_other(guarded):
    keys = [
        guarded.create(name, "--tenant", name, "--scopes", "execute,read,write,usage")[1] for name in ("acme", "beta")
    ]
    for key in keys:
        guarded.run("chat", "Say hello.", "--max-tokens", "8", "--request-id", "r", "--session", "s", key=key)
    guarded.run("sessions", "delete", "s", key=keys[0])
    assert guarded.run("show", "r", key=keys[0], check=False).returncode == 3
    assert guarded.run("show", "r", key=keys[1]).stdout.strip()
    assert "user: Say hello." in guarded.run("sessions", "show", "s", key=keys[1]).stdout


@pytest.mark.whole
def test_a_caller_of_a_tenant_has_a_budget_and_usage_of_its_own(guarded):
    scopes = ("--tenant", "acme", "--scopes", "execute,read,usage")
    ci, web = (guarded.create(name, *scopes)[1] for name in ("ci", "web"))
    limit = ("budgets", "set", "acme", "--subject", "ci")
    assert "ci" in guarded.run(*limit, "--tokens", "1", "--per", "minute", key=guarded.admin).stdout
    chat = ("chat", "Say hello.", "--max-tokens", "8")
    refused = guarded.run(*chat, key=ci, check=False)
    assert "QUOTA_BUDGET" in refused.stderr
    assert "subject 'ci' of tenant 'acme'" in refused.stderr
    assert guarded.run(*chat, key=web).stdout.strip()
    assert "has no budget" in guarded.run("budgets", "show", key=web, check=False).stderr
    (budget,) = map(json.loads, guarded.run("budgets", "show", "--json", key=ci).stdout.splitlines())
    assert (budget["tenant"], budget["subject"], budget["max_tokens"]) == ("acme", "ci", "1")
    (total,) = map(json.loads, guarded.run("usage", "--subject", "web", "--json", key=ci).stdout.splitlines())
    assert (total["subject"], total["requests"]) == ("web", "1")
    assert "no longer has a budget" in guarded.run(*limit, key=guarded.admin).stderr


@pytest.mark.whole
def test_each_tenant_has_its_own_collections(guarded, tmp_path):
    scopes = ("--scopes", "execute,read,write")
    acme, beta = (guarded.create(name, "--tenant", name, *scopes)[1] for name in ("acme", "beta"))
    text = tmp_path / "sea.txt"
    text.write_text("The harbour of Lindau opens at nine.")
    assert "1 added" in guarded.run("ingest", "docs", text, key=acme).stdout
    assert "docs" in guarded.run("collections", "list", key=acme).stdout
    assert "docs" not in guarded.run("collections", "list", key=beta).stdout
    ask = ("chat", "When does the harbour open?", "--context", "docs", "--max-tokens", "8")
    assert guarded.run(*ask, "--request-id", "a", key=acme).stdout.strip()
    assert "1 chunk" in guarded.run("timeline", "a", key=acme).stdout
    unknown = guarded.run(*ask, key=beta, check=False)
    assert unknown.returncode
    assert "no collection is named 'docs'" in unknown.stderr
    assert guarded.run("collections", "delete", "docs", key=beta, check=False).returncode
    guarded.run("collections", "delete", "docs", key=acme)


def test_a_model_searches_the_documents_of_its_callers_tenant(keyed, tmp_path):
    searching = Guarded(keyed, tmp_path, searched_collections="docs")
    with searching.process:
        scopes = ("--scopes", "execute,read,write")
        acme, beta = (searching.create(name, "--tenant", name, *scopes)[1] for name in ("acme", "beta"))
        for key, text in ((acme, "The harbour of Lindau opens at nine."), (beta, "The harbour of Bregenz is closed.")):
            (tmp_path / "sea.txt").write_text(text)
            searching.run("ingest", "docs", tmp_path / "sea.txt", key=key)
        assert "search_documents" in searching.run("tools", key=beta).stdout
        steps = tmp_path / "steps.json"
        arguments = json.dumps({"tool": "search_documents", "arguments": {"query": "When does the harbour open?"}})
        steps.write_text(json.dumps({"steps": [{"name": "find", "kind": "tool", "parameters_json": arguments}]}))
        for key, seen, hidden in ((acme, "Lindau", "Bregenz"), (beta, "Bregenz", "Lindau")):
            found = searching.run("plan", "Find it.", "--steps", steps, key=key).stdout
            assert seen in found
            assert hidden not in found


@pytest.mark.whole
def test_the_audit_is_listed_and_whoever_changes_it_is_found_out(guarded, tmp_path):
    key = guarded.create("billing", "--tenant", "acme")[1]
    guarded.run("chat", "The secret of the sea.", "--max-tokens", "4", "--request-id", "r", key=key)
    guarded.run("keys", "list", key=key, check=False)
    listed = guarded.run("audit", "list", "--tenant", "acme", key=guarded.admin).stdout
    assert all(word in listed for word in ("billing", "OrchestratorService/Execute", "allowed", "AUTH_DENIED"))
    assert "secret of the sea" not in listed
    verified = guarded.run("audit", "verify", key=guarded.admin)
    head = verified.stdout.strip()
    assert "fit together" in verified.stderr
    assert guarded.run("audit", "verify", "--head", head, key=guarded.admin)
    with closing(sqlite3.connect(tmp_path / "journal.sqlite3")) as db:
        db.execute("UPDATE audit_records SET subject = 'another' WHERE request_id = 'r'")
        db.commit()
    found = guarded.run("audit", "verify", key=guarded.admin, check=False)
    assert found.returncode
    assert "was changed" in found.stderr
    with closing(sqlite3.connect(tmp_path / "journal.sqlite3")) as db:
        db.execute("DELETE FROM audit_records")
        db.commit()
    assert not guarded.run("audit", "verify", key=guarded.admin, check=False).returncode
    assert guarded.run("audit", "verify", "--head", head, key=guarded.admin, check=False).returncode


@pytest.mark.whole
def test_a_token_of_an_identity_provider_opens_what_its_claims_say(keyed, tmp_path):
    provider = IdentityProvider(ECKey.generate_key("P-256"))
    issuers = json.dumps({provider.url: {"audience": AUDIENCE, "tenant_claim": "org"}})
    guarded = Guarded(keyed, tmp_path, oidc_issuers=issuers)
    with guarded.process:
        assert guarded.run("chat", "Say hello.", "--max-tokens", "8", "--request-id", "t", key=provider.token()).stdout
        other = guarded.run("show", "t", key=provider.token(org="beta"), check=False)
        denied = guarded.run("keys", "list", key=provider.token(), check=False)
        refused = guarded.run("show", "t", key=provider.token(aud="another"), check=False)
        assert guarded.run("show", "t", key=provider.token(sub="another")).stdout
    provider.close()
    assert "NOT_FOUND" in other.stderr
    assert "AUTH_DENIED" in denied.stderr
    assert "AUTH_INVALID" in refused.stderr
    assert "InvalidClaimError" in guarded.log.read_text()


@pytest.mark.whole
def test_a_tenant_learns_nothing_of_what_another_asked(guarded):
    tenants = [uuid.uuid4().hex for _ in range(2)]  # none of them has asked anything yet
    keys = [guarded.create("caller", "--tenant", tenant)[1] for tenant in tenants]
    counts = []
    for key in (keys[0], keys[1], keys[0]):
        with connected(guarded.process.address) as stub:
            reply = stub.Execute(say(f"{STORY} {'It has many islands. ' * 40}", max_tokens=1), metadata=bearer(key))
        counts.append(reply.token_usage.cached_prompt_tokens)
    assert counts[:2] == [0, 0]
    assert counts[2] > 150


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"PAGANTIC_ORCHESTRATOR_HOST": ANYWHERE}, ("PAGANTIC_ORCHESTRATOR_AUTH", "none or keys")),
        (
            {"PAGANTIC_ORCHESTRATOR_AUTH": "keys", "PAGANTIC_ORCHESTRATOR_SIGNING_KEY_FILE": "k"},
            ("PAGANTIC_ORCHESTRATOR_ADMIN_KEY_FILE", "pagantic keys new"),
        ),
        (
            {"PAGANTIC_ORCHESTRATOR_AUTH": "keys", "PAGANTIC_ORCHESTRATOR_ADMIN_KEY_FILE": "k"},
            ("PAGANTIC_ORCHESTRATOR_SIGNING_KEY_FILE", "Ed25519"),
        ),
        ({"PAGANTIC_TOOLS_AUTH": "keys"}, ("PAGANTIC_TOOLS_AUTH", "local, none, tokens only")),
        ({"PAGANTIC_TOOLS_AUTH": "tokens", "PAGANTIC_VERIFYING_KEYS_FILE": ""}, ("VERIFYING_KEYS_FILE", "public keys")),
    ],
)
def test_a_service_does_not_start_before_it_knows_who_may_call(system, settings, words):
    environment = dict(system.environment)
    area = next(iter(settings)).split("_")[1].lower()
    system.environment |= settings
    try:
        refused = system.run("python", "-m", f"services.{area}", check=False)
    finally:
        system.environment = environment
    assert refused.returncode == 78
    assert all(word in refused.stderr for word in words)
    assert len(refused.stderr.splitlines()) == 1


def test_every_failure_of_access_is_told_by_its_status(keyed, tmp_path):
    guarded = Guarded(keyed, tmp_path, max_running_of_tenant=1, planner="model", call_rate_of_key="8/hour")
    with guarded.process, connected(guarded.process.address) as stub:

        def answer(key, method="ListKeys", message=pb.ListKeysRequest()):  # noqa: B008 - it is not changed
            metadata = bearer(key) if key else ()
            return told_by(lambda: getattr(stub, method)(message, metadata=metadata, timeout=60))

        caller, poor = guarded.create("caller")[1], guarded.create("poor", "--tenant", "poor")[1]
        hasty = guarded.create("hasty", "--tenant", "hasty")[1]
        for _ in range(8):
            stub.ListExecutions(pb.ListExecutionsRequest(), metadata=bearer(hasty), timeout=60)
        guarded.run("budgets", "set", "poor", "--tokens", "1", "--per", "total", key=guarded.admin)
        brief = pb.CreateKeyRequest(subject="brief", scopes=[key_pb2.KEY_SCOPE_ADMIN])
        brief.lifetime.FromMilliseconds(100)
        expired = stub.CreateKey(brief, metadata=bearer(guarded.admin)).text
        time.sleep(0.2)
        running = stub.ExecuteStream(say(STORY, max_tokens=1000), metadata=bearer(caller), timeout=60)
        next(running)
        answers = [
            answer(""),
            answer("pag_wrong"),
            answer(expired),
            answer(caller),
            answer(hasty, "ListExecutions", pb.ListExecutionsRequest()),
            answer(caller, "Execute", say("hi", max_tokens=1)),
            answer(poor, "CreatePlan", pb.CreatePlanRequest(request=request("Go.", execution_pb2.MODE_PLAN))),
        ]
        running.cancel()
    assert [one.reason for one in answers] == list(ACCESS)
    assert [one.status for one in answers] == [status for _, status in ACCESS.values()]
    assert {one.domain for one in answers} == {ERROR_DOMAIN}
    assert [one.has_retry for one in answers] == [may_help for may_help, _ in ACCESS.values()]


def test_the_operators_commands_reach_the_services_and_others_do_not(keyed, tmp_path):
    text = tmp_path / "sea.txt"
    text.write_text("The harbour of Lindau opens at nine.")
    commands = [
        ("models",),
        ("models", "load", EMBEDDING_MODEL),
        ("ingest", "direct", text),
        ("collections", "list"),
        ("collections", "delete", "direct"),
    ]
    for command in commands:
        keyed.run("pagantic", *command)
    assert "engine tuning" in keyed.run("pagantic", "doctor", check=False).stdout
    with grpc.insecure_channel(keyed.address("orchestrator")) as channel:
        loaded = rpc.OrchestratorServiceStub(channel).LoadModel(
            pb.LoadModelRequest(model=EMBEDDING_MODEL), metadata=bearer(keyed.admin), timeout=60
        )
    assert [result.HasField("error") for result in loaded.results] == [False]
    environment = dict(keyed.environment)
    del keyed.environment["PAGANTIC_ORCHESTRATOR_AUTH"]  # somebody who knows the addresses alone
    try:
        for command in commands:
            refused = keyed.run("pagantic", *command, check=False)
            assert refused.returncode == 3
            assert "AUTH_MISSING" in refused.stderr
    finally:
        keyed.environment = environment


@pytest.mark.whole
def test_documents_are_embedded_in_the_background_where_services_ask_for_tokens(keyed, tmp_path):
    text = tmp_path / "sea.txt"
    text.write_text("The harbour of Lindau opens at nine.")
    keyed.run("pagantic", "ingest", "embedded", text)

    def is_embedded():
        listed = json.loads(keyed.run("pagantic", "collections", "list", "--json").stdout)
        return any(one["name"] == "embedded" and one.get("embedded_chunk_count") for one in listed["collections"])

    wait_until(is_embedded, "the chunks are embedded")
