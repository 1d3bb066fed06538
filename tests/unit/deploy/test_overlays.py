"""What the base, the doors and every overlay come to when they are rendered."""

import re

import pytest
import yaml

from pagantic_common.telemetry import names
from tests.support.manifests import FOLDER, problem_of
from tests.support.rendered_manifests import DOORS, OVERLAYS, RENDERED, by_kind, render
from tests.unit.deploy.test_manifests import AREAS, CUSTOM, settings_of
from tests.unit.deploy.test_observability import ALERTS

METRICS = {value for value in vars(names).values() if isinstance(value, str)}
# Longer than a DNS of the cluster keeps an answer: 30 s in CoreDNS' usual configuration.
DNS_S = 30


def pods(objects):
    return {name: one["spec"]["template"]["spec"] for name, one in by_kind(objects, "Deployment").items()}


@pytest.mark.parametrize("name", RENDERED)
def test_every_object_is_valid(name):
    for one in render(name):
        if not one["apiVersion"].startswith(CUSTOM):
            assert problem_of(one) == ""
        assert one["kind"] in {"Namespace", "PriorityClass"} or one["metadata"]["namespace"] == "pagantic"


def test_every_component_has_an_overlay_of_its_name():
    components = {folder.name for folder in (FOLDER / "components").iterdir()}
    assert set(OVERLAYS) == components | {"production"}
    for name in components:
        (content,) = yaml.safe_load_all((FOLDER / "overlays" / name / "kustomization.yaml").read_text())
        assert content["components"] == [f"../../components/{name}"]


@pytest.mark.parametrize("name", RENDERED)
def test_every_mount_has_a_volume_and_every_claim_is_there(name):
    objects = render(name)
    for pod in pods(objects).values():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == set(volumes)
        assert all(len(volume) == 2 for volume in volumes.values())
        claims = [volume["persistentVolumeClaim"] for volume in volumes.values() if "persistentVolumeClaim" in volume]
        assert {claim["claimName"] for claim in claims} <= set(by_kind(objects, "PersistentVolumeClaim"))


@pytest.mark.parametrize("name", RENDERED)
def test_secrets_are_files_that_the_pods_group_alone_may_read(name):
    for pod in pods(render(name)).values():
        secrets = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        assert {secret["defaultMode"] for secret in secrets} <= {0o440}
        if secrets:
            assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
        assert not any("secretKeyRef" in entry.get("valueFrom", {}) for entry in pod["containers"][0]["env"])


@pytest.mark.parametrize("name", [name for name in RENDERED if name not in DOORS])
def test_environments_are_settings_that_the_services_take(name, monkeypatch):
    for area in AREAS:
        with monkeypatch.context() as patch:
            (container,) = pods(render(name))[area]["containers"]
            for entry in container["env"]:
                assert len(entry) == 2  # a patch may leave the old value beside its own
                patch.setenv(entry["name"], entry.get("value", "2"))
            settings = settings_of(area)()
            assert (settings.host, settings.admin_port, settings.metrics_port) == ("0.0.0.0", 50060, 9464)  # noqa: S104


@pytest.mark.parametrize("name", RENDERED)
def test_pods_that_may_be_two_at_once_are_replaced_without_a_gap(name):
    for deployment in by_kind(render(name), "Deployment").values():
        spec = deployment["spec"]
        is_alone = any("persistentVolumeClaim" in volume for volume in spec["template"]["spec"]["volumes"])
        if is_alone and deployment["metadata"]["name"] in {"orchestrator", "context"}:
            assert spec["strategy"] == {"type": "Recreate"}
            assert spec["replicas"] == 1
        elif name != "overlays/gpu" or deployment["metadata"]["name"] != "inference":
            assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
            assert spec["minReadySeconds"] >= DNS_S


@pytest.mark.parametrize("name", RENDERED)
def test_disruptions_are_bounded_and_never_forbidden(name):
    deployments, budgets = by_kind(render(name), "Deployment"), by_kind(render(name), "PodDisruptionBudget")
    assert set(budgets) == set(deployments)
    for area, budget in budgets.items():
        assert budget["spec"] == {"maxUnavailable": 1, "selector": deployments[area]["spec"]["selector"]}


@pytest.mark.parametrize("name", [name for name in RENDERED if name != "overlays/single-node"])
def test_pods_are_spread_among_their_own(name):
    for deployment in by_kind(render(name), "Deployment").values():
        spreads = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert [spread["topologyKey"] for spread in spreads] == [
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
        ]
        assert all(spread["labelSelector"] == deployment["spec"]["selector"] for spread in spreads)


@pytest.mark.parametrize("name", RENDERED)
def test_priority_classes_are_those_of_the_base(name):
    classes = {pod["priorityClassName"] for pod in pods(render(name)).values()}
    assert classes <= set(by_kind(render("base"), "PriorityClass"))


