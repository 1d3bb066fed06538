"""Files of Model Context Protocol servers."""

import json

import pytest

from pagantic_common.domain.errors import InvalidRequest
from services.tools.adapters.mcp.configuration import read_servers
from services.tools.core.allowlists import HostAllowlist
from services.tools.core.servers import ClientCredentials


def read(folder, content, **variables):
    path = folder / "servers.json"
    path.write_text(content if isinstance(content, str) else json.dumps({"mcpServers": content}))
    return read_servers(path, variables, HostAllowlist.parse(["other.example"]))


def test_a_file_of_another_client_is_read(tmp_path):
    program, address = read(
        tmp_path,
        {
            "files": {"command": "npx", "args": ["-y", "server", "${FOLDER:-/srv}"], "env": {"KEY": "${KEY}"}},
            "web": {
                "type": "http",
                "url": "https://api.example.com/mcp",
                "headers": {"x-key": "${KEY}"},
            },
            "off": {"command": "x", "disabled": True},
        },
        KEY="s3cret",
    )
    assert (program.name, program.transport.argv) == ("files", ("npx", "-y", "server", "/srv"))
    assert program.transport.environment == {"KEY": "s3cret"}
    assert not program.trusts_annotations
    assert address.transport.headers == {"x-key": "s3cret"}
    assert address.transport.hosts.has_host("api.example.com", 443)
    assert address.transport.hosts.has_host("other.example", 1)
    assert not address.transport.hosts.has_host("api.example.com", 80)
    assert "s3cret" not in repr((program, address))


def test_our_own_keys_are_read(tmp_path):
    oauth = {"clientId": "c", "clientSecret": "s3cret", "issuer": "https://login.example.com"}
    (server,) = read(
        tmp_path,
        {"a": {"url": "http://localhost:1/", "trustAnnotations": True, "timeoutSeconds": 5, "oauth": oauth}},
    )
    assert (server.trusts_annotations, server.call_timeout_s) == (True, 5)
    assert server.transport.credentials == ClientCredentials("c", "s3cret", "https://login.example.com")
    assert server.transport.hosts.has_host("login.example.com", 443)
    assert "s3cret" not in repr(server)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not JSON"),
        ("{}", "mcpServers: Field required"),
        ({"a b": {"command": "x"}}, "server name 'a b'"),
        ({"a": {}}, "either a command or a url"),
        ({"a": {"command": "x", "url": "http://b"}}, "either a command or a url"),
        ({"a": {"url": "ftp://b"}}, "server 'a': the url must begin with"),
        ({"a": {"url": "http://user:s3cret@b"}}, "no user or password"),
        ({"a": {"type": "sse", "url": "http://b"}}, "mcpServers.a.type: "),
        ({"a": {"command": "${NOT_SET}"}}, "'NOT_SET', which is not set"),
        ({"a": {"command": "x", "timeoutSeconds": 0}}, "mcpServers.a.timeoutSeconds: "),
    ],
)
def test_a_wrong_file_is_refused_with_its_reason_and_without_its_secrets(tmp_path, content, reason):
    with pytest.raises(InvalidRequest) as raised:
        read(tmp_path, content)
    assert reason in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidRequest, match="cannot be read: No such file"):
        read_servers(tmp_path / "missing.json", {}, HostAllowlist())
