from importlib import import_module
from pathlib import Path

import pytest
import yaml

from pagantic_common.domain.defaults import PORTS
from pagantic_common.settings import InnerSettings, ServiceSettings
from pagantic_common.telemetry.names import LIVENESS, READINESS
from tests.support.manifests import BASE, FOLDER, container_of, documents, environment_of, of_kind, pod_of, problem_of

MANIFESTS = sorted(path for path in FOLDER.rglob("*.yaml") if path.name != "kustomization.yaml")
KUSTOMIZATIONS = sorted(FOLDER.rglob("kustomization.yaml"))
AREAS = sorted(PORTS)
# Their definitions are not Kubernetes' own: tests/cluster has them checked by those that their projects publish.
CUSTOM = ("cert-manager.io/", "keda.sh/", "monitoring.coreos.com/", "security.istio.io/")


def settings_of(area):
    module = import_module(f"services.{area}.settings")
    (cls,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ServiceSettings) and value.__module__ == module.__name__
    )
    return cls


def settings_from(area, environment, monkeypatch):
    prefix = settings_of(area).model_config["env_prefix"]
    for name, value in environment.items():
        assert name.removeprefix(prefix).lower() in settings_of(area).model_fields, f"{name} is no setting"
        monkeypatch.setenv(name, value)
    return settings_of(area)()


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_every_manifest_is_valid_and_has_no_unknown_field(path):
    for document in documents(path):
        if not path.stem.endswith("-patch") and not document["apiVersion"].startswith(CUSTOM):
            assert problem_of(document) == ""


def test_validation_finds_a_misspelt_field():
    deployment = of_kind("Deployment")["tools"]
    deployment["spec"]["template"]["spec"]["containers"][0]["redinessProbe"] = {}
    assert "redinessProbe" in problem_of(deployment)


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: path.parent.name)
def test_kustomization_lists_every_file_beside_it(path):
    (content,) = documents(path)
    listed = content.get("resources", []) + content.get("components", [])
    listed += [patch["path"] for patch in content.get("patches", []) if "path" in patch]
    assert all((path.parent / name).exists() for name in listed)
    beside = {file.name for file in path.parent.glob("*.yaml")} - {"kustomization.yaml"}
    assert beside == {name for name in listed if not name.startswith("..")}


