"""What Helm makes of the chart."""

import json
import subprocess
from functools import partial

import pytest
import yaml

from tests.support.rendered_manifests import DOORS, by_kind, render
from tests.support.write_chart import CHART, LEFT_OUT


@pytest.fixture
def helm(plane, tmp_path):
    def run(*arguments, check=True):
        command = [plane.programs / "helm", *arguments]
        environment = {"HOME": str(tmp_path), "KUBECONFIG": str(plane.kubeconfig)}
        done = subprocess.run(
            [str(part) for part in command], env=environment, capture_output=True, text=True, check=False, timeout=100
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture
def template(helm):
    def render_chart(*values, namespace="pagantic"):
        options = [part for value in values for part in ("--set", value)]
        done = helm("template", "pagantic", CHART, "--namespace", namespace, *options)
        return [one for one in yaml.safe_load_all(done.stdout) if one]

    return render_chart


def keyed(objects):
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def test_the_default_values_give_the_base(template):
    expected = [one for one in render("base") if one["kind"] not in LEFT_OUT]
    assert keyed(template()) == keyed(expected)


def test_the_doors_are_those_of_their_folders(template):
    expected = [one for part in ("base", *DOORS) for one in render(part) if one["kind"] not in LEFT_OUT]
    assert keyed(template("gateway.enabled=true", "mcp.enabled=true")) == keyed(expected)


def test_values_reach_the_manifests(template):
    objects = template(
        "image=registry.example.com/pagantic@sha256:0",
        "services.tools.replicas=3",
        "services.tools.resources.limits.memory=1Gi",
        "services.tools.env[0].name=PAGANTIC_TOOLS_LOG_LEVEL",
        "services.tools.env[0].value=DEBUG",
        "gateway.enabled=true",
        "services.gateway.hosts={chat.example.com,gateway}",
        namespace="elsewhere",
    )
    deployments = by_kind(objects, "Deployment")
    assert {one["metadata"]["namespace"] for one in deployments.values()} == {"elsewhere"}
    (tools,) = deployments["tools"]["spec"]["template"]["spec"]["containers"]
    assert deployments["tools"]["spec"]["replicas"] == 3
    assert tools["image"] == "registry.example.com/pagantic@sha256:0"
    assert tools["resources"]["limits"]["memory"] == "1Gi"
    assert {"name": "PAGANTIC_TOOLS_LOG_LEVEL", "value": "DEBUG"} in tools["env"]
    (gateway,) = deployments["gateway"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "PAGANTIC_HTTP_ALLOWED_HOSTS", "value": "chat.example.com,gateway"} in gateway["env"]


def test_a_model_of_ones_own_is_mounted_as_the_overlay_does(template):
    memory = "services.inference.resources.{}.memory={}"
    resources = [memory.format("requests", "8Gi"), memory.format("limits", "12Gi")]
    resources += [f"services.inference.resources.{bound}.cpu=4" for bound in ("requests", "limits")]
    ours = by_kind(template("model.claim=model", *resources), "Deployment")["inference"]
    overlay = by_kind(render("overlays/own-model"), "Deployment")["inference"]
    assert sort_lists(ours) == sort_lists(overlay)


def sort_lists(value):
    if isinstance(value, dict):
        return {key: sort_lists(one) for key, one in value.items()}
    if isinstance(value, list):
        return sorted(map(sort_lists, value), key=partial(json.dumps, sort_keys=True))
    return str(value)  # --set makes numbers of quantities


def test_a_misspelt_value_is_refused(helm):
    done = helm("template", "pagantic", CHART, "--set", "services.tools.replica=2", check=False)
    assert done.returncode
    assert "replica" in done.stderr


def test_the_chart_installs(helm, plane):
    helm("lint", "--strict", CHART)
    # Classes are the whole cluster's, and Helm takes over none.
    plane.kubectl("delete", "priorityclass", *by_kind(render("base"), "PriorityClass"), "--ignore-not-found")
    helm(
        *("install", "charted", CHART, "--namespace", "charted", "--create-namespace"),
        *("--set", "gateway.enabled=true", "--set", "mcp.enabled=true"),
    )
    try:
        names = [one["metadata"]["name"] for one in plane.get("deployments", "-n", "charted")]
        assert sorted(names) == sorted([*by_kind(render("base"), "Deployment"), *DOORS])
    finally:
        helm("uninstall", "charted", "--namespace", "charted")
