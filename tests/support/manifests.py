"""The Kubernetes manifests, read."""

from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
BASE = FOLDER / "base"
KUBERNETES = "1.34"
# The loader in C is ten times as fast.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_documents(text):
    return list(yaml.load_all(text, Loader=LOADER))


def documents(path):
    return read_documents(path.read_text(encoding="utf-8"))


def of_kind(kind, folder=BASE):
    """Return a folder's manifests of a kind by their names."""
    found = [document for path in sorted(folder.glob("*.yaml")) for document in documents(path)]
    return {document["metadata"]["name"]: document for document in found if document["kind"] == kind}


def pod_of(name, folder=BASE):
    return of_kind("Deployment", folder)[name]["spec"]["template"]["spec"]


def container_of(name, folder=BASE):
    (container,) = pod_of(name, folder)["containers"]
    return container


def environment_of(name, folder=BASE):
    return {entry["name"]: entry.get("value", "2") for entry in container_of(name, folder)["env"]}


def problem_of(document):
    """Return the first error in a Kubernetes object, such as an unknown field; an empty string if it is valid."""
    # Every worker imports every test, and this import compiles grammars for seconds.
    import kubernetes_validate  # noqa: PLC0415

    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error)
    return ""
