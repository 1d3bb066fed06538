"""The containers of one machine: confined as the pods are, and with settings that the services take."""

from pathlib import Path

import pytest
import yaml

from gateway.http.settings import HttpSettings
from pagantic_common.domain.defaults import PORTS
from pagantic_common.settings import SHARED_SETTINGS
from pagantic_common.storage.settings_names import TOOL_NAMES
from tests.support.manifests import FOLDER, container_of
from tests.unit.deploy.test_manifests import AREAS, settings_of

FILE = FOLDER.parent / "compose.yaml"
ALL = sorted((*AREAS, "gateway"))


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


@pytest.fixture(params=ALL)
def service(request, compose):
    return request.param, compose["services"][request.param]


def settings_in(name, service, monkeypatch):
    cls = HttpSettings if name == "gateway" else settings_of(name)
    prefix = cls.model_config["env_prefix"]
    for variable, value in service["environment"].items():
        own, shared = variable.removeprefix(prefix).lower(), variable.removeprefix("PAGANTIC_").lower()
        assert own in cls.model_fields or shared in SHARED_SETTINGS or variable in TOOL_NAMES, variable
        monkeypatch.setenv(variable, value)
    return cls()


def test_every_service_and_the_gateway_have_a_container(compose):
    assert sorted(compose["services"]) == ALL


def test_containers_are_confined(service):
    _, container = service
    assert container["user"] == "10001:10001"
    assert container["read_only"] is True
    assert container["cap_drop"] == ["ALL"]
    assert container["security_opt"] == ["no-new-privileges:true"]
    assert {"mem_limit", "pids_limit", "healthcheck"} <= container.keys()


def test_containers_run_what_the_pods_run_with_settings_that_it_takes(service, monkeypatch):
    name, container = service
    folder = FOLDER / "gateway" if name == "gateway" else FOLDER / "base"
    assert container["command"] == container_of(name, folder)["args"]
    settings = settings_in(name, container, monkeypatch)
    assert (settings.host, settings.admin_port, settings.metrics_port) == ("0.0.0.0", 50060, 9464)  # noqa: S104
    assert int(container["stop_grace_period"].removesuffix("s")) > settings.drain_s


def test_services_find_each_other_on_a_network_that_both_are_on(service, compose, monkeypatch):
    name, container = service
    settings = settings_in(name, container, monkeypatch)
    addresses = {field: value for field, value in settings.model_dump().items() if field.endswith("_address")}
    for field, value in addresses.items():
        callee = field.removesuffix("_address")
        assert value == f"dns:///{callee}:{PORTS[callee]}"
        assert set(container["networks"]) & set(compose["services"][callee]["networks"])


def test_only_doors_with_keys_are_open_and_only_to_this_machine(compose):
    for name, container in compose["services"].items():
        published = container.get("ports", [])
        assert bool(published) == (name in {"orchestrator", "gateway"})
        assert all(port.startswith("127.0.0.1:") for port in published)
        if not published:
            assert container["networks"] == ["inside"]
        else:
            assert [value for key, value in container["environment"].items() if key.endswith("_AUTH")] == ["keys"]
    assert compose["networks"]["inside"] == {"internal": True}


def test_state_is_on_volumes_and_secrets_are_files(compose):
    services = compose["services"]
    mounted = {volume.split(":")[0] for one in services.values() for volume in one.get("volumes", [])}
    assert mounted == set(compose["volumes"]) == {f"{name}-state" for name in ("orchestrator", "context", "inference")}
    for one in services.values():
        files = {
            Path(value).name for key, value in one["environment"].items() if key.endswith(("_KEY_FILE", "_KEYS_FILE"))
        }
        assert files == set(one.get("secrets", []))
    assert {name for one in services.values() for name in one.get("secrets", [])} == set(compose["secrets"])
