"""Tokens of an identity provider, which speaks real HTTP: who is let in, and how the provider's keys are fetched."""

import asyncio
import base64
import hmac
import json
import threading
import time

import httpx
import pytest
from joserfc.jwk import ECKey, OKPKey, RSAKey
from pydantic import ValidationError

from pagantic_common.domain.calls.principal import LOCAL, PrincipalKind, Scope
from pagantic_common.domain.errors import ErrorCode, Unauthenticated, Unavailable
from services.orchestrator.adapters.oidc import issuer_keys
from services.orchestrator.adapters.oidc.issuer_keys import COOL_DOWN_S, FRESH_S, IDLE_S, STALE_S, IssuerKeys
from services.orchestrator.adapters.oidc.tokens import LEEWAY_S, OidcTokens, knowing_tokens
from services.orchestrator.ports.identity import Issuer
from services.orchestrator.settings import OrchestratorSettings
from tests.support.identity_provider import AUDIENCE, IdentityProvider

KEY, FOREIGN = ECKey.generate_key("P-256"), ECKey.generate_key("P-256")
BY_ORG = Issuer(AUDIENCE, tenant_claim="org")


class Keys:
    """Knows one API key."""

    async def authenticate(self, credentials):
        if credentials != "Bearer pag_a_b_c":
            raise Unauthenticated("no key")
        return LOCAL


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def provider():
    made = IdentityProvider(KEY)
    yield made
    made.close()


@pytest.fixture
async def tokens(provider):
    async with knowing_tokens({provider.url: BY_ORG}, Keys()) as opened:
        yield opened


async def let_in(tokens, token):
    return await tokens.authenticate(f"Bearer {token}")


async def test_a_token_tells_tenant_subject_and_scopes(provider, tokens):
    caller = await let_in(tokens, provider.token())
    assert (caller.tenant, caller.kind) == ("acme", PrincipalKind.TOKEN)
    assert caller.subject == f"{provider.url}#billing"
    assert caller.scopes == {Scope.EXECUTE, Scope.READ}
    for _ in range(20):
        await let_in(tokens, provider.token(sub=f"user-{_}"))
    assert provider.fetches == 1


@pytest.mark.parametrize(
    ("make", "algorithm"),
    [
        (lambda: RSAKey.generate_key(2048), "RS256"),
        (lambda: RSAKey.generate_key(2048), "PS256"),
        (lambda: ECKey.generate_key("P-384"), "ES384"),
        (lambda: OKPKey.generate_key("Ed25519"), "Ed25519"),
    ],
)
async def test_the_usual_algorithms_are_taken(provider, tokens, make, algorithm):
    provider.keys.append(make())
    assert (await let_in(tokens, provider.token(provider.keys[1], algorithm))).tenant == "acme"


async def test_scopes_come_as_text_or_list_and_others_mean_nothing(provider, tokens):
    for scope, expected in (
        ("pagantic:admin pagantic:write", {Scope.WRITE}),  # over all tenants: only the setting gives it
        (["pagantic:usage", "email"], {Scope.USAGE}),
        ("execute admin", set()),
        ({"pagantic:admin": True}, set()),
        (None, set()),
    ):
        assert (await let_in(tokens, provider.token(scope=scope))).scopes == expected


async def test_an_issuer_may_stand_for_one_tenant_and_fixed_scopes(provider):
    issuer = Issuer(AUDIENCE, tenant="ci", scopes=frozenset({Scope.EXECUTE}))
    async with knowing_tokens({provider.url: issuer}, Keys()) as tokens:
        caller = await let_in(tokens, provider.token(org="other", scope="pagantic:admin"))
    assert (caller.tenant, caller.scopes) == ("ci", {Scope.EXECUTE})


@pytest.mark.parametrize(
    ("tenants", "permitted", "refused"),
    [
        ((), {"acme", "beta"}, {"default"}),
        (("acme", "gamma"), {"acme", "gamma"}, {"beta", "default"}),
        (("default",), {"default"}, {"acme"}),
    ],
)
async def test_an_issuer_speaks_for_its_tenants_alone(provider, tenants, permitted, refused):
    issuer = Issuer(AUDIENCE, tenant_claim="org", tenants=frozenset(tenants))
    async with knowing_tokens({provider.url: issuer}, Keys()) as tokens:
        for tenant in permitted:
            assert (await let_in(tokens, provider.token(org=tenant))).tenant == tenant
        for tenant in refused:
            with pytest.raises(Unauthenticated):
                await let_in(tokens, provider.token(org=tenant))


