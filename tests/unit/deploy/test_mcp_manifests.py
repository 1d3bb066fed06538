"""The manifests of the MCP server, which stand beside those of the services."""

from __future__ import annotations

import importlib.util

import pytest

from gateway.mcp.settings import McpSettings
from gateway.web.headers import is_known_host
from pagantic_common.domain.defaults import PORTS
from pagantic_common.settings import Auth, Tls
from pagantic_common.settings.names import TOOL_NAMES
from tests.support.manifests import FOLDER, container_of, documents, environment_of, of_kind, pod_of

MCP = FOLDER / "mcp"
PREFIX = McpSettings.model_config["env_prefix"]


@pytest.fixture
def settings(monkeypatch):
    for name, value in environment_of("mcp", MCP).items():
        assert name.removeprefix(PREFIX).lower() in McpSettings.model_fields or name in TOOL_NAMES
        monkeypatch.setenv(name, value)
    return McpSettings()


def test_the_pod_is_confined_and_probed_as_those_of_the_services_are():
    pod, container = pod_of("mcp", MCP), container_of("mcp", MCP)
    service_pod, service = pod_of("rerank"), container_of("rerank")
    for field in ("securityContext", "automountServiceAccountToken", "enableServiceLinks"):
        assert pod[field] == service_pod[field]
    for field in ("securityContext", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle"):
        assert container[field] == service[field]
    assert container["resources"].keys() == service["resources"].keys()
    assert container["resources"]["limits"].keys() == service["resources"]["limits"].keys()


def test_the_container_runs_the_server_over_http():
    module, *arguments = container_of("mcp", MCP)["args"]
    assert importlib.util.find_spec(module)
    assert arguments == ["mcp", "--http"]


def test_callers_need_keys_and_probes_have_their_port(settings):
    assert (settings.auth, settings.tls) == (Auth.KEYS, Tls.MESH)
    assert settings.host == "0.0.0.0"  # noqa: S104 - inside the pod
    http, admin = container_of("mcp", MCP)["ports"]
    assert (http["containerPort"], admin["containerPort"]) == (settings.port, settings.admin_port)
    before_s = int(container_of("mcp", MCP)["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod_of("mcp", MCP)["terminationGracePeriodSeconds"] > before_s + settings.drain_s


def test_the_server_is_called_by_the_names_of_its_service(settings):
    (service,) = of_kind("Service", MCP).values()
    deployment = of_kind("Deployment", MCP)["mcp"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    (port,) = service["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (settings.port, "http")
    (content,) = documents(MCP / "kustomization.yaml")
    name, namespace = service["metadata"]["name"], content["namespace"]
    for called in (name, f"{name}.{namespace}", f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local"):
        assert is_known_host(f"{called}:{settings.port}", settings.allowed_hosts)


def test_a_session_stays_with_the_pod_that_opened_it():
    assert of_kind("Deployment", MCP)["mcp"]["spec"]["replicas"] == 1
    assert of_kind("Service", MCP)["mcp"]["spec"]["sessionAffinity"] == "ClientIP"


def test_the_orchestrator_is_all_that_the_server_reaches():
    addresses = {name: value for name, value in environment_of("mcp", MCP).items() if name.endswith("ADDRESS")}
    assert addresses == {"PAGANTIC_ADDRESS": f"dns:///orchestrator:{PORTS['orchestrator']}"}
    policies = of_kind("NetworkPolicy", MCP)
    assert all(
        policy["spec"]["podSelector"] == of_kind("Deployment", MCP)["mcp"]["spec"]["selector"]
        for policy in policies.values()
    )
    (outgoing,) = policies["mcp-to-called"]["spec"]["egress"]
    (callee,) = outgoing["to"]
    assert callee["podSelector"] == of_kind("Deployment")["orchestrator"]["spec"]["selector"]
    assert [port["port"] for port in outgoing["ports"]] == [PORTS["orchestrator"]]
    (incoming,) = policies["mcp-from-outside"]["spec"]["ingress"]
    assert [port["port"] for port in incoming["ports"]] == ["http"]


def test_the_disruption_of_the_server_is_bounded():
    budget = of_kind("PodDisruptionBudget", MCP)["mcp"]
    assert budget["spec"]["selector"] == of_kind("Deployment", MCP)["mcp"]["spec"]["selector"]
