"""What pods say of themselves over HTTP, and what becomes of it in a real status and on real pods."""

import json
import os
from typing import Any

import pytest

from doubles.operator_cluster import Site, budget_server
from doubles.operator_objects import BODY
from operator_api.conftest import Api
from plimsoll_operator import names
from plimsoll_operator.reconcile import Outcome

pytestmark = pytest.mark.cluster

ADDRESS = f"127.77.{os.getpid() % 250 + 1}.1"
"""Of the pod `tiny-1`; every process of a test run has its own."""


@pytest.fixture
def site(api: Api) -> Site:
    """The server `tiny` with one ready pod at ADDRESS, not yet asked."""
    site = Site(api.cluster)
    site.user_applies()
    site.settle()
    site.deployment_reports(1, 1)
    site.add_pod("tiny-1", ADDRESS)
    return site


def said(**changes: Any) -> bytes:
    return json.dumps({**BODY, **changes}).encode()


def test_a_replica_that_grants_what_is_declared_makes_it_ready_and_then_nothing_is_written(site: Site) -> None:
    with budget_server(ADDRESS, said()):
        site.settle()
        site.deployment_reports(1, 1)
        site.settle()
        ready = site.condition()
        assert (ready["status"], ready["reason"]) == ("True", names.REASON_READY), ready
        (replica,) = site.get(names.KIND)["status"]["replicaBudgets"]
        assert (replica["pod"], replica["consistent"], replica["contextLength"]) == ("tiny-1", True, 2048)
        before = site.versions()
        assert site.reconcile() is Outcome.SETTLED
        assert site.versions() == before
        site.restart_operator()
        assert site.reconcile() is Outcome.SETTLED
        assert site.versions() == before


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{}", 503, "status 503"),
        (b"[]", 200, "not an object"),
        (b"<html>", 200, "cannot be read"),
        (b"1" * (1 << 20) + b"1", 200, "more than"),
        (said(running_slots=[1]), 200, "not that of a Plimsoll runtime"),
    ],
    ids=["status", "list", "page", "long", "foreign"],
)
def test_a_replica_that_cannot_be_read_is_unread_and_not_drifting(
    site: Site, body: bytes, status: int, words: str
) -> None:
    with budget_server(ADDRESS, body, status):
        site.settle()
        site.deployment_reports(1, 1)
        site.settle()
    ready = site.condition()
    assert (ready["status"], ready["reason"]) == ("Unknown", names.REASON_BUDGET_UNREAD)
    assert words in ready["message"]


def test_nobody_listening_is_unread_too(site: Site) -> None:
    site.settle()
    site.deployment_reports(1, 1)
    site.settle()
    assert "no connection" in site.condition()["message"]


def test_drift_is_told_with_both_values_and_takes_the_pod_out_of_the_service_and_back(site: Site) -> None:
    site.user_applies(onBudgetDrift="Exclude")
    with budget_server(ADDRESS, said(context_length=4096)):
        site.settle()
        site.deployment_reports(1, 1)
        site.settle()
        events = [event["reason"] for event in site.events()]
        assert names.REASON_BUDGET_DRIFT in events
        assert site.reconcile() is Outcome.SETTLED
        assert [event["reason"] for event in site.events()] == events, "an event is for a transition alone"
    drift = site.condition(names.CONDITION_BUDGET_CONSISTENT)
    assert drift["status"] == "False"
    assert "contextLength declared 2,048, observed 4,096" in drift["message"]
    assert names.LABEL_ROUTABLE not in site.get("Pod", "tiny-1")["metadata"]["labels"]
    with budget_server(ADDRESS, said()):
        site.settle()
    assert site.get("Pod", "tiny-1")["metadata"]["labels"][names.LABEL_ROUTABLE] == names.ROUTABLE
    assert site.condition()["status"] == "True"


def test_a_server_that_loses_its_last_replica_is_not_ready(site: Site) -> None:
    """Before, a budget without any limit was applied as an empty object, which the API server took for null and
    refused, and the server stayed Ready with nobody behind it."""
    with budget_server(ADDRESS, said()):
        site.settle()
        site.deployment_reports(1, 1)
        site.settle()
    assert site.condition()["status"] == "True"
    site.kubectl("delete", "pod", "tiny-1", "--force", "--grace-period=0")
    site.deployment_reports(0, 0)
    site.settle()
    assert site.condition()["status"] == "False"
    assert site.get(names.KIND)["status"]["budget"].keys() == {"declared"}
