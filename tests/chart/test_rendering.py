"""What Helm makes of the chart: permissions, pods, policies, and which values restart the operator."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from chart.conftest import CHART, Objects, Render, Template
from chart.test_values import OF_A_POD, VALUES, value_paths
from plimsoll_runtime.contract.endpoints import DEFAULT_PORT
from plimsoll_runtime.contract.last_words import TERMINATION_LOG_VARIABLE

pytestmark = pytest.mark.cluster

Values = Mapping[str, Any]
TWO_NAMESPACES: Values = {"watchNamespaces": ["a", "b"]}
CEILINGS: Values = {
    "ceilings": {
        "enabled": True,
        "contextLength": 2_000_000,
        "maxOutputLimit": 4096,
        "runningSlots": 16,
        "replicas": 4,
        "exemptNamespaces": ["lab"],
    }
}
PROBE: Values = {"probe": {"server": "qwen", "namespace": "a", "apiKeysSecret": {"name": "keys", "key": "list"}}}
# Changes of what runs in the operator's pod.
RESTARTING: Mapping[str, Values] = {
    "image tag": {"image": {"tag": "v2"}},
    "image by digest": {
        "image": {"repository": "other/operator", "digest": f"sha256:{'0' * 64}", "pullPolicy": "Never"}
    },
    "runtime image": {"runtimeImage": {"repository": "other/runtime", "tag": "v3"}},
    "runtime image by digest": {"runtimeImage": {"digest": f"sha256:{'1' * 64}"}},
    "pull secret": {"imagePullSecrets": [{"name": "pull"}]},
    "namespaces": TWO_NAMESPACES,
    "hub": {"hubEndpoint": "http://hub.local:8080"},
    "resync": {"resyncSeconds": 600},
    "lease": {"leaderElection": True},
    "log": {"log": {"format": "text", "level": "debug"}},
    "account of another": {"serviceAccount": {"create": False, "name": "mine"}},
    "resources": {"resources": {"limits": {"memory": "1Gi", "cpu": 2}}},
    "pod": {"podAnnotations": {"a": "b"}, "podLabels": {"team": "x"}, "priorityClassName": "system-cluster-critical"},
    "place": {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
    },
}
# Changes of what lies around it.
RESTARTING_NOTHING: Mapping[str, Values] = {
    "ceilings": CEILINGS,
    "one ceiling": {"ceilings": {"enabled": True, "replicas": 2}},
    "probe": PROBE,
    "monitor": {"serviceMonitor": {"enabled": True, "interval": "10s", "labels": {"release": "prom"}}},
    "account": {"serviceAccount": {"annotations": {"a": "b"}}},
    "no CRD": {"crds": {"install": False}},
    "CRD goes with the chart": {"crds": {"keep": False}},
    "no roles": {"rbac": {"create": False}},
    "no roles for people": {"rbac": {"aggregate": False}},
}
RENAMING: Mapping[str, Values] = {
    "names": {"nameOverride": "line", "fullnameOverride": "mark"},
    "name": {"nameOverride": "line"},
}
EVERY_RENDER = {"defaults": {}, **RESTARTING, **RESTARTING_NOTHING, **RENAMING}


def one(objects: Objects, kind: str, name: str = "rel-plimsoll") -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def kinds(objects: Objects) -> list[str]:
    return sorted(each["kind"] for each in objects)


def operator(objects: Objects) -> dict[str, Any]:
    """The operator's container."""
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_every_value_is_in_a_render_of_this_file() -> None:
    leaves = {
        path for path, value in value_paths(VALUES) if not (isinstance(value, dict) and value) or path in OF_A_POD
    }
    rendered = {path for values in EVERY_RENDER.values() for path, _ in value_paths(values)}
    assert leaves - rendered == set()


@pytest.mark.parametrize("name", EVERY_RENDER)
def test_a_render_holds_one_operator_and_no_two_objects_of_one_name(name: str, render: Render) -> None:
    objects = render(EVERY_RENDER[name])
    named = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    assert len(set(named)) == len(named)
    (deployment,) = [each for each in objects if each["kind"] == "Deployment"]
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    for each in objects:
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == "rel"


@pytest.mark.parametrize("name", RESTARTING)
def test_b128_a_change_of_configuration_is_a_change_of_the_pod(name: str, render: Render) -> None:
    """Elsewhere values went into a ConfigMap, and the pods kept what they had read at their start."""
    before, after = one(render({}), "Deployment"), one(render(RESTARTING[name]), "Deployment")
    assert after["spec"]["template"] != before["spec"]["template"]
    assert after["spec"]["selector"] == before["spec"]["selector"]  # immutable


@pytest.mark.parametrize("name", RESTARTING_NOTHING)
def test_b128_a_change_around_the_operator_restarts_nothing(name: str, render: Render) -> None:
    assert one(render(RESTARTING_NOTHING[name]), "Deployment") == one(render({}), "Deployment")