async def test_no_issuer_names_the_tenants_of_another(provider):
    other = IdentityProvider(FOREIGN)
    issuers = {
        provider.url: Issuer(AUDIENCE, tenant_claim="org", tenants=frozenset({"acme"})),
        other.url: Issuer(AUDIENCE, tenant_claim="org", tenants=frozenset({"beta"})),
    }
    try:
        async with knowing_tokens(issuers, Keys()) as tokens:
            assert (await let_in(tokens, provider.token())).tenant == "acme"
            with pytest.raises(Unauthenticated):
                await let_in(tokens, other.token())
    finally:
        other.close()


def secs(offset):
    return int(time.time()) + offset


def by_hand(provider, header, payload=None):
    """Return right claims under a header that no library would write, signed with the public key as a secret."""
    claims = provider.token().split(".")[1].encode()
    if payload is not None:
        claims = encoded(payload)
    signed = encoded(json.dumps(header).encode()) + b"." + claims
    return (signed + b"." + encoded(hmac.digest(KEY.as_pem(private=False), signed, "sha256"))).decode()


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=")


WRONG = {
    "a foreign key": lambda p: p.token(FOREIGN),
    "a foreign key under a known id": lambda p: p.token(FOREIGN, header={"kid": KEY.thumbprint()}),
    "a cut signature": lambda p: p.token()[:-4],
    "no signature": lambda p: p.token().rsplit(".", 1)[0] + ".",
    "another audience": lambda p: p.token(aud="another"),
    "no audience": lambda p: p.token(aud=None),
    "another issuer": lambda p: p.token(iss="https://id.example.com"),
    "no issuer": lambda p: p.token(iss=None),
    "an issuer that is no text": lambda p: p.token(iss=1),
    "not yet valid": lambda p: p.token(nbf=secs(LEEWAY_S + 60)),
    "of the future": lambda p: p.token(iat=secs(LEEWAY_S + 60)),
    "no end": lambda p: p.token(exp=None),
    "no subject": lambda p: p.token(sub=None),
    "an empty subject": lambda p: p.token(sub=""),
    "a subject with a line break": lambda p: p.token(sub="a\nb"),
    "no tenant": lambda p: p.token(org=None),
    "a tenant that is no id": lambda p: p.token(org="a b"),
    "a tenant that is no text": lambda p: p.token(org=["acme"]),
    "another type": lambda p: p.token(header={"typ": "tenant+jwt"}),
    "the type of a logout": lambda p: p.token(header={"typ": "logout+jwt"}),
    "the public key as a secret": lambda p: by_hand(p, {"alg": "HS256"}),
    "algorithm none": lambda p: by_hand(p, {"alg": "none"}),
    "a header that is a list": lambda p: by_hand(p, ["alg"]),
    "a header that is a text": lambda p: by_hand(p, "alg"),
    "a key id that is a number": lambda p: by_hand(p, {"alg": "ES256", "kid": 1}),
    "claims that are a list": lambda p: by_hand(p, {"alg": "ES256"}, b"[1]"),
    "a subject that is a number": lambda p: p.token(sub=5),
    "too long": lambda p: p.token(note="x" * 9000),
    "no JSON": lambda _: "a.b.c",
    "no text": lambda _: "..",
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG.keys())
async def test_what_is_wrong_is_refused_in_the_same_words(provider, tokens, make):
    with pytest.raises(Unauthenticated) as refused:
        await let_in(tokens, make(provider))
    assert refused.value.code is ErrorCode.AUTH_INVALID
    assert str(refused.value) == "the credentials are not valid: send a valid token"


async def test_an_expired_token_is_told_so_to_its_holder_alone(provider, tokens):
    await let_in(tokens, provider.token(exp=secs(-LEEWAY_S + 5)))
    for token, code in (
        (provider.token(exp=secs(-LEEWAY_S - 5)), ErrorCode.AUTH_EXPIRED),
        (provider.token(FOREIGN, exp=secs(-LEEWAY_S - 5)), ErrorCode.AUTH_INVALID),
    ):
        with pytest.raises(Unauthenticated) as refused:
            await let_in(tokens, token)
        assert refused.value.code is code


