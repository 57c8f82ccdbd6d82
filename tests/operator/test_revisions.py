"""A spec that turns out wrong goes back to the last accepted pod template, and stays there until it changes."""

import pytest

from doubles.operator_objects import ApiServer, ended, pod, server, waiting
from plimsoll_operator import names
from plimsoll_operator.observed import Document
from plimsoll_operator.revisions import Choice, choose, hash_of, is_configuration_exit, last_sentence
from plimsoll_operator.spec import config_hash

SENTENCE = "context_length 99,999 exceeds the model's window of 8,192 tokens"
GOOD = server({"contextLength": 64})
WRONG = server({"contextLength": 99_999})
MENDED = server({"contextLength": 128})


def crashed(name: str, revision: str, message: str = SENTENCE, exit_code: int = 1) -> Document:
    return pod(name, revision, ready=False, state=waiting("CrashLoopBackOff"), last_state=ended(message, exit_code))


def accepted_then_wrong() -> ApiServer:
    """A cluster where GOOD has served and WRONG was applied."""
    cluster = ApiServer()
    cluster.reconcile(GOOD)
    cluster.reconcile(GOOD, pods=(pod("old", config_hash(GOOD)),))
    cluster.reconcile(WRONG, pods=(pod("old", config_hash(GOOD)),))
    assert hash_of(cluster.deployment["spec"]["template"]) == config_hash(WRONG)
    return cluster


def running(cluster: ApiServer) -> str:
    return hash_of(cluster.deployment["spec"]["template"])


def test_the_first_configuration_exit_rolls_back_and_the_record_outlives_the_pod() -> None:
    cluster = accepted_then_wrong()
    cluster.reconcile(WRONG, pods=(pod("old", config_hash(GOOD)), crashed("new", config_hash(WRONG))))
    assert running(cluster) == config_hash(GOOD)
    writes = cluster.num_writes
    cluster.reconcile(WRONG, pods=(pod("old", config_hash(GOOD)),))  # the failed pod is gone, the operator new
    assert running(cluster) == config_hash(GOOD)
    assert cluster.num_writes == writes
    annotations = cluster.deployment["metadata"]["annotations"]
    assert annotations[names.ANNOTATION_REJECTED_MESSAGE] == SENTENCE


def test_a_mended_spec_is_tried_at_once() -> None:
    """B103: the fix was acted on only after the back-off."""
    cluster = accepted_then_wrong()
    cluster.reconcile(WRONG, pods=(crashed("new", config_hash(WRONG)),))
    cluster.reconcile(MENDED, pods=(crashed("new", config_hash(WRONG)),))
    assert running(cluster) == config_hash(MENDED)
    assert names.ANNOTATION_REJECTED_HASH not in cluster.deployment["metadata"]["annotations"]


def test_the_restart_annotation_tries_the_same_spec_again() -> None:
    """The volume was filled meanwhile: nothing in the spec is to be changed."""
    cluster = accepted_then_wrong()
    cluster.reconcile(WRONG, pods=(crashed("new", config_hash(WRONG)),))
    again = server({"contextLength": 99_999}, annotations={names.ANNOTATION_RESTART: "1"})
    cluster.reconcile(again)
    assert running(cluster) == config_hash(again)


def test_without_an_accepted_template_nothing_can_be_rolled_back_to() -> None:
    cluster = ApiServer()
    cluster.reconcile(WRONG)
    cluster.reconcile(WRONG, pods=(crashed("new", config_hash(WRONG)),))
    assert running(cluster) == config_hash(WRONG)
    cluster.reconcile(WRONG, pods=(pod("new", config_hash(WRONG)),))  # the missing file has come
    assert names.ANNOTATION_REJECTED_HASH not in cluster.deployment["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("message", "exit_code"),
    [
        pytest.param("the engine stopped, see the log above", 1, id="crash-of-the-engine"),
        pytest.param("Traceback (most recent call last):\n  File x\nKeyError: 'a'", 1, id="traceback"),
        pytest.param("", 137, id="killed"),
        pytest.param(SENTENCE, 137, id="killed-with-a-sentence"),
        pytest.param("", 1, id="silent"),
    ],
)
def test_a_crash_is_not_a_wrong_configuration(message: str, exit_code: int) -> None:
    cluster = accepted_then_wrong()
    cluster.reconcile(WRONG, pods=(crashed("new", config_hash(WRONG), message, exit_code),))
    assert running(cluster) == config_hash(WRONG)


def test_a_revision_that_was_ready_once_is_not_rolled_back() -> None:
    cluster = ApiServer()
    cluster.reconcile(GOOD)
    cluster.reconcile(GOOD, pods=(pod("a", config_hash(GOOD)),))
    cluster.reconcile(MENDED)
    cluster.reconcile(MENDED, pods=(pod("b", config_hash(MENDED)),))
    cluster.reconcile(MENDED, pods=(crashed("b", config_hash(MENDED)),))
    assert running(cluster) == config_hash(MENDED)


def test_a_fetch_that_failed_is_not_a_wrong_configuration() -> None:
    """The hub may be back in a minute."""
    cluster = accepted_then_wrong()
    failed = pod("new", config_hash(WRONG), ready=False, last_state=ended("no answer"), container=names.FETCH_CONTAINER)
    cluster.reconcile(WRONG, pods=(failed,))
    assert running(cluster) == config_hash(WRONG)


def test_what_somebody_else_made_of_the_template_is_put_right() -> None:
    cluster = accepted_then_wrong()
    cluster.deployment["spec"]["template"]["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH] = "by-hand"
    cluster.reconcile(WRONG)
    assert running(cluster) == config_hash(WRONG)


def test_a_record_that_was_spoilt_is_made_anew() -> None:
    wanted = {"metadata": {"annotations": {names.ANNOTATION_CONFIG_HASH: "h"}}}
    spoilt = {"metadata": {"name": "d", "annotations": {names.ANNOTATION_TEMPLATE: "{"}}, "spec": {"template": wanted}}
    chosen = choose(wanted, spoilt, ())
    assert isinstance(chosen, Choice)
    assert chosen.template == wanted


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("one sentence", "one sentence"),
        ("INFO something\nplimsoll serve: the first\nplimsoll serve: the last\n", "the last"),
        ("plimsoll fetch: no answer", "no answer"),
        ("two lines\nof somebody else", None),
        ("", None),
    ],
)
def test_the_last_sentence(message: str, expected: str | None) -> None:
    terminated = ended(message)["terminated"]
    assert last_sentence(terminated) == expected
    assert is_configuration_exit(terminated) == (expected is not None)
