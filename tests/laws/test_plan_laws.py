"""Laws of the plan: carried out, it leaves nothing to do; order does not matter; what is not ours stays as it is."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from doubles.operator_objects import SETTINGS, ApiServer, ended, pod, reading, server
from plimsoll_operator.desired import desired
from plimsoll_operator.observed import BudgetReading, Observed
from plimsoll_operator.plan import plan
from plimsoll_operator.spec import config_hash

AMOUNTS = st.sampled_from(["1", "1000m", "500m", "2Gi", "2048Mi", "1.5Gi", "100M", 3])
SOURCES = st.sampled_from(
    ["file:///m/x", "package://p/m.gguf", "hf://a/b", "hf://a/b/c.gguf", "pvc://c/m", "oci://i:1/m"]
)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    source = draw(SOURCES)
    optional: dict[str, st.SearchStrategy[Any]] = {
        "contextLength": st.integers(64, 99),
        "maxOutput": st.fixed_dictionaries({}, optional={"default": st.integers(1, 9), "limit": st.integers(10, 63)}),
        "runningSlots": st.integers(1, 9),
        "replicas": st.integers(0, 3),
        "suspend": st.booleans(),
        "onBudgetDrift": st.sampled_from(["Warn", "Exclude"]),
        "image": st.sampled_from(["example/a:1", "example/b:1"]),
        "resources": st.fixed_dictionaries({"requests": st.dictionaries(st.sampled_from(["cpu", "memory"]), AMOUNTS)}),
        "env": st.lists(
            st.fixed_dictionaries({"name": st.sampled_from("ABC"), "value": st.sampled_from(["", "1", "1000m"])}),
            max_size=2,
            unique_by=lambda each: str(each["name"]),
        ),
        "accelerator": st.just({"resource": "nvidia.com/gpu"}),
        "drainSeconds": st.integers(1, 99),
        "apiKeysSecretRef": st.just({"name": "s", "key": "k"}),
        "network": st.sampled_from([{}, {"from": []}, {"from": [{"podSelector": {}}]}]),
        "extraVolumes": st.just(
            [{"name": "v", "mountPath": "/v", "readOnly": False, "emptyDir": {"sizeLimit": "1024Mi"}}]
        ),
    }
    if source.startswith("hf://"):
        optional["modelCache"] = st.fixed_dictionaries({"size": AMOUNTS})
    return {"model": {"source": source}, **draw(st.fixed_dictionaries({}, optional=optional))}


@st.composite
def pods(draw: st.DrawFn, revisions: list[str]) -> tuple[dict[str, Any], ...]:
    """Ready ones, starting ones and ones whose configuration the runtime refused."""
    made = []
    for number in range(draw(st.integers(0, 3))):
        revision, kind = draw(st.sampled_from(revisions)), draw(st.sampled_from(["ready", "starting", "refused"]))
        last = ended("context_length 9 exceeds the window") if kind == "refused" else None
        label = draw(st.sampled_from(["true", None]))
        made.append(pod(f"p{number}", revision, ready=kind == "ready", last_state=last, routable=label))
    return tuple(made)


READINGS = st.sampled_from([reading(), reading(running_slots=77), BudgetReading(fault="no answer")])


def carry_out_labels(seen: tuple[dict[str, Any], ...], changes: tuple[Any, ...]) -> None:
    for change in changes:
        labels = next(each for each in seen if each["metadata"]["name"] == change.ref.name)["metadata"]["labels"]
        labels.pop(change.label, None)
        if change.value is not None:
            labels[change.label] = change.value


@given(st.data(), st.lists(specs(), min_size=1, max_size=4))
def test_a_plan_carried_out_leaves_an_empty_plan(data: st.DataObject, history: list[dict[str, Any]]) -> None:
    cluster, seen_servers = ApiServer(), [server(spec) for spec in history]
    hashes = [config_hash(each) for each in seen_servers]
    for seen_server in seen_servers:
        seen = data.draw(pods(hashes))
        budgets = {each["metadata"]["name"]: data.draw(READINGS) for each in seen}
        first = cluster.reconcile(seen_server, pods=seen, budgets=budgets)
        carry_out_labels(seen, first.label_changes)
        assert cluster.reconcile(seen_server, pods=seen, budgets=budgets).is_empty


@given(st.data(), specs(), specs())
def test_the_order_of_what_was_observed_changes_nothing(
    data: st.DataObject, before: dict[str, Any], after: dict[str, Any]
) -> None:
    cluster = ApiServer()
    cluster.reconcile(server(before))
    seen = data.draw(pods([config_hash(server(before)), config_hash(server(after))]))
    observed = cluster.observed(pods=seen)
    shuffled = Observed(
        children=tuple(data.draw(st.permutations(observed.children))), pods=tuple(data.draw(st.permutations(seen)))
    )
    objects = desired(server(after), SETTINGS)
    assert plan(server(after), objects, observed) == plan(server(after), objects, shuffled)


@given(specs(), specs(), st.sampled_from(["Service", "Deployment", "PodDisruptionBudget"]), st.booleans())
def test_nothing_of_another_owner_is_written_or_deleted(
    before: dict[str, Any], after: dict[str, Any], kind: str, has_our_label: bool
) -> None:
    cluster = ApiServer()
    cluster.reconcile(server(before))
    cluster.objects.pop((kind, "tiny"), None)
    labels = {"plimsoll.dev/server": "tiny"} if has_our_label else {}
    foreign = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "tiny", "uid": "f", "labels": labels}, "spec": {}}
    observed = Observed(children=(*cluster.observed().children, foreign))
    result = plan(server(after), desired(server(after), SETTINGS), observed)
    assert all((each["kind"], each["metadata"]["name"]) != (kind, "tiny") for each in result.apply)
    assert all((ref.kind, ref.name) != (kind, "tiny") for ref in result.delete)