# ---- those that scale


@pytest.mark.parametrize("name", [name for name in RENDERED if name not in DOORS])
def test_an_autoscaler_owns_the_number_of_pods(name):
    objects = render(name)
    scaled = {*by_kind(objects, "HorizontalPodAutoscaler"), *by_kind(objects, "ScaledObject")}
    without = {area for area, one in by_kind(objects, "Deployment").items() if "replicas" not in one["spec"]}
    assert without == scaled <= {"inference"}


@pytest.mark.parametrize("name", ["overlays/queue-scaling", "overlays/production"])
def test_the_autoscaler_asks_for_metrics_that_inference_has_and_the_adapter_serves(name):
    autoscaler = by_kind(render(name), "HorizontalPodAutoscaler")["inference"]["spec"]
    assert autoscaler["scaleTargetRef"]["name"] == "inference"
    asked = {metric["pods"]["metric"]["name"] for metric in autoscaler["metrics"]}
    assert asked <= METRICS
    adapter = yaml.safe_load(ALERTS.with_name("prometheus-adapter.yaml").read_text(encoding="utf-8"))
    (rule,) = adapter["rules"]["custom"]
    (pattern,) = re.findall(r'__name__=~"([^"]+)"', rule["seriesQuery"])
    assert all(re.fullmatch(pattern, metric) for metric in asked)


def test_keda_asks_for_metrics_that_exist_and_wakes_inference_for_calls_that_wait_for_it():
    objects = render("overlays/keda")
    scaled = by_kind(objects, "ScaledObject")["inference"]["spec"]
    assert (scaled["scaleTargetRef"]["name"], scaled["minReplicaCount"]) == ("inference", 0)
    demand, cache = scaled["triggers"]
    for trigger in (demand, cache):
        assert set(re.findall(r"pagantic_\w+", trigger["metadata"]["query"])) <= METRICS
    waiting = f'{names.RPC_WAITING_CALLS}{{namespace="pagantic",service="inference"}}'
    assert waiting in demand["metadata"]["query"]
    assert demand["metadata"]["activationThreshold"] == "0"


def test_with_no_pod_of_inference_calls_reach_the_orchestrator_and_wait(monkeypatch):
    for area, pod in pods(render("overlays/keda")).items():
        (container,) = pod["containers"]
        for entry in container["env"]:
            monkeypatch.setenv(entry["name"], entry.get("value", "2"))
        if "connect_patience_s" in settings_of(area).model_fields and area != "tools":
            assert settings_of(area)().connect_patience_s >= 300, area
        health = names.LIVENESS if area == "orchestrator" else names.READINESS
        assert container["readinessProbe"]["grpc"]["service"] == health


# ---- the others


def test_two_pods_of_everything_keep_their_state_in_a_database():
    objects = render("overlays/highly-available")
    assert {one["spec"]["replicas"] for one in by_kind(objects, "Deployment").values()} == {2}
    assert by_kind(objects, "PersistentVolumeClaim") == {}
    entries = {
        area: {entry["name"]: entry for entry in pods(objects)[area]["containers"][0]["env"]}
        for area in ("orchestrator", "context")
    }
    assert "PAGANTIC_ORCHESTRATOR_JOURNAL_URL" not in entries["orchestrator"]
    assert "PAGANTIC_ORCHESTRATOR_INSTANCE_ID" not in entries["orchestrator"]  # it is the pod's name then
    for area, name in (("orchestrator", "JOURNAL_URL"), ("context", "STORE_URL")):
        path = entries[area][f"PAGANTIC_{area.upper()}_{name}_FILE"]["value"]
        assert path == f"/run/secrets/pagantic/database/{name.lower().replace('_', '-')}"
        (mount,) = [
            mount for mount in pods(objects)[area]["containers"][0]["volumeMounts"] if mount["name"] == "database"
        ]
        (volume,) = [volume for volume in pods(objects)[area]["volumes"] if volume["name"] == "database"]
        assert (mount["mountPath"], volume["secret"]["defaultMode"]) == ("/run/secrets/pagantic/database", 0o440)
    for pod in pods(objects).values():
        assert pod["topologySpreadConstraints"][0]["whenUnsatisfiable"] == "DoNotSchedule"


def test_a_pod_on_a_gpu_has_one_and_the_image_for_it():
    pod = pods(render("overlays/gpu"))["inference"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["image"].endswith("-cuda")
    assert {"name": "PAGANTIC_INFERENCE_GPU_LAYERS", "value": "-1"} in container["env"]


def test_one_node_of_four_cores_has_room():
    requests = [pod["containers"][0]["resources"]["requests"] for pod in pods(render("overlays/single-node")).values()]
    millicores = [
        int(one["cpu"].removesuffix("m")) if one["cpu"].endswith("m") else int(one["cpu"]) * 1000 for one in requests
    ]
    assert sum(millicores) <= 2000
