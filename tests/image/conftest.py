"""The image, and a system of its containers as deploy/compose.yaml has them."""

import os

import pytest

from tests.support.containers import Containers, podman
from tests.support.needs import IMAGE, skip_without


@pytest.fixture(scope="session")
def image():
    name = os.environ.get("PAGANTIC_TEST_IMAGE")
    if not name:
        skip_without(IMAGE)
    assert podman("image", "exists", name, check=False).returncode == 0, f"there is no image {name}"
    return name


@pytest.fixture(scope="module")
def system(image, tmp_path_factory):
    with Containers(image, tmp_path_factory.mktemp("containers")) as containers:
        yield containers