async def test_api_keys_and_calls_without_credentials_are_judged_as_ever(provider, tokens):
    assert await tokens.authenticate("Bearer pag_a_b_c") is LOCAL
    for credentials in ("", "Bearer other", f"Basic {provider.token()}"):
        with pytest.raises(Unauthenticated, match="no key"):
            await tokens.authenticate(credentials)
    assert not provider.asked


@pytest.fixture
async def source(provider):
    clock = Clock()
    async with httpx.AsyncClient() as client:
        made = IssuerKeys(provider.url, client, clock)
        yield made, clock
        await made.close()


async def test_a_new_key_is_fetched_when_its_first_token_comes(provider, source):
    keys, clock = source
    await keys.keys_for(KEY.thumbprint())
    provider.keys.append(FOREIGN)
    clock.now_s += COOL_DOWN_S
    found = await keys.keys_for(FOREIGN.thumbprint())
    assert {key.kid for key in found.keys} == {KEY.thumbprint(), FOREIGN.thumbprint()}
    assert provider.fetches == 2


async def test_made_up_key_ids_do_not_make_us_ask_again_and_again(provider, source):
    keys, _clock = source
    for number in range(100):
        await keys.keys_for(f"made-up-{number}")
    assert provider.fetches == 1


async def test_calls_at_the_same_time_share_a_fetch(provider, source):
    keys, _clock = source
    await asyncio.gather(*(keys.keys_for(KEY.thumbprint()) for _ in range(50)))
    assert provider.fetches == 1


async def test_known_keys_serve_while_others_are_fetched(provider, source):
    keys, clock = source
    await keys.keys_for(KEY.thumbprint())
    silence = threading.Event()
    provider.answers["/keys"] = lambda: silence.wait(10) and 500
    clock.now_s += FRESH_S + 1
    async with asyncio.timeout(4):  # less than the fetch takes
        await keys.keys_for(KEY.thumbprint())
    silence.set()
    await keys.close()


async def test_known_keys_outlive_an_outage_but_not_for_ever(provider, source):
    keys, clock = source
    await keys.keys_for(KEY.thumbprint())
    provider.close()
    clock.now_s += STALE_S - 1
    assert await keys.keys_for(KEY.thumbprint())
    clock.now_s += COOL_DOWN_S
    with pytest.raises(Unavailable, match="cannot be fetched"):
        await keys.keys_for(KEY.thumbprint())


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/.well-known/openid-configuration", 500),
        ("/.well-known/openid-configuration", 302),
        ("/.well-known/openid-configuration", b"nonsense"),
        ("/.well-known/openid-configuration", b"[]"),
        ("/.well-known/openid-configuration", b'{"issuer": "https://another.example.com"}'),
        ("/keys", b"{}"),
        ("/keys", b'{"keys": 1}'),
        ("/keys", b'{"keys": ["' + b"x" * 300_000 + b'"]}'),
    ],
)
async def test_answers_that_are_none_are_an_outage(provider, source, path, answer):
    provider.answers[path] = answer
    keys, _clock = source
    with pytest.raises(Unavailable) as raised:
        await keys.keys_for(KEY.thumbprint())
    assert raised.value.retry_after_s == COOL_DOWN_S
    assert "/elsewhere" not in provider.asked


class Answers(httpx.AsyncBaseTransport):
    """Answers discovery for any issuer, with keys at a URL; keeps what it was asked."""

    def __init__(self, jwks_uri):
        self.jwks_uri = jwks_uri
        self.asked = []

    async def handle_async_request(self, request):
        self.asked.append(str(request.url))
        if request.url.path.endswith("openid-configuration"):
            issuer = f"{request.url.scheme}://{request.url.host}"
            return httpx.Response(200, json={"issuer": issuer, "jwks_uri": self.jwks_uri})
        return httpx.Response(200, json={"keys": [KEY.as_dict(private=False)]})


@pytest.mark.parametrize(
    ("jwks_uri", "is_fetched"),
    [
        ("https://keys.example.com/keys", True),
        ("http://keys.example.com/keys", False),
        ("http://127.0.0.1/keys", False),
        ("file:///etc/passwd", False),
        ("", False),
    ],
)
async def test_the_keys_of_a_provider_elsewhere_are_fetched_over_tls_alone(jwks_uri, is_fetched):
    answers = Answers(jwks_uri)
    async with httpx.AsyncClient(transport=answers) as client:
        source = IssuerKeys("https://id.example.com", client)
        if is_fetched:
            assert len((await source.keys_for(None)).keys) == 1
        else:
            with pytest.raises(Unavailable):
                await source.keys_for(None)
    assert (jwks_uri in answers.asked) is is_fetched


