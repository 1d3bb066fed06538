"""A local hub, a folder of models, and pulls that do not wait between attempts."""

import pytest

from gateway.pulling.pull import Pull
from gateway.pulling.references import source_of
from pagantic_common.models.folder import ModelFolder
from pagantic_common.models.settings import ModelSettings
from tests.support.certificates import Authority
from tests.support.model_hub import ModelHub

SILENCE_S = 5.0


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch, tmp_path):
    """What the user of this machine has set for hubs and proxies does not count."""
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.setenv("PAGANTIC_MODELS_FOLDER", str(tmp_path / "models"))


@pytest.fixture
def hub():
    with ModelHub().serving() as served:
        yield served


@pytest.fixture
def encrypted(tmp_path, monkeypatch):
    """A server over TLS, whose authority is trusted."""
    authority = Authority()
    (tmp_path / "authority.pem").write_bytes(authority.pem)
    certificate, key = authority.issue()
    (tmp_path / "server.pem").write_bytes(certificate)
    (tmp_path / "server.key").write_bytes(key)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    with ModelHub().serving((tmp_path / "server.pem", tmp_path / "server.key")) as served:
        yield served


@pytest.fixture
def folder(tmp_path):
    return ModelFolder(tmp_path / "models")


@pytest.fixture
def pull(folder):
    """Pull a reference; settings of models by name, and what `run` and Pull take."""

    def run(reference, name="", sha256="", *, models=None, silence_s=SILENCE_S, free_bytes=None, **settings):
        source = source_of(reference, ModelSettings(**settings), silence_s, models)
        options = {} if free_bytes is None else {"free_bytes": lambda _path: free_bytes}
        pulling = Pull(source, folder, wait_s=5, on_progress=lambda *_: None, retry_s=0, **options)
        return pulling.run(name, sha256)

    return run
