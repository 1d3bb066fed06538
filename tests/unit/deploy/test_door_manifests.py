"""The manifests of the doors over HTTP, which stand beside those of the services."""

from __future__ import annotations

import importlib.util

import pytest

from gateway.http.settings import HttpSettings
from gateway.mcp.settings import McpSettings
from gateway.web.entry import is_known_host
from pagantic_common.domain.defaults import PORTS
from pagantic_common.settings import Auth, Tls
from pagantic_common.storage.settings_names import TOOL_NAMES
from tests.support.manifests import FOLDER, container_of, documents, environment_of, of_kind, pod_of

DOORS = {"mcp": McpSettings, "gateway": HttpSettings}
COMMANDS = {"mcp": ["mcp", "--http"], "gateway": ["serve"]}


@pytest.fixture(params=sorted(DOORS))
def door(request):
    return request.param


@pytest.fixture
def folder(door):
    return FOLDER / door


@pytest.fixture
def settings(door, folder, monkeypatch):
    kind = DOORS[door]
    prefix = kind.model_config["env_prefix"]
    for name, value in environment_of(door, folder).items():
        assert name.removeprefix(prefix).lower() in kind.model_fields or name in TOOL_NAMES
        monkeypatch.setenv(name, value)
    return kind()


def test_the_pod_is_confined_and_probed_as_those_of_the_services_are(door, folder):
    pod, container = pod_of(door, folder), container_of(door, folder)
    service_pod, service = pod_of("rerank"), container_of("rerank")
    for field in ("securityContext", "automountServiceAccountToken", "enableServiceLinks"):
        assert pod[field] == service_pod[field]
    for field in ("securityContext", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle"):
        assert container[field] == service[field]
    assert container["resources"].keys() == service["resources"].keys()
    assert container["resources"]["limits"].keys() == service["resources"]["limits"].keys()


def test_the_container_runs_the_server_over_http(door, folder):
    module, *arguments = container_of(door, folder)["args"]
    assert importlib.util.find_spec(module)
    assert arguments == COMMANDS[door]


def test_callers_need_keys_and_probes_have_their_port(settings, door, folder):
    assert (settings.auth, settings.tls) == (Auth.KEYS, Tls.MESH)
    assert settings.host == "0.0.0.0"  # noqa: S104 - inside the pod
    http, admin, *_ = container_of(door, folder)["ports"]
    assert (http["containerPort"], admin["containerPort"]) == (settings.port, settings.admin_port)
    before_s = int(container_of(door, folder)["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod_of(door, folder)["terminationGracePeriodSeconds"] > before_s + settings.drain_s


def test_the_server_is_called_by_the_names_of_its_service(settings, door, folder):
    (service,) = of_kind("Service", folder).values()
    deployment = of_kind("Deployment", folder)[door]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    (port,) = service["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (settings.port, "http")
    (content,) = documents(folder / "kustomization.yaml")
    name, namespace = service["metadata"]["name"], content["namespace"]
    for called in (name, f"{name}.{namespace}", f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local"):
        assert is_known_host(f"{called}:{settings.port}", settings.allowed_hosts)


def test_metrics_of_the_gateway_are_where_prometheus_looks_for_them():
    folder = FOLDER / "gateway"
    ports = {port["name"]: port["containerPort"] for port in container_of("gateway", folder)["ports"]}
    annotations = of_kind("Deployment", folder)["gateway"]["spec"]["template"]["metadata"]["annotations"]
    set_port = environment_of("gateway", folder)["PAGANTIC_HTTP_METRICS_PORT"]
    assert annotations["prometheus.io/port"] == set_port == str(ports["metrics"])


def test_a_session_stays_with_the_pod_that_opened_it():
    folder = FOLDER / "mcp"
    assert of_kind("Deployment", folder)["mcp"]["spec"]["replicas"] == 1
    assert of_kind("Service", folder)["mcp"]["spec"]["sessionAffinity"] == "ClientIP"


def test_the_orchestrator_is_all_that_the_server_calls(door, folder):
    addresses = {name: value for name, value in environment_of(door, folder).items() if name.endswith("ADDRESS")}
    assert addresses == {"PAGANTIC_ADDRESS": f"dns:///orchestrator:{PORTS['orchestrator']}"}


def test_the_disruption_of_the_server_is_bounded(door, folder):
    budget = of_kind("PodDisruptionBudget", folder)[door]
    assert budget["spec"]["selector"] == of_kind("Deployment", folder)[door]["spec"]["selector"]
