"""`python -m tests.support.write_chart`: writes the Helm chart from what kustomize renders of the base and the doors.

The manifests stay the only source. What users of Helm may choose becomes a value, whose default is the manifests' own.
"""

import json
import re
import textwrap

import yaml

from tests.support.manifests import FOLDER
from tests.support.rendered_manifests import DOORS, render

CHART = FOLDER.parent / "helm"
MADE = "# Made by `make chart` of deploy/kubernetes, which is the place for changes.\n"
NAMESPACE = "pagantic"
# Helm makes the namespace, or an administrator does.
LEFT_OUT = {"Namespace"}
MODEL = {
    "env": """\
- name: PAGANTIC_INFERENCE_MODEL_PATH
  value: {{ printf "/models/%s" .Values.model.file | quote }}
- name: PAGANTIC_INFERENCE_MODEL_NAME
  value: {{ .Values.model.name | quote }}
""",
    "volumeMounts": """\
- name: model
  mountPath: /models
  readOnly: true
""",
    "volumes": """\
- name: model
  persistentVolumeClaim:
    claimName: {{ .Values.model.claim }}
    readOnly: true
""",
}


def chart():
    """Return the chart's files by their names."""
    objects = {part: [one for one in render(part) if one["kind"] not in LEFT_OUT] for part in ("base", *DOORS)}
    values = {"image": "", "model": {"claim": "", "file": "model.gguf", "name": "my-model"}, "services": {}}
    values |= {door: {"enabled": False} for door in DOORS}
    templates = {}
    for part, several in objects.items():
        text = "---\n".join(_template(one, values) for one in several)
        if part in DOORS:
            text = f"{{{{- if .Values.{part}.enabled }}}}\n{text}{{{{- end }}}}\n"
        templates[f"templates/{part}.yaml"] = MADE + text
    written = "".join(yaml.safe_dump({key: value}, sort_keys=False) for key, value in values.items())
    schema = {"$schema": "https://json-schema.org/draft-07/schema#", **_schema(values)}
    return templates | {
        "values.yaml": MADE + written,
        "values.schema.json": json.dumps(schema, indent=2) + "\n",
    }


def _template(manifest, values):
    """Return the template of an object; its choices are added to the values."""
    if "namespace" in manifest["metadata"]:
        assert manifest["metadata"]["namespace"] == NAMESPACE
        manifest["metadata"]["namespace"] = "@.Release.Namespace@"
    if manifest["kind"] == "Deployment":
        _choose(manifest, values)
    text = yaml.safe_dump(manifest, sort_keys=False, width=200)
    text = re.sub(r"^( *)- '?@(\w+) (\w+)@'?\n", _further, text, flags=re.MULTILINE)
    text = re.sub(r"^( *)(\w+): '?@toYaml (\S+)@'?$", _nested, text, flags=re.MULTILINE)
    text = re.sub(r"'?@join , (\S+)@'?", r"""{{ join "," \1 | quote }}""", text)
    return re.sub(r"'?@(\.[^@]+)@'?", r"{{ \1 }}", text)


def _choose(deployment, values):
    name, spec = deployment["metadata"]["name"], deployment["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    here = f".Values.services.{name}"
    values["image"] = container["image"]
    own = values["services"][name] = {"resources": container["resources"], "env": []}
    container["resources"], container["image"] = f"@toYaml {here}.resources@", "@.Values.image@"
    if spec["strategy"].get("type") != "Recreate":  # those others write one file
        own["replicas"], spec["replicas"] = spec["replicas"], f"@{here}.replicas@"
    for entry in container["env"]:
        if entry["name"].endswith("_ALLOWED_HOSTS"):
            own["hosts"] = entry["value"].split(",")
            entry["value"] = f"@join , {here}.hosts@"
    container["env"].append(f"@env {name}@")
    if name == "inference":
        for field, owner in (("env", container), ("volumeMounts", container), ("volumes", pod)):
            owner[field].append(f"@model {field}@")


def _further(match):
    """Return what a list goes on with where a value asks for it."""
    indent, kind, name = match.groups()
    if kind == "env":
        entries = f"{{{{- toYaml . | nindent {len(indent)} }}}}"
        lines = f"{{{{- with .Values.services.{name}.env }}}}\n{entries}\n{{{{- end }}}}\n"
    else:
        lines = f"{{{{- if .Values.model.claim }}}}\n{MODEL[name]}{{{{- end }}}}\n"
    return textwrap.indent(lines, indent)


def _nested(match):
    indent, field, value = match.groups()
    return f"{indent}{field}: {{{{- toYaml {value} | nindent {len(indent) + 2} }}}}"


def _schema(value, field=""):
    """Return the schema of values like this one; quantities and counts may be written either way."""
    if isinstance(value, dict):
        if field in {"requests", "limits"}:
            return {"type": "object"}
        properties = {key: _schema(one, key) for key, one in value.items()}
        return {"type": "object", "additionalProperties": False, "properties": properties}
    names = {bool: "boolean", int: "integer", str: "string", list: "array"}
    return {"type": names[type(value)]}


def main():
    for name, text in chart().items():
        (CHART / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
