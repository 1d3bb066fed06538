"""The base, and then several pods of everything, run on nodes that only seem to: what the controllers make of them."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.cluster.conftest import ZONES
from tests.support.custom_metrics import serving_metrics
from tests.support.rendered_manifests import DOORS, by_kind, render

SERVICES = sorted(by_kind(render("base"), "Deployment"))
EVERYONE = sorted((*SERVICES, *DOORS))
COMPONENT = "app.kubernetes.io/component"
ALONE = {"mcp"}  # one pod in every overlay

pytestmark = pytest.mark.timeout(400)


class Installed:
    """The namespace of an installation."""

    def __init__(self, plane):
        self.plane = plane

    def kubectl(self, *arguments, **options):
        return self.plane.kubectl("-n", "pagantic", *arguments, **options)

    def get(self, *arguments):
        return self.plane.get("-n", "pagantic", *arguments)

    def available(self):
        return {one["metadata"]["name"]: one["status"].get("availableReplicas", 0) for one in self.get("deployments")}

    def ready(self):
        return {one["metadata"]["name"]: one["status"].get("readyReplicas", 0) for one in self.get("deployments")}

    def wanted(self):
        return {one["metadata"]["name"]: one["spec"]["replicas"] for one in self.get("deployments")}

    def roll_out(self):
        self.kubectl("rollout", "status", "deployment", timeout_s=180)

    def pods_of(self, component):
        pods = self.get("pods", "-l", f"{COMPONENT}={component}")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def evict(self, pod):
        """Ask for an eviction, and return whether the budgets allow it."""
        name, eviction = pod["metadata"]["name"], {"apiVersion": "policy/v1", "kind": "Eviction"}
        eviction["metadata"] = {"name": name, "namespace": "pagantic"}
        path = f"/api/v1/namespaces/pagantic/pods/{name}/eviction"
        done = self.plane.kubectl("create", f"--raw={path}", "-f", "-", stdin=json.dumps(eviction), check=False)
        assert done.returncode == 0 or "disruption budget" in done.stderr, done.stderr
        return done.returncode == 0


@pytest.fixture(scope="module")
def base(plane):
    plane.apply(*render("base"), *(one for door in DOORS for one in render(door)))
    installed = Installed(plane)
    installed.roll_out()
    return installed


@pytest.fixture(scope="module")
def production(base):
    """The overlay is applied over the base, as an operator does who grows."""
    base.plane.apply(*render("overlays/production"))
    two = {name: 1 if name in ALONE else 2 for name in EVERYONE}
    base.plane.wait_for(base.wanted, lambda wanted: wanted == two)  # the autoscaler sets that of inference
    base.roll_out()
    return base


def test_the_base_runs_every_service_and_its_claims_are_bound(base):
    assert base.available() == base.wanted()
    assert sorted(base.available()) == EVERYONE
    claims = {one["metadata"]["name"]: one["status"]["phase"] for one in base.get("pvc")}
    assert claims == {"orchestrator-state": "Bound", "context-state": "Bound"}


def test_inference_does_not_evict_what_every_request_needs(base):
    def priority(name):
        (pod,) = base.pods_of(name)
        return pod["spec"]["priority"], pod["spec"]["preemptionPolicy"]

    assert {name: priority(name) for name in SERVICES} == {
        name: (900_000, "Never") if name == "inference" else (1_000_000, "PreemptLowerPriority") for name in SERVICES
    }


def test_a_rollout_of_the_base_never_runs_two_pods_on_one_file_and_keeps_one_of_all_others(base):
    with_file = {"orchestrator", "context"}
    least, most = extremes_of_a_rollout(base)
    assert {name for name, count in most.items() if count == 1} == with_file
    assert all(least[name] >= 1 for name in set(EVERYONE) - with_file)


def extremes_of_a_rollout(installed):
    """Replace every pod; return the fewest that were available of each meanwhile, and the most that there were."""
    before = {pod["metadata"]["uid"] for pod in installed.get("pods")}
    installed.kubectl("rollout", "restart", "deployment")
    least = installed.available()
    wanted = installed.wanted()
    most = Counter()

    def look():
        for name, count in installed.available().items():
            least[name] = min(least[name], count)
        pods = installed.get("pods")
        for name, count in Counter(pod["metadata"]["labels"][COMPONENT] for pod in pods).items():
            most[name] = max(most[name], count)
        return {pod["metadata"]["uid"] for pod in pods} & before

    installed.plane.wait_for(look, lambda old: not old, timeout_s=180)
    installed.roll_out()
    assert installed.available() == wanted
    return least, most


# ---- overlays/production


def test_the_pods_of_a_service_are_on_different_nodes_and_in_different_zones(production):
    for name in sorted(set(EVERYONE) - ALONE - {"gateway"}):
        nodes = [pod["spec"]["nodeName"] for pod in production.pods_of(name)]
        assert len(set(nodes)) == len(nodes) == 2, name
        assert len({ZONES[node] for node in nodes}) == 2, name


def test_a_rollout_takes_no_pod_away_before_another_one_is_there(production):
    least, _ = extremes_of_a_rollout(production)
    assert least == {name: 1 if name in ALONE else 2 for name in EVERYONE}


def test_an_eviction_is_refused_while_the_other_pod_is_gone(production):
    for node in ZONES:
        production.plane.kubectl("cordon", node)
    try:
        for name in sorted(set(EVERYONE) - ALONE):
            first, second = production.pods_of(name)
            assert production.evict(first), name
            assert not production.evict(second), name
    finally:
        for node in ZONES:
            production.plane.kubectl("uncordon", node)
    production.roll_out()


def test_a_node_is_drained_and_every_service_keeps_a_pod(production):
    (pod,) = production.pods_of("mcp")
    node = pod["spec"]["nodeName"]
    drain = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s")
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(production.plane.kubectl, *drain, timeout_s=200)
        while not draining.done():
            assert all(count >= 1 for name, count in production.ready().items() if name not in ALONE)
        draining.result()
    try:
        production.roll_out()
        assert {one["spec"]["nodeName"] for one in production.get("pods")} == set(ZONES) - {node}
    finally:
        production.plane.kubectl("uncordon", node)


def test_inference_is_scaled_by_what_waits_and_by_its_cache_and_not_by_a_processor(production, tmp_path):
    autoscaler = "hpa/inference"
    values = {
        "pagantic_inference_queued_requests": 0,
        "pagantic_inference_pending_prompt_tokens": 0,
        "pagantic_inference_kv_used_ratio": 0,
    }
    metrics = production.get(autoscaler)["spec"]["metrics"]
    assert sorted(metric["pods"]["metric"]["name"] for metric in metrics) == sorted(values)

    def wanted():
        return production.get(autoscaler)["status"].get("desiredReplicas", 0)

    with serving_metrics(production.plane, values, tmp_path):
        production.plane.wait_for(lambda: conditions(production), lambda found: found.get("ScalingActive") == "True")
        assert wanted() == 2
        values["pagantic_inference_queued_requests"] = 3
        production.plane.wait_for(wanted, lambda count: count == 3)
        values["pagantic_inference_queued_requests"] = 0
        values["pagantic_inference_kv_used_ratio"] = 1
        production.plane.wait_for(wanted, lambda count: count == 4, timeout_s=180)
        production.plane.wait_for(lambda: len(production.pods_of("inference")), lambda count: count == 4)


def conditions(installed):
    with suppress(KeyError):
        return {one["type"]: one["status"] for one in installed.get("hpa/inference")["status"]["conditions"]}
    return {}
