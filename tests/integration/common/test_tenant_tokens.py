"""Tenant tokens: what is let in, what is refused, how keys are replaced, and how services pass a token on."""

import base64
import hmac
import json
import time
from dataclasses import replace

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, OKPKey

from pagantic.constraint.v1 import constraint_service_pb2 as constraint_pb
from pagantic.constraint.v1 import constraint_service_pb2_grpc as constraint_rpc
from pagantic.inference.v1 import inference_service_pb2 as inference_pb
from pagantic.inference.v1 import inference_service_pb2_grpc as inference_rpc
from pagantic_common.domain.calls.principal import LOCAL, Scope, work_of
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PermissionDenied, Unauthenticated
from pagantic_common.rpc.access import watched_file
from pagantic_common.rpc.access.gate import Guard
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.tenant_tokens import (
    LEEWAY_S,
    LIFETIME_S,
    RENEW_S,
    TYPE,
    TenantTokenReader,
    TenantTokens,
    read_signing_key,
    read_tenant_tokens,
    write_key_pair,
)
from pagantic_common.rpc.call import call_unary
from pagantic_common.rpc.peer import Peer
from pagantic_common.settings import Auth, InnerSettings
from pagantic_common.telemetry.scope import current_principal, work_scope
from pagantic_common.testing.server import serving
from tests.support.doors import open_to_all

KEY, FOREIGN = OKPKey.generate_key("Ed25519"), OKPKey.generate_key("Ed25519")
NOW_S = 1_800_000_000.0
ACME = work_of("acme")
INFERENCE, CONSTRAINT = "pagantic.inference.v1.InferenceService", "pagantic.constraint.v1.ConstraintService"


class Clock:
    now_s = NOW_S

    def __call__(self):
        return self.now_s


def public(*keys):
    found = KeySet([OKPKey.import_key(key.as_pem(private=False)) for key in keys])
    return lambda: found


def reader(area="inference", keys=None, clock=None, **more):
    return TenantTokenReader(area, keys or public(KEY), is_required=True, now_s=clock or Clock(), **more)


def token(key=KEY, algorithm="Ed25519", header=(), **claims):
    """Return credentials that are right, but for what is given; a claim that is None is left out."""
    claims = {
        "iss": "pagantic",
        "aud": ["inference"],
        "iat": int(NOW_S),
        "exp": int(NOW_S + 60),
        "tenant": "acme",
        "scope": "execute",
        **claims,
    }
    fields = {"alg": algorithm, "typ": TYPE, **dict(header)}
    kept = {name: value for name, value in claims.items() if value is not None}
    return "Bearer " + jwt.encode(fields, kept, key, algorithms=[algorithm])


async def test_a_token_tells_the_tenant_and_what_a_service_may_do():
    credentials = TenantTokens(lambda: KEY, Clock()).credentials("inference", ACME)
    caller = await reader().authenticate(credentials)
    assert (caller.tenant, caller.scopes) == ("acme", frozenset({Scope.EXECUTE, Scope.READ, Scope.WRITE}))
    assert caller.tenant_token == credentials
    assert credentials not in repr(caller)
    assert (await reader().authenticate(token())).tenant == "acme"  # the table below starts from it


def by_hand(algorithm, sign):
    """Return right claims under another algorithm, which no library would sign like this."""
    header = base64.urlsafe_b64encode(json.dumps({"alg": algorithm, "typ": TYPE}).encode())
    signed = header.rstrip(b"=") + b"." + token().split(".")[1].encode()
    return "Bearer " + (signed + b"." + base64.urlsafe_b64encode(sign(signed)).rstrip(b"=")).decode()


PUBLIC_PEM = KEY.as_pem(private=False)
WRONG = {
    "a foreign key": token(FOREIGN),
    "no signature": token().rsplit(".", 1)[0] + ".",
    "algorithm none": by_hand("none", lambda _signed: b""),
    "the public key as a secret": by_hand("HS256", lambda signed: hmac.digest(PUBLIC_PEM, signed, "sha256")),
    "a foreign key under a known key id": token(FOREIGN, header={"kid": KEY.thumbprint()}),
    "another audience": token(aud=["tools"]),
    "no audience": token(aud=None),
    "another issuer": token(iss="another"),
    "no issuer": token(iss=None),
    "of the future": token(iat=int(NOW_S + LEEWAY_S + 2)),
    "not yet valid": token(nbf=int(NOW_S + LEEWAY_S + 2)),
    "no end": token(exp=None),
    "an end that is no number": token(exp="never"),
    "no tenant": token(tenant=None),
    "a tenant that is no id": token(tenant="a b"),
    "a tenant that is no text": token(tenant=["acme"]),
    "no scope": token(scope=None),
    "another type": token(header={"typ": "JWT"}),
    "too long": token(note="x" * 5000),
    "not a token": "Bearer nonsense",
    "an API key": "Bearer pag_a_b_c",
    "another scheme": "Basic abc",
}