def test_the_operator_is_told_what_the_values_say(render: Render) -> None:
    assert operator(render({}))["args"] == [
        "operator",
        "--default-image=plimsoll/runtime:0.1.0",
        "--log-format=json",
        "--log-level=info",
        "--resync-seconds=60",
    ]
    changed = {**RESTARTING["runtime image"], **RESTARTING["log"], **TWO_NAMESPACES, "leaderElection": True}
    changed |= RESTARTING["resync"]
    assert operator(render(changed))["args"] == [
        "operator",
        "--default-image=other/runtime:v3",
        "--log-format=text",
        "--log-level=debug",
        "--resync-seconds=600",
        "--leader-election",
        "--namespace=a",
        "--namespace=b",
    ]
    environment = {each["name"]: each.get("value") for each in operator(render(RESTARTING["hub"]))["env"]}
    assert environment["HF_ENDPOINT"] == "http://hub.local:8080"
    assert environment[TERMINATION_LOG_VARIABLE] == "/dev/termination-log"


def test_images_go_by_digest_before_tag(render: Render) -> None:
    assert operator(render({}))["image"] == "plimsoll/operator:0.1.0"
    assert operator(render(RESTARTING["image by digest"]))["image"] == f"other/operator@sha256:{'0' * 64}"
    digest = operator(render(RESTARTING["runtime image by digest"]))["args"][1]
    assert digest == f"--default-image=plimsoll/runtime@sha256:{'1' * 64}"


RULES = {
    ("plimsoll.dev", "inferenceservers"): {"get", "list", "watch"},
    ("plimsoll.dev", "inferenceservers/status"): {"patch"},
    ("plimsoll.dev", "inferenceservers/finalizers"): {"update"},
    ("apps", "deployments"): {"get", "list", "watch", "create", "patch"},
    ("", "services"): {"get", "list", "watch", "create", "patch"},
    ("", "serviceaccounts"): {"get", "list", "watch", "create", "patch"},
    ("", "persistentvolumeclaims"): {"get", "list", "watch", "create", "patch", "delete"},
    ("policy", "poddisruptionbudgets"): {"get", "list", "watch", "create", "patch", "delete"},
    ("networking.k8s.io", "networkpolicies"): {"get", "list", "watch", "create", "patch"},
    ("", "pods"): {"list", "watch", "patch"},
    ("", "events"): {"list", "create"},
}


def rules(role: Mapping[str, Any]) -> dict[tuple[str, str], set[str]]:
    return {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_b129_the_permissions_are_these_and_no_others(render: Render) -> None:
    objects = render({})
    assert rules(one(objects, "ClusterRole")) == RULES
    assert [each for each in objects if each["kind"] in ("Role", "RoleBinding")] == []
    binding = one(objects, "ClusterRoleBinding")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "rel-plimsoll", "namespace": "sys"}]
    people = {each["metadata"]["name"] for each in objects if each["kind"] == "ClusterRole"} - {"rel-plimsoll"}
    assert people == {"rel-plimsoll-view", "rel-plimsoll-edit"}


def test_b129_with_namespaces_named_nothing_is_allowed_in_the_whole_cluster(render: Render) -> None:
    """Elsewhere installations for one namespace still listed namespaces and CRDs of the cluster, in vain."""
    objects = render(TWO_NAMESPACES)
    assert [kind for kind in kinds(objects) if kind.startswith("ClusterRole")] == []
    roles = [each for each in objects if each["kind"] == "Role"]
    assert [role["metadata"]["namespace"] for role in roles] == ["a", "b"]
    assert all(rules(role) == RULES for role in roles)
    bindings = [each for each in objects if each["kind"] == "RoleBinding"]
    assert [each["metadata"]["namespace"] for each in bindings] == ["a", "b"]
    assert {each["subjects"][0]["namespace"] for each in bindings} == {"sys"}


def test_b129_a_lease_is_all_that_leader_election_adds(render: Render) -> None:
    role = one(render({"leaderElection": True}), "Role", "rel-plimsoll-leader")
    create, use = role["rules"]
    assert (create["verbs"], create["resources"]) == (["create"], ["leases"])
    assert (use["verbs"], use["resourceNames"]) == (["get", "update"], ["plimsoll-operator"])