async def test_a_token_under_a_new_key_is_not_called_wrong_while_keys_cannot_be_fetched(provider, source):
    keys, clock = source
    await keys.keys_for(KEY.thumbprint())
    provider.answers["/keys"] = 500
    clock.now_s += COOL_DOWN_S
    with pytest.raises(Unavailable):
        await keys.keys_for(FOREIGN.thumbprint())
    assert await keys.keys_for(KEY.thumbprint())


async def test_after_an_idle_time_keys_are_fetched_before_one_is_used(provider, source):
    keys, clock = source
    await keys.keys_for(KEY.thumbprint())
    provider.keys[:] = [FOREIGN]
    clock.now_s += IDLE_S + 1
    assert [key.kid for key in (await keys.keys_for(KEY.thumbprint())).keys] == [FOREIGN.thumbprint()]


async def test_a_slow_provider_is_given_up(provider, source, monkeypatch):
    monkeypatch.setattr(issuer_keys, "TIMEOUT_S", 0.1)
    keys, provider.answers["/keys"] = provider.answer("/keys"), lambda: time.sleep(1) or keys
    with pytest.raises(Unavailable):
        await source[0].keys_for(None)


async def test_a_key_of_no_use_spoils_no_other(provider, source):
    entries = [{"kty": "AKP", "kid": "new"}, "text", {"kty": "RSA"}, {"kty": "oct", "k": "eHg", "kid": "secret"}]
    public = {**KEY.as_dict(private=False), "kid": KEY.thumbprint()}
    provider.answers["/keys"] = json.dumps({"keys": [*entries, public]}).encode()
    found = await source[0].keys_for(KEY.thumbprint())
    assert [key.kid for key in found.keys] == [KEY.thumbprint()]


async def test_a_token_checked_before_is_refused_once_its_key_is_gone(provider):
    clock = Clock()
    async with httpx.AsyncClient() as client:
        source = IssuerKeys(provider.url, client, clock)
        tokens = OidcTokens({provider.url: (BY_ORG, source)}, Keys())
        token = provider.token()
        await let_in(tokens, token)
        provider.keys[:] = [FOREIGN]
        clock.now_s += COOL_DOWN_S
        await let_in(tokens, provider.token(FOREIGN))
        with pytest.raises(Unauthenticated):
            await let_in(tokens, token)
        await source.close()


@pytest.mark.parametrize(
    ("issuers", "words"),
    [
        ({"http://id.example.com": {"audience": "a", "tenant": "t"}}, "not an https URL"),
        ({"https://id.example.com": {"audience": "", "tenant": "t"}}, "audience is empty"),
        ({"https://id.example.com": {"audience": "a"}}, "either tenant or tenant_claim"),
        ({"https://id.example.com": {"audience": "a", "tenant": "t", "tenant_claim": "c"}}, "either tenant or"),
        ({"https://id.example.com": {"audience": "a", "tenant": "t", "tenants": ["t"]}}, "needs a tenant_claim"),
        ({"https://id.example.com": {"audience": "a", "tenant_claim": "c", "tenants": ["a b"]}}, "not an id"),
        (
            {
                "https://id.example.com": {"audience": "a", "tenant_claim": "c"},
                "https://ci.example.com": {"audience": "a", "tenant": "t"},
            },
            "one of several issuers: list its tenants",
        ),
        ({"https://id.example.com": {"audience": "a", "tenant": "t", "scope": ["read"]}}, "scope"),
        ({"https://id.example.com": {"audience": "a", "tenant": "t", "scopes": ["all"]}}, "execute"),
    ],
)
def test_an_issuer_that_cannot_be_used_stops_the_start(tmp_path, issuers, words):
    files = {"admin_key_file": tmp_path / "a", "signing_key_file": tmp_path / "b"}
    with pytest.raises(ValidationError, match=words):
        OrchestratorSettings(auth="keys", oidc_issuers=issuers, **files)
    with pytest.raises(ValidationError, match="AUTH=keys"):
        OrchestratorSettings(oidc_issuers={"https://id.example.com": {"audience": "a", "tenant": "t"}})