@pytest.mark.parametrize("credentials", WRONG.values(), ids=WRONG.keys())
async def test_what_is_wrong_is_refused_in_the_same_words(credentials):
    with pytest.raises(Unauthenticated) as refused:
        await reader().authenticate(credentials)
    assert refused.value.code is ErrorCode.AUTH_INVALID
    assert str(refused.value) == "the tenant token is not valid"


async def test_a_token_ends_with_a_leeway_for_clocks_and_only_its_holder_learns_that():
    clock, known = Clock(), token()
    gate = reader(clock=clock)
    await gate.authenticate(known)
    clock.now_s = NOW_S + 60 + LEEWAY_S - 1
    await gate.authenticate(known)
    clock.now_s += 2
    for one in (gate, reader(clock=clock)):  # known before, and new
        with pytest.raises(Unauthenticated) as refused:
            await one.authenticate(known)
        assert refused.value.code is ErrorCode.AUTH_EXPIRED
    with pytest.raises(Unauthenticated) as refused:
        await gate.authenticate(token(FOREIGN))
    assert refused.value.code is ErrorCode.AUTH_INVALID


@pytest.mark.parametrize("auth", [Auth.LOCAL, Auth.NONE, Auth.TOKENS])
async def test_a_call_without_a_token_is_refused_where_keys_are_set(tmp_path, auth):
    _signing, verifying = write_key_pair(tmp_path)
    settings = InnerSettings(port=0, auth=auth, verifying_keys_file=verifying)
    with pytest.raises(Unauthenticated, match="PAGANTIC_ORCHESTRATOR_SIGNING_KEY_FILE") as refused:
        await read_tenant_tokens("inference", settings).authenticate("")
    assert refused.value.code is ErrorCode.AUTH_MISSING


@pytest.mark.parametrize("auth", [Auth.LOCAL, Auth.NONE])
async def test_a_call_without_a_token_is_the_local_caller_where_no_keys_are_set(auth):
    assert await read_tenant_tokens("inference", InnerSettings(port=0, auth=auth)).authenticate("") is LOCAL


async def test_an_operators_token_opens_everything_for_a_while():
    clock = Clock()
    gate, credentials = reader(clock=clock), TenantTokens(lambda: KEY, clock).operator_credentials("inference", 3600)
    caller = await gate.authenticate(credentials)
    assert (caller.tenant, caller.scopes) == ("default", frozenset(Scope))
    clock.now_s += 3600 + LEEWAY_S - 1
    await gate.authenticate(credentials)
    clock.now_s += 2
    with pytest.raises(Unauthenticated):
        await gate.authenticate(credentials)
    with pytest.raises(Unauthenticated):
        await reader("tools").authenticate(credentials)


async def test_a_service_may_do_for_an_operator_what_an_operator_may():
    tokens, operator = TenantTokens(lambda: KEY, Clock()), replace(ACME, scopes=frozenset({Scope.ADMIN}))
    for principal, may in ((ACME, False), (operator, True), (ACME, False)):
        caller = await reader().authenticate(tokens.credentials("inference", principal))
        assert (Scope.ADMIN in caller.scopes) is may


async def test_a_service_without_keys_takes_no_token_instead_of_ignoring_its_tenant():
    unkeyed = TenantTokenReader("inference", None, is_required=False, now_s=Clock())
    assert await unkeyed.authenticate("") is LOCAL
    with pytest.raises(Unauthenticated):
        await unkeyed.authenticate(token())


def test_a_token_is_signed_anew_before_it_is_too_old_to_be_passed_on():
    clock = Clock()
    tokens = TenantTokens(lambda: KEY, clock)
    first = tokens.credentials("inference", ACME)
    assert tokens.credentials("tools", ACME) != first
    assert tokens.credentials("inference", work_of("beta")) != first
    clock.now_s += RENEW_S - 1
    assert tokens.credentials("inference", ACME) == first
    clock.now_s += 1
    assert tokens.credentials("inference", ACME) != first
    assert LIFETIME_S - RENEW_S >= 240
    clock.now_s = NOW_S - 5  # a clock that was set back
    assert tokens.credentials("inference", ACME) != first


async def test_a_token_is_passed_on_only_where_its_service_calls():
    tokens = TenantTokens(lambda: KEY, Clock())
    constraint = tokens.credentials("constraint", ACME)
    for called in ("constraint", "context", "rerank"):
        for area in (called, "inference"):
            assert (await reader(area).authenticate(tokens.credentials(called, ACME))).tenant == "acme"
    for area in ("tools", "context", "rerank"):
        with pytest.raises(Unauthenticated):
            await reader(area).authenticate(constraint)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(watched_file, "LOOK_S", 0.0)
    return tmp_path


def replace_file(path, data):
    other = path.with_suffix(".new")
    other.write_bytes(data)
    other.replace(path)


