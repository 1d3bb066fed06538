"""The settings of APIs."""

import json

import pytest

from pagantic_common.domain.errors import InvalidRequest
from services.tools.adapters.openapi.configuration import read_apis


def apis_of(folder, headers):
    file = folder / "apis.json"
    file.write_text(json.dumps({"apis": {"a": {"document": "a.json", "url": "http://a/", "headers": headers}}}))
    return read_apis(file, {})


@pytest.mark.parametrize("header", ["Content-Type", "content-length", "TRANSFER-ENCODING"])
def test_headers_that_describe_a_body_are_refused(tmp_path, header):
    with pytest.raises(InvalidRequest, match=f"api 'a': header '{header}' must not be set"):
        apis_of(tmp_path, {"Authorization": "x", header: "multipart/form-data; boundary=b"})
    assert apis_of(tmp_path, {"Authorization": "x"})[0].headers == {"Authorization": "x"}
