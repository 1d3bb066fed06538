"""A control plane with three nodes in two zones, and volumes for the claims."""

import os
from pathlib import Path

import pytest

from tests.support.control_plane import running_control_plane
from tests.support.needs import CONTROL_PLANE, skip_without

ZONES = {"node-0": "a", "node-1": "b", "node-2": "b"}


def node(name, zone):
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}},
    }


def volume(name):
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": f"/nowhere/{name}"},
        },
    }


@pytest.fixture(scope="session")
def plane():
    programs = os.environ.get("PAGANTIC_CONTROL_PLANE")
    if not programs:
        skip_without(CONTROL_PLANE)
    with running_control_plane(Path(programs)) as plane:
        for name, zone in ZONES.items():
            plane.apply(node(name, zone))
            capacity = {"cpu": "32", "memory": "128Gi", "ephemeral-storage": "64Gi", "pods": "100"}
            status = f'{{"status": {{"capacity": {capacity}, "allocatable": {capacity}}}}}'.replace("'", '"')
            plane.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "--patch", status)
        # Two for the base, and two for the chart: what was bound once is not bound again.
        plane.apply(*map(volume, ("one", "two", "three", "four")))
        yield plane
