"""URLs of databases, as their users write them."""

import pytest

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.storage.database import check_url


@pytest.mark.parametrize(
    ("url", "host", "port", "others"),
    [
        ("postgresql://u:p@a:5432,b:5433/db?sslmode=require", "a,b", "5432,5433", {"sslmode": "require"}),
        ("postgresql://u:p@[::1]:5432,[::2]/db", "::1,::2", "5432,", {}),
        ("postgres://u:p@a,b/db", "a,b", ",", {}),
        ("postgresql://u:p@/db?host=a:5432&host=b:5433", "a,b", "5432,5433", {}),
        ("postgresql://u:p@a:5432/db", "a", 5432, {}),
    ],
)
def test_servers_may_be_named_as_libpq_names_them(url, host, port, others):
    found = check_url(url, "the journal")
    _, options = found.get_dialect()().create_connect_args(found)
    assert options == {"user": "u", "password": "p", "dbname": "db", "host": host, "port": port, **others}


def test_a_comma_in_a_password_is_no_second_server():
    found = check_url("postgresql://u:a,b@h/db", "the journal")
    assert (found.host, found.password, dict(found.query)) == ("h", "a,b", {})


@pytest.mark.parametrize("url", ["postgresql://h:1x/db", "postgresql://h:1,i:2x/db", "nonsense", "mysql://h/db"])
def test_a_wrong_url_is_refused_without_its_password(url):
    with pytest.raises(InvalidRequest, match="the journal's URL is"):
        check_url(url, "the journal")
