import pytest

from pagantic_common.client.credentials import credentials_for
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.rpc.access.tls.calling import Target, find_target

HERE, THERE = Target("127.0.0.1:50051"), Target("api.example.com:443")


def test_the_argument_comes_before_the_variable_and_that_before_the_file(tmp_path):
    file = tmp_path / "key"
    file.write_text("from-file\nother\n")
    environment = {"PAGANTIC_API_KEY_FILE": str(file)}
    assert credentials_for(HERE, None, environment) == "Bearer from-file"
    environment["PAGANTIC_API_KEY"] = "from-variable"
    assert credentials_for(HERE, None, environment) == "Bearer from-variable"
    assert credentials_for(HERE, "given", environment) == "Bearer given"


def test_without_a_key_nothing_is_sent():
    assert credentials_for(THERE, None, {}) == ""


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/run/pagantic", "dns:///localhost:1"]
)
def test_a_key_is_sent_on_this_machine(address):
    assert credentials_for(Target(address), "k", {}) == "Bearer k"


def test_a_key_is_sent_where_the_connection_is_encrypted():
    assert credentials_for(find_target("https://api.example.com", {}), "k", {}) == "Bearer k"


@pytest.mark.parametrize(
    "address", ["api.example.com:443", "10.0.0.1:1", "dns:///orchestrator:50051", "localhost.example.com:1"]
)
def test_a_key_leaves_this_machine_only_where_something_else_encrypts(address):
    with pytest.raises(InvalidRequest, match="in plain text"):
        credentials_for(Target(address), "k", {})
    assert credentials_for(Target(address), "k", {"PAGANTIC_PLAINTEXT_KEY": "1"}) == "Bearer k"


@pytest.mark.parametrize("key", ["two\nlines", "k\xe9y", "k" * 5000])
def test_what_cannot_be_sent_is_refused(key):
    with pytest.raises(InvalidRequest, match="one line"):
        credentials_for(HERE, key, {})


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InvalidRequest, match="PAGANTIC_API_KEY_FILE"):
        credentials_for(HERE, None, {"PAGANTIC_API_KEY_FILE": str(tmp_path / "none")})
