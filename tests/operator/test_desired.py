"""What a manifest means as objects: every sample as a golden file, and what must hold for every pod."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from doubles.operator_objects import SETTINGS, names_of, server
from plimsoll_operator import names
from plimsoll_operator.desired import OperatorSettings, desired
from plimsoll_operator.manifest_file import read_manifests
from plimsoll_operator.plan_command import main, plan_text
from plimsoll_operator.pod_template import pod_template
from plimsoll_operator.spec import InferenceServer, read_manifest
from plimsoll_runtime.contract.command_line import read_flags
from plimsoll_runtime.contract.endpoints import LIVEZ, READYZ

SAMPLES = sorted((Path(__file__).parents[2] / "crds" / "samples").glob("*.yaml"))


def pod_spec(spec: dict[str, Any] | None = None, settings: OperatorSettings = SETTINGS) -> dict[str, Any]:
    content: dict[str, Any] = pod_template(server(spec), settings)["spec"]
    return content


def of_kind(kind: str, seen_server: InferenceServer) -> dict[str, Any]:
    return next(each for each in desired(seen_server, SETTINGS) if each["kind"] == kind)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_objects_of_a_sample(sample: Path, golden: Callable[[str, str], None]) -> None:
    text = "---\n".join(plan_text(manifest, SETTINGS, place) for place, manifest in read_manifests(sample))
    golden(f"objects/{sample.stem}.yaml", text)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_every_pod_satisfies_the_restricted_standard(sample: Path) -> None:
    """B120: namespaces that enforce it must not refuse our pods."""
    for _, manifest in read_manifests(sample):
        spec = pod_template(manifest, SETTINGS)["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not spec["automountServiceAccountToken"]
        for container in [*spec["containers"], *spec.get("initContainers", ())]:
            context = container["securityContext"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"]
            assert not context["allowPrivilegeEscalation"]
        allowed = {"name", "emptyDir", "secret", "configMap", "persistentVolumeClaim", "image"}
        assert {key for volume in spec["volumes"] for key in volume} <= allowed


def test_children_are_owned_and_labels_of_the_server_stay_with_it() -> None:
    """B105: a tool that prunes by label believed that it owned the children, and deleted them in a loop."""
    labels = {"argocd.argoproj.io/instance": "x", "app.kubernetes.io/instance": "x", "plimsoll.dev/server": "other"}
    annotated = server({"replicas": 2}, labels=labels, annotations={"kubectl.kubernetes.io/last-applied": "{}"})
    for each in desired(annotated, SETTINGS):
        metadata = each["metadata"]
        (owner,) = metadata["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["name"]) == (annotated.metadata.uid, True, "tiny")
        assert metadata["labels"] == names.child_labels("tiny")
        assert "annotations" not in metadata


def test_the_selector_is_two_labels_that_never_change() -> None:
    """B104: an upgrade that put its version into the selector could never be applied."""
    deployment = of_kind("Deployment", server())
    assert deployment["spec"]["selector"]["matchLabels"] == {
        "app.kubernetes.io/name": "plimsoll",
        "plimsoll.dev/server": "tiny",
    }
    service = of_kind("Service", server())
    assert service["spec"]["selector"][names.LABEL_ROUTABLE] == "true"


@pytest.mark.parametrize("name", ["a", "a" * 40, "a-1"])
def test_names_of_children_are_legal(name: str) -> None:
    """B102: legal names of servers became illegal names of Services."""
    manifest = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": {"model": {"source": "hf://a/b"}, "modelCache": {"size": "1Gi"}},
    }
    for each in desired(read_manifest(manifest), SETTINGS):
        assert len(each["metadata"]["name"]) <= 63
        assert all(len(value) <= 63 for value in each["metadata"]["labels"].values())


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, [], id="one-replica"),
        pytest.param({"replicas": 2}, ["PodDisruptionBudget/tiny"], id="two-replicas"),
        pytest.param(
            {"model": {"source": "hf://a/b"}, "modelCache": {"size": "1Gi"}},
            ["PersistentVolumeClaim/tiny-model-cache"],
            id="cache",
        ),
    ],
)
def test_which_children_there_are(spec: dict[str, Any], expected: list[str]) -> None:
    always = ["ServiceAccount/tiny", "NetworkPolicy/tiny", "Service/tiny", "Deployment/tiny"]
    assert sorted(names_of(desired(server(spec), SETTINGS))) == sorted([*always, *expected])


def test_the_deployment_comes_last() -> None:
    """Its pods need the service account, the volume and the policy."""
    assert names_of(desired(server({"replicas": 2}), SETTINGS))[-1] == "Deployment/tiny"


def test_flags_are_the_contract_s() -> None:
    args = pod_spec({"contextLength": 64, "overBudget": "Refuse", "queue": {"timeoutSeconds": 2.5}})["containers"][0]
    config = read_flags(args["args"][1:])
    assert args["args"][0] == "serve"
    assert (config.context_length, config.over_budget, config.queue_timeout) == (64, "refuse", 2.5)
    assert (config.host, config.served_model_name) == ("0.0.0.0", "tiny")


@pytest.mark.parametrize(
    ("spec", "model"),
    [
        pytest.param({"model": {"source": "file:///m/x"}}, "file:///m/x", id="file"),
        pytest.param({"model": {"source": "package://p/m.gguf"}}, "package://p/m.gguf", id="package"),
        pytest.param({"model": {"source": "pvc://claim/m/x"}}, "/models/m/x", id="pvc"),
        pytest.param({"model": {"source": "oci://i:1/m/x.gguf"}}, "/models/m/x.gguf", id="oci"),
        pytest.param({"model": {"source": "hf://a/b"}}, "/models/a--b-", id="hf-folder"),
        pytest.param({"model": {"source": "hf://a/b/c.gguf"}}, "/models/a--b-", id="hf-file"),
    ],
)
def test_where_the_pod_finds_its_model(spec: dict[str, Any], model: str) -> None:
    content = pod_spec(spec)
    given = read_flags(content["containers"][0]["args"][1:]).model
    assert given.startswith(model)
    if "hf://" in spec["model"]["source"]:
        fetch = content["initContainers"][0]["args"]
        assert fetch[:2] == ["fetch", f"--source={spec['model']['source']}"]
        assert given.startswith(fetch[2].removeprefix("--into="))
    mounted = "plimsoll-model" in [mount["name"] for mount in content["containers"][0]["volumeMounts"]]
    assert mounted == given.startswith("/models")


def test_two_sources_do_not_share_a_folder_of_the_cache() -> None:
    """While one replaces the other both run, and fetching one would take away the other's files."""
    folders = {
        pod_spec({"model": {"source": "hf://a/b", **revision}})["initContainers"][0]["args"][2]
        for revision in ({}, {"revision": "v1"}, {"revision": "v2"})
    }
    assert len(folders) == 3


