"""What NetworkPolicies allow, as the documentation of Kubernetes says it."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Pod:
    """A pod, with the ports that it names; `namespace_labels` are those of its namespace."""

    namespace: str
    labels: dict[str, str]
    ports: dict[str, int] = field(default_factory=dict)

    @property
    def namespace_labels(self):
        return {"kubernetes.io/metadata.name": self.namespace}


def may_connect(policies, source, target, port, protocol="TCP"):
    """Tell whether the source may open a connection to a port of the target: both ends must allow it."""
    return _allows(policies, "Egress", source, target, (target, port, protocol)) and _allows(
        policies, "Ingress", target, source, (target, port, protocol)
    )


def _allows(policies, direction, pod, peer, destination):
    rules, peers = {"Egress": ("egress", "to"), "Ingress": ("ingress", "from")}[direction]
    binding = [
        policy
        for policy in policies
        if policy["metadata"]["namespace"] == pod.namespace
        and direction in policy["spec"]["policyTypes"]
        and _selects(policy["spec"]["podSelector"], pod.labels)
    ]
    return not binding or any(
        _names_port(rule, *destination) and _names_peer(rule.get(peers), peer, policy["metadata"]["namespace"])
        for policy in binding
        for rule in policy["spec"].get(rules, [])
    )


def _names_port(rule, target, port, protocol):
    """A rule without ports names all; a name of a port is the target's own."""
    return "ports" not in rule or any(
        one["protocol"] == protocol and target.ports.get(one["port"], one["port"]) == port for one in rule["ports"]
    )


def _names_peer(peers, pod, namespace):
    """A rule without peers names everyone; one without namespaces means its own."""
    return peers is None or any(
        (
            _selects(peer["namespaceSelector"], pod.namespace_labels)
            if "namespaceSelector" in peer
            else pod.namespace == namespace
        )
        and _selects(peer.get("podSelector", {}), pod.labels)
        for peer in peers
    )


def _selects(selector, labels):
    assert set(selector) <= {"matchLabels", "matchExpressions"}
    wanted = selector.get("matchLabels", {})
    expressions = selector.get("matchExpressions", [])
    assert all(one["operator"] == "In" for one in expressions)
    return wanted.items() <= labels.items() and all(labels.get(one["key"]) in one["values"] for one in expressions)