def test_image_tag_is_the_version_of_the_project():
    project = (FOLDER.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    for folder, names in ((BASE, AREAS), (FOLDER / "mcp", ["mcp"]), (FOLDER / "gateway", ["gateway"])):
        (content,) = documents(folder / "kustomization.yaml")
        (image,) = content["images"]
        assert {container_of(name, folder)["image"] for name in names} == {image["name"]}
        assert f'version = "{image["newTag"]}"' in project


def test_every_area_and_nothing_else_has_a_deployment_and_a_service():
    assert sorted(of_kind("Deployment")) == sorted(of_kind("Service")) == AREAS


@pytest.mark.parametrize("area", AREAS)
def test_pods_are_confined(area):
    pod, container = pod_of(area), container_of(area)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("area", AREAS)
def test_containers_have_requests_and_limits_and_run_their_own_service(area):
    container = container_of(area)
    assert container["args"] == [f"services.{area}"]
    for bound in ("requests", "limits"):
        assert set(container["resources"][bound]) == {"cpu", "memory", "ephemeral-storage"}


@pytest.mark.parametrize("area", AREAS)
@pytest.mark.parametrize(
    ("probe", "health"), [("startupProbe", LIVENESS), ("readinessProbe", READINESS), ("livenessProbe", LIVENESS)]
)
def test_containers_are_probed_over_grpc_by_the_health_that_each_probe_is_about(area, probe, health):
    admin_port = int(environment_of(area)[f"PAGANTIC_{area.upper()}_ADMIN_PORT"])
    assert container_of(area)[probe]["grpc"] == {"port": admin_port, "service": health}


@pytest.mark.parametrize("area", AREAS)
def test_headless_service_reaches_the_pods_of_its_deployment(area):
    deployment, service = of_kind("Deployment")[area], of_kind("Service")[area]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    (service_port,), (container_port, admin_port, metrics_port) = service["spec"]["ports"], container_of(area)["ports"]
    assert len({port["containerPort"] for port in (container_port, admin_port, metrics_port)}) == 3
    assert service_port["port"] == container_port["containerPort"] == settings_of(area).model_fields["port"].default
    assert service_port["targetPort"] == service_port["name"] == container_port["name"] == "grpc"


@pytest.mark.parametrize("area", AREAS)
def test_environment_is_made_of_settings_that_the_service_has(area, monkeypatch):
    settings = settings_from(area, environment_of(area), monkeypatch)
    assert settings.host == "0.0.0.0"  # noqa: S104 - inside the pod
    before_s = int(container_of(area)["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod_of(area)["terminationGracePeriodSeconds"] > before_s + settings.drain_s


@pytest.mark.parametrize("area", AREAS)
def test_services_are_addressed_by_their_name_and_port(area, monkeypatch):
    settings = settings_from(area, environment_of(area), monkeypatch)
    addresses = {name: value for name, value in settings.model_dump().items() if name.endswith("_address")}
    assert addresses == {
        name: f"dns:///{callee}:{PORTS[callee]}" for name in addresses for callee in [name.removesuffix("_address")]
    }


@pytest.mark.parametrize(
    ("area", "kept_at"),
    [
        ("orchestrator", lambda settings: settings.read_journal_url()),
        ("context", lambda settings: settings.data_folder),
    ],
)
def test_state_is_kept_on_a_claim_by_one_pod_at_a_time(area, kept_at, monkeypatch):
    spec = of_kind("Deployment")[area]["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}
    (volume,) = (volume for volume in pod_of(area)["volumes"] if "persistentVolumeClaim" in volume)
    assert volume["persistentVolumeClaim"]["claimName"] in of_kind("PersistentVolumeClaim")
    (mount,) = (mount for mount in container_of(area)["volumeMounts"] if mount["name"] == volume["name"])
    settings = settings_from(area, environment_of(area), monkeypatch)
    kept = Path(str(kept_at(settings)).removeprefix("sqlite:///"))
    assert kept.is_relative_to(mount["mountPath"])


@pytest.mark.parametrize("area", AREAS)
def test_metrics_are_where_prometheus_looks_for_them(area):
    (port,) = (port for port in container_of(area)["ports"] if port["name"] == "metrics")
    annotations = of_kind("Deployment")[area]["spec"]["template"]["metadata"]["annotations"]
    set_port = environment_of(area)[f"PAGANTIC_{area.upper()}_METRICS_PORT"]
    assert annotations == {"prometheus.io/scrape": "true", "prometheus.io/port": set_port}
    assert set_port == str(port["containerPort"])


def test_every_deployment_bounds_its_disruption():
    assert sorted(of_kind("PodDisruptionBudget")) == AREAS
    for area, budget in of_kind("PodDisruptionBudget").items():
        assert budget["spec"]["selector"] == of_kind("Deployment")[area]["spec"]["selector"]


def test_overlay_patches_what_the_base_has():
    for path in FOLDER.rglob("*-patch.yaml"):
        (patch,) = documents(path)
        base = of_kind(patch["kind"])[patch["metadata"]["name"]]
        names = {container["name"] for container in base["spec"]["template"]["spec"]["containers"]}
        fields = settings_of(patch["metadata"]["name"]).model_fields
        for container in patch["spec"]["template"]["spec"]["containers"]:
            assert container["name"] in names
            for entry in container.get("env", []):
                prefix = f"PAGANTIC_{patch['metadata']['name'].upper()}_"
                assert entry["name"].removeprefix(prefix).lower() in fields


# ---- components/tls


TLS = FOLDER / "components" / "tls"


def certificates():
    found = [document for document in documents(TLS / "certificates.yaml") if document["kind"] == "Certificate"]
    return {document["metadata"]["name"]: document["spec"] for document in found}


def tls_patches():
    """Return the operations on every Deployment, and those on each of them."""
    (content,) = documents(TLS / "kustomization.yaml")
    patches = [patch for patch in content["patches"] if patch.get("target", {}).get("kind") == "Deployment"]
    by_name = {patch["target"].get("name", ""): yaml.safe_load(patch["patch"]) for patch in patches}
    return by_name.pop(""), by_name


@pytest.mark.parametrize("area", AREAS)
def test_every_service_has_a_certificate_under_the_name_that_it_is_called_by(area):
    certificate = certificates()[f"{area}-tls"]
    assert area in certificate["dnsNames"]
    assert certificate["uris"] == [InnerSettings.model_fields["spiffe_prefix"].default + area]
    assert {"server auth", "client auth"} <= set(certificate["usages"])
    (volume,) = tls_patches()[1][area]
    assert volume["value"]["secret"]["secretName"] == certificate["secretName"]


def test_every_service_finds_its_certificate_where_it_is_mounted(monkeypatch):
    for_all, by_name = tls_patches()
    assert sorted(by_name) == AREAS
    added = {}
    for operation in for_all:
        added.setdefault(operation["path"], []).append(operation["value"])
    variables = added.pop("/spec/template/spec/containers/0/env/-")
    (mount,) = added.pop("/spec/template/spec/containers/0/volumeMounts/-")
    assert {path.rpartition("/")[0] for path in added} == {"/spec/template/spec/securityContext"}
    for variable in variables:
        monkeypatch.setenv(variable["name"], variable["value"])
    settings = settings_of("inference")()
    assert settings.tls == "files"
    for path, name in (
        (settings.tls_cert_file, "tls.crt"),
        (settings.tls_key_file, "tls.key"),
        (settings.tls_ca_file, "ca.crt"),
    ):
        assert path == Path(mount["mountPath"]) / name