def test_secrets_are_referred_to_and_never_written() -> None:
    """B132: tokens and keys stood in pod specs and command lines."""
    spec = {
        "model": {"source": "hf://a/b", "tokenSecretRef": {"name": "hub", "key": "token"}},
        "apiKeysSecretRef": {"name": "api", "key": "lines"},
    }
    content = pod_spec(spec)
    fetch, runtime = content["initContainers"][0], content["containers"][0]
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    assert token in fetch["env"]
    assert "HF_TOKEN" not in str(runtime)
    assert read_flags(runtime["args"][1:]).api_key_file == "/etc/plimsoll/keys"
    mount = next(mount for mount in runtime["volumeMounts"] if mount["mountPath"] == "/etc/plimsoll")
    assert "subPath" not in mount  # such a mount would never see a changed Secret
    assert {"secretName": "api", "items": [{"key": "lines", "path": "keys"}]} in [
        volume.get("secret") for volume in content["volumes"]
    ]


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        pytest.param({}, 5 + 600 + 10, id="default"),
        pytest.param({"requestTimeoutSeconds": 30}, 5 + 30 + 10, id="request-timeout"),
        pytest.param({"requestTimeoutSeconds": 30, "drainSeconds": 3}, 5 + 3 + 10, id="drain-shortens"),
        pytest.param({"drainSeconds": 2.5}, 5 + 3 + 10, id="fraction-rounds-up"),
    ],
)
def test_the_kill_comes_after_the_drain(spec: dict[str, Any], seconds: int) -> None:
    content = pod_spec(spec)
    assert content["terminationGracePeriodSeconds"] == seconds
    assert content["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}


def test_probes_are_the_contract_s_and_a_slow_load_is_no_fault() -> None:
    """B112: liveness killed pods in the middle of a load, for ever. B114: one long step was taken for death."""
    deployment = of_kind("Deployment", server({"startupTimeoutSeconds": 600}))
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 600
    assert startup["periodSeconds"] <= 2  # a small model is ready within seconds
    assert startup["httpGet"]["path"] == container["readinessProbe"]["httpGet"]["path"] == READYZ
    assert liveness["httpGet"]["path"] == LIVEZ
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60
    assert deployment["spec"]["progressDeadlineSeconds"] > 600


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, (1, 0), id="processors"),
        pytest.param({"accelerator": {"resource": "nvidia.com/gpu"}}, (0, 1), id="B111-accelerator"),
        pytest.param({"model": {"source": "hf://a/b"}, "modelCache": {"size": "1Gi"}}, (0, 1), id="B111-rwo-cache"),
        pytest.param(
            {"model": {"source": "hf://a/b"}, "modelCache": {"size": "1Gi", "accessMode": "ReadWriteMany"}},
            (1, 0),
            id="shared-cache",
        ),
        pytest.param({"rollout": {"maxSurge": 2, "maxUnavailable": 1}}, (2, 1), id="both-given"),
        pytest.param({"rollout": {"maxSurge": 0}}, (0, 1), id="no-surge-means-one-after-the-other"),
        pytest.param({"rollout": {"maxUnavailable": 0}}, (1, 0), id="none-missing"),
        pytest.param(
            {"rollout": {"maxUnavailable": 0}, "accelerator": {"resource": "nvidia.com/gpu"}}, (1, 0), id="spare-device"
        ),
    ],
)
def test_how_replicas_are_replaced(spec: dict[str, Any], expected: tuple[int, int]) -> None:
    """B111: the new pod waited for the GPU that the old one held, and the old one for the new."""
    rolling = of_kind("Deployment", server(spec))["spec"]["strategy"]["rollingUpdate"]
    assert (rolling["maxSurge"], rolling["maxUnavailable"]) == expected