async def test_keys_are_replaced_while_services_run(folder):
    signing, verifying = write_key_pair(folder)
    sign = TenantTokens(read_signing_key(signing)).credentials
    gate = read_tenant_tokens("inference", InnerSettings(port=0, verifying_keys_file=verifying))
    old = sign("inference", ACME)
    await gate.authenticate(old)
    replace_file(verifying, verifying.read_bytes() + KEY.as_pem(private=False))
    await gate.authenticate(old)
    replace_file(signing, KEY.as_pem(private=True))
    new = sign("inference", work_of("beta"))
    assert (await gate.authenticate(new)).tenant == "beta"
    replace_file(verifying, KEY.as_pem(private=False))
    await gate.authenticate(new)
    with pytest.raises(Unauthenticated):  # though it was known
        await gate.authenticate(old)
    replace_file(verifying, b"nonsense")
    await gate.authenticate(new)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no public key"),
        (b"nonsense", "no public key"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "Ed25519 key in PEM"),
        (OKPKey.generate_key("X25519").as_pem(private=False), "Ed25519 key in PEM"),
        (b"x" * 70_000, "more than"),
    ],
)
def test_a_file_of_keys_that_cannot_be_used_is_named(folder, data, words):
    path = folder / "verifying.pem"
    path.write_bytes(data)
    with pytest.raises(InvalidRequest, match=words) as refused:
        read_tenant_tokens("inference", InnerSettings(port=0, verifying_keys_file=path))
    assert "VERIFYING_KEYS_FILE" in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_public_key_does_not_sign(folder):
    _signing, verifying = write_key_pair(folder)
    with pytest.raises(InvalidRequest, match="private one"):
        read_signing_key(verifying)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_signing_key(folder / "none.pem")


def test_a_key_pair_is_made_once_and_only_its_owner_reads_it(folder):
    signing, verifying = write_key_pair(folder / "identity")
    before = signing.read_bytes(), verifying.read_bytes()
    assert write_key_pair(folder / "identity") == (signing, verifying)
    assert (signing.read_bytes(), verifying.read_bytes()) == before
    assert signing.stat().st_mode & 0o077 == 0


class Inference(inference_rpc.InferenceServiceServicer):
    """Keeps whom it works for."""

    def __init__(self):
        self.tenants = []

    async def CountTokens(self, request, context):
        self.tenants.append(current_principal().tenant)
        return inference_pb.CountTokensResponse()


class Constraint(constraint_rpc.ConstraintServiceServicer):
    """Calls inference for its caller."""

    def __init__(self, channel):
        self._stub = inference_rpc.InferenceServiceStub(channel)
        self._peer = Peer("inference", channel, patience_s=5)

    async def Compile(self, request, context):
        await self._peer.call_unary(self._stub.CountTokens, inference_pb.CountTokensRequest())
        return constraint_pb.CompileResponse()


async def test_the_tenant_arrives_two_calls_away_over_real_sockets(tmp_path):
    signing, verifying = write_key_pair(tmp_path)
    settings = InnerSettings(port=0, auth=Auth.TOKENS, verifying_keys_file=verifying)
    served = Inference()
    inference = Registration(
        INFERENCE,
        lambda server: inference_rpc.add_InferenceServiceServicer_to_server(served, server),
        open_to_all(INFERENCE),
        Guard(read_tenant_tokens("inference", settings)),
    )
    async with serving([inference]) as (to_inference, _):
        constraint = Registration(
            CONSTRAINT,
            lambda server: constraint_rpc.add_ConstraintServiceServicer_to_server(Constraint(to_inference), server),
            {"Compile": Scope.READ},
            Guard(read_tenant_tokens("constraint", settings)),
        )
        async with serving([constraint]) as (to_constraint, _):
            stub = constraint_rpc.ConstraintServiceStub(to_constraint)
            peer = Peer(
                "constraint",
                to_constraint,
                patience_s=5,
                credentials=TenantTokens(read_signing_key(signing)).credentials,
            )
            for tenant in ("acme", "default", "beta"):
                with work_scope(principal=work_of(tenant)):
                    await peer.call_unary(stub.Compile, constraint_pb.CompileRequest())
            assert served.tenants == ["acme", "default", "beta"]
            with pytest.raises(Unauthenticated) as refused:
                await call_unary("constraint", stub.Compile, constraint_pb.CompileRequest())
            assert refused.value.code is ErrorCode.AUTH_MISSING
            now_s, own = int(time.time()), OKPKey.import_key(signing.read_bytes())
            too_little = token(own, aud=["constraint"], iat=now_s, exp=now_s + 60, scope="execute")
            with pytest.raises(PermissionDenied, match="scope 'read'"):
                await call_unary("constraint", stub.Compile, constraint_pb.CompileRequest(), credentials=too_little)
    assert len(served.tenants) == 3
