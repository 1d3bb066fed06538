"""The server takes every manifest, without an unknown field and without a warning, and no pod that is not confined."""

import json
from collections import Counter

import pytest
import yaml

from tests.support.manifests import BASE, documents
from tests.support.rendered_manifests import RENDERED, render, render_text

KINDS_OF_THE_BASE = {
    "Deployment": 6,
    "Namespace": 1,
    "NetworkPolicy": 13,
    "PersistentVolumeClaim": 2,
    "PodDisruptionBudget": 6,
    "PriorityClass": 2,
    "Service": 6,
}


@pytest.fixture(scope="module")
def namespace(plane):
    plane.apply(*documents(BASE / "namespace.yaml"), *documents(BASE / "priority-classes.yaml"))


@pytest.mark.parametrize("name", RENDERED)
@pytest.mark.usefixtures("namespace")
def test_every_object_is_accepted_without_a_warning(plane, name):
    rendered = Counter(one["kind"] for one in render(name))
    done = plane.kubectl(
        *("apply", "--server-side", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-"),
        stdin=render_text(name),
    )
    assert Counter(one["kind"] for one in json.loads(done.stdout)["items"]) == rendered
    if name == "base":
        assert rendered == KINDS_OF_THE_BASE


@pytest.mark.usefixtures("namespace")
def test_a_misspelt_field_is_refused(plane):
    (service,) = (one for one in render("base") if one["kind"] == "Service" and one["metadata"]["name"] == "tools")
    service["spec"]["selektor"] = {}
    done = plane.kubectl(
        *("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"),
        stdin=yaml.safe_dump(service),
        check=False,
    )
    assert done.returncode
    assert "selektor" in done.stderr


@pytest.mark.usefixtures("namespace")
def test_a_pod_with_more_rights_is_refused(plane):
    (deployment,) = (
        one for one in render("base") if one["kind"] == "Deployment" and one["metadata"]["name"] == "tools"
    )
    template = deployment["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": "pagantic"}}
    command = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    plane.kubectl(*command, stdin=yaml.safe_dump(pod | {"spec": template["spec"]}))
    template["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    done = plane.kubectl(*command, stdin=yaml.safe_dump(pod | {"spec": template["spec"]}), check=False)
    assert 'violates PodSecurity "restricted' in done.stderr