def test_an_accelerator_is_asked_for_and_its_taint_tolerated() -> None:
    content = pod_spec(
        {"accelerator": {"resource": "nvidia.com/gpu", "count": 2}, "resources": {"requests": {"cpu": 1}}}
    )
    container = content["containers"][0]
    assert container["resources"] == {"requests": {"cpu": 1, "nvidia.com/gpu": 2}, "limits": {"nvidia.com/gpu": 2}}
    assert content["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert read_flags(container["args"][1:]).device == "cuda"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, [{"namespaceSelector": {}}], id="every-pod"),
        pytest.param({"network": {"from": []}}, [], id="nobody"),
        pytest.param(
            {"network": {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}},
            [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}],
            id="addresses",
        ),
    ],
)
def test_who_reaches_the_api(spec: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    """An empty list of sources would mean everybody in a NetworkPolicy; the operator is always among them."""
    (rule,) = of_kind("NetworkPolicy", server(spec))["spec"]["ingress"]
    assert rule["from"][:-1] == expected
    assert rule["from"][-1]["podSelector"] == {"matchLabels": {"plimsoll.dev/operator": "true"}}


@pytest.mark.parametrize(
    ("source", "endpoint", "ports"),
    [
        ("file:///m", None, {53}),
        ("hf://a/b", None, {53, 443}),
        ("hf://a/b", "http://hub.example:8080", {53, 8080}),
        ("hf://a/b", "http://hub.example", {53, 80}),
    ],
)
def test_what_pods_reach(source: str, endpoint: str | None, ports: set[int]) -> None:
    settings = OperatorSettings(runtime_image="i", hub_endpoint=endpoint)
    objects = desired(server({"model": {"source": source}}), settings)
    (rule,) = next(each for each in objects if each["kind"] == "NetworkPolicy")["spec"]["egress"]
    assert {port["port"] for port in rule["ports"]} == ports


@pytest.mark.parametrize(("spec", "replicas"), [({"replicas": 3}, 3), ({"replicas": 3, "suspend": True}, 0)])
def test_a_suspended_server_runs_no_pods(spec: dict[str, Any], replicas: int) -> None:
    assert of_kind("Deployment", server(spec))["spec"]["replicas"] == replicas


def test_a_user_s_variable_wins_over_ours() -> None:
    """Twice the same name is refused by server-side apply."""
    env = pod_spec({"env": [{"name": "HOME", "value": "/data"}, {"name": "X", "value": ""}]})["containers"][0]["env"]
    assert {each["name"]: each.get("value") for each in env} == {
        "HOME": "/data",
        "LOGNAME": "plimsoll",
        "PLIMSOLL_TERMINATION_LOG": "/dev/termination-log",
        "X": "",
    }


def test_desired_changes_nothing_of_its_input() -> None:
    seen_server = server({"replicas": 2})
    before = copy.deepcopy(seen_server)
    assert desired(seen_server, SETTINGS) == desired(seen_server, SETTINGS)
    assert seen_server == before


def test_plan_prints_objects_without_owners(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SAMPLES[0]), "--image=example/mine:2"]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert "Deployment" in [each["kind"] for each in objects]
    assert all("ownerReferences" not in each["metadata"] for each in objects)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "holds no manifest"),
        ("a: [", "is not YAML"),
        ("kind: Pod\n", "kind Pod was given"),
    ],
)
def test_plan_refuses_a_wrong_file(
    tmp_path: Path, text: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "servers.yaml"
    file.write_text(text, encoding="utf-8")
    assert main([str(file)]) == 2
    assert expected in capsys.readouterr().err
