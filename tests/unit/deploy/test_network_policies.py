"""Who may open a connection to whom: the policies allow what this table says, and nothing else."""

from itertools import product

import pytest

from pagantic_common.domain.defaults import PORTS
from tests.support.network_policies import Pod, may_connect
from tests.support.rendered_manifests import DOORS, by_kind, render
from tests.unit.deploy.test_manifests import AREAS, settings_of

# Caller, called, and what for. `anyone` is whoever is outside, in this cluster or beyond.
CALLS = {
    ("anyone", "orchestrator", "grpc"),
    ("anyone", "gateway", "http"),
    ("anyone", "mcp", "http"),
    ("gateway", "orchestrator", "grpc"),
    ("mcp", "orchestrator", "grpc"),
    ("orchestrator", "inference", "grpc"),
    ("orchestrator", "constraint", "grpc"),
    ("orchestrator", "context", "grpc"),
    ("orchestrator", "rerank", "grpc"),
    ("orchestrator", "tools", "grpc"),
    ("constraint", "inference", "grpc"),
    ("context", "inference", "grpc"),
    ("rerank", "inference", "grpc"),
    *(("prometheus", name, "metrics") for name in (*AREAS, "gateway")),
    *((name, "dns", port) for name in (*AREAS, *DOORS, "newcomer") for port in ("udp", "tcp")),
}
DATABASE_CALLS = {("orchestrator", "postgresql", "database"), ("context", "postgresql", "database")}
MESH_PORT = 15008
STRANGERS = {
    "anyone": Pod("elsewhere", {"app.kubernetes.io/name": "prometheus"}),
    "prometheus": Pod("monitoring", {"app.kubernetes.io/name": "prometheus"}),
    "neighbour": Pod("monitoring", {"app.kubernetes.io/name": "grafana"}),
    "dns": Pod("kube-system", {"k8s-app": "kube-dns"}, {"udp": 53, "tcp": 53, "https": 443}),
    "proxy": Pod("kube-system", {"k8s-app": "kube-proxy"}, {"udp": 53, "tcp": 53}),
    "postgresql": Pod("databases", {"app.kubernetes.io/name": "postgresql"}, {"database": 5432}),
}


def objects_of(overlay):
    return [*render(overlay), *(one for door in DOORS for one in render(door))]


def world(objects):
    """Return every pod by the name that the table gives it."""
    pods = {}
    for name, deployment in by_kind(objects, "Deployment").items():
        template = deployment["spec"]["template"]
        (container,) = template["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        pods[name] = Pod("pagantic", template["metadata"]["labels"], ports)
    newcomer = Pod("pagantic", {"app.kubernetes.io/name": "newcomer"}, {"http": 80})
    return pods | STRANGERS | {"newcomer": newcomer}


def allowed(objects):
    policies, pods = [one for one in objects if one["kind"] == "NetworkPolicy"], world(objects)
    return {
        (source, target, name)
        for source, target in product(pods, pods)
        if source != target and "pagantic" in {pods[source].namespace, pods[target].namespace}
        for name, port in pods[target].ports.items()
        if may_connect(policies, pods[source], pods[target], port, "UDP" if name == "udp" else "TCP")
    }


def said(calls):
    """Return the table with every stranger in the place of `anyone`."""
    outside = {(one, called, port) for caller, called, port in calls if caller == "anyone" for one in STRANGERS}
    return {call for call in calls if call[0] != "anyone"} | outside


@pytest.mark.parametrize(
    ("overlay", "more"),
    [
        ("base", set()),
        ("overlays/tls", set()),
        ("overlays/queue-scaling", set()),
        ("overlays/keda", set()),
        ("overlays/highly-available", DATABASE_CALLS),
        ("overlays/production", DATABASE_CALLS),
    ],
)
def test_the_policies_allow_what_the_table_says_and_nothing_else(overlay, more):
    assert allowed(objects_of(overlay)) == said(CALLS | more)


def test_the_mesh_opens_the_port_of_its_proxies_to_the_same_pairs():
    objects = render("overlays/mesh")
    policies, pods = [one for one in objects if one["kind"] == "NetworkPolicy"], world(objects)
    through = {
        (source, target)
        for source, target in product(pods, AREAS)
        if source != target and may_connect(policies, pods[source], pods[target], MESH_PORT)
    }
    calls = {call for call in said(CALLS) if not {"gateway", "mcp"} & set(call)}
    assert through == {(caller, called) for caller, called, port in calls if port == "grpc"}
    assert allowed(objects) == calls


def test_the_table_has_the_calls_whose_addresses_are_settings():
    addressed = {
        (area, name.removesuffix("_address"))
        for area in AREAS
        for name in settings_of(area).model_fields
        if name.endswith("_address")
    }
    between = {(caller, called) for caller, called, port in CALLS if port == "grpc" and {caller, called} <= set(AREAS)}
    assert between == addressed


@pytest.mark.parametrize("area", AREAS)
def test_ports_that_policies_number_are_those_that_pods_listen_on(area):
    assert world(render("base"))[area].ports["grpc"] == PORTS[area]


@pytest.mark.parametrize("name", ["default-deny", "inference-from-callers", "orchestrator-to-called", "dns"])
def test_the_table_differs_when_a_policy_is_missing(name):
    objects = [one for one in objects_of("base") if one["metadata"]["name"] != name]
    assert allowed(objects) != said(CALLS)