@pytest.mark.parametrize("values", [{}, PROBE])
def test_pods_keep_to_the_restricted_standard(values: Values, render: Render) -> None:
    objects = render(values)
    pods = [each["spec"] for each in objects if each["kind"] == "Pod"]
    pods.append(one(objects, "Deployment")["spec"]["template"]["spec"])
    for pod in pods:
        security = pod["securityContext"]
        assert (security["runAsNonRoot"], security["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not any("hostPath" in volume for volume in pod.get("volumes", []))


def test_labels_of_the_user_cannot_take_the_place_of_the_charts(render: Render) -> None:
    labels = {"app.kubernetes.io/name": "x", "plimsoll.dev/operator": "false", "team": "red"}
    deployment = one(render({"podLabels": labels}), "Deployment")
    template = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= template.items()
    assert (template["team"], template["plimsoll.dev/operator"]) == ("red", "true")


def test_b126_uninstalling_leaves_the_crd_and_an_upgrade_brings_the_new_one(render: Render) -> None:
    """Elsewhere upgrades did not touch it, and uninstalling took every object of the kind with it."""
    name = "inferenceservers.plimsoll.dev"
    crd = one(render({}), "CustomResourceDefinition", name)
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    generated = yaml.safe_load((CHART / "files" / "inferenceservers.yaml").read_text(encoding="utf-8"))
    assert crd["spec"] == generated["spec"]
    going = one(render({"crds": {"keep": False}}), "CustomResourceDefinition", name)
    assert "helm.sh/resource-policy" not in going["metadata"].get("annotations", {})
    assert "CustomResourceDefinition" not in kinds(render({"crds": {"install": False}}))


def test_ceilings_ask_for_the_field_and_say_both_numbers(render: Render) -> None:
    objects = render(CEILINGS)
    policy = one(objects, "ValidatingAdmissionPolicy", "rel-plimsoll-ceilings")
    assert [each["expression"] for each in policy["spec"]["validations"]] == [
        "has(object.spec.contextLength) && object.spec.contextLength <= 2000000",
        "has(object.spec.maxOutput) && has(object.spec.maxOutput.limit) && object.spec.maxOutput.limit <= 4096",
        "has(object.spec.runningSlots) && object.spec.runningSlots <= 16",
    ]
    assert "%d is above the ceiling 2000000" in policy["spec"]["validations"][0]["messageExpression"]
    replicas = one(objects, "ValidatingAdmissionPolicy", "rel-plimsoll-replicas")
    assert replicas["spec"]["matchConstraints"]["resourceRules"][0]["resources"] == [
        "inferenceservers",
        "inferenceservers/scale",
    ]
    binding = one(objects, "ValidatingAdmissionPolicyBinding", "rel-plimsoll-ceilings")
    assert binding["spec"]["validationActions"] == ["Deny"]
    (exempt,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert (exempt["operator"], exempt["values"]) == ("NotIn", ["lab"])


def test_one_ceiling_makes_one_policy_for_the_namespaces_that_are_watched(render: Render) -> None:
    objects = render({**RESTARTING_NOTHING["one ceiling"], **TWO_NAMESPACES})
    assert kinds(objects).count("ValidatingAdmissionPolicy") == 1
    binding = one(objects, "ValidatingAdmissionPolicyBinding", "rel-plimsoll-replicas")
    (watched,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert (watched["operator"], watched["values"]) == ("In", ["a", "b"])


def test_the_probe_is_a_test_of_one_server_with_its_key(render: Render) -> None:
    assert "Pod" not in kinds(render({}))
    pod = one(render(PROBE), "Pod", "rel-plimsoll-probe-routes")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    assert container["args"] == [
        "probe-routes",
        f"http://qwen.a.svc:{DEFAULT_PORT}",
        "--api-key-file=/etc/plimsoll/api-keys",
    ]
    (volume,) = pod["spec"]["volumes"]
    assert volume["secret"] == {"secretName": "keys", "items": [{"key": "list", "path": "api-keys"}]}


def test_the_monitor_selects_the_service_of_the_operator(render: Render) -> None:
    objects = render(RESTARTING_NOTHING["monitor"])
    monitor = one(objects, "ServiceMonitor")
    service = one(objects, "Service", "rel-plimsoll-metrics")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["metadata"]["labels"]["release"] == "prom"
    assert monitor["spec"]["endpoints"] == [{"port": "metrics", "interval": "10s"}]


REFUSED: Mapping[str, tuple[Values, str]] = {
    "unknown value": ({"replicas": 2}, "replicas"),
    "misspelt value": ({"watchNamespace": "a"}, "watchNamespace"),
    "unknown part": ({"log": {"lvl": "info"}}, "lvl"),
    "unknown part of a part": ({"probe": {"apiKeysSecret": {"secret": "x"}}}, "secret"),
    "unknown word": ({"log": {"level": "loud"}}, "log"),
    "text for a list": ({"watchNamespaces": "a"}, "watchNamespaces"),
    "no namespace": ({"watchNamespaces": ["A_B"]}, "watchNamespaces"),
    "namespace twice": ({"watchNamespaces": ["a", "a"]}, "watchNamespaces"),
    "text for a number": ({"ceilings": {"replicas": "4"}}, "replicas"),
    "resync without a pause": ({"resyncSeconds": 0}, "resyncSeconds"),
    "negative ceiling": ({"ceilings": {"replicas": -1}}, "replicas"),
    "tag in the repository": ({"image": {"repository": "a@sha256:0"}}, "repository"),
    "short digest": ({"image": {"digest": "sha256:00"}}, "digest"),
    "no server's name": ({"probe": {"server": "a.b"}}, "server"),
    "ceilings without one": ({"ceilings": {"enabled": True}}, "ceilings.enabled needs a ceiling above 0"),
    "key without its name": (
        {"probe": {"server": "a", "apiKeysSecret": {"name": "keys"}}},
        "probe.apiKeysSecret.key is needed",
    ),
    "account without its name": ({"serviceAccount": {"create": False}}, "serviceAccount.name is needed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_b128_wrong_values_are_refused_by_name(name: str, template: Template) -> None:
    values, expected = REFUSED[name]
    done = template(values)
    assert done.returncode != 0
    assert expected in done.stderr
