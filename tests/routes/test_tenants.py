"""Slots are shared by key: one key's queue is not another's, a weight is a share, and a made-up key buys nothing."""

import hashlib
import time
from pathlib import Path
from typing import Any

import pytest

from doubles.clients import Clients
from doubles.server import ScriptedServer, scripted_server
from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.contract.values import TenantWeight

BUSY, OTHER = "key-of-the-busy-one", "key-of-the-other-one"
CROWD, LONG = 5, 60


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text(f"{BUSY}\n{OTHER}\n")
    return str(path)


def left_of_the_crowd(**settings: Any) -> int:
    """How many requests of the busy key are still in the house when the other one's, which came last, is answered."""
    with scripted_server(
        context_length=256, running_slots=1, page_size=16, before_step=lambda step: time.sleep(0.002), **settings
    ) as server:
        crowd, other = Clients(server), Clients(server)
        for place in range(CROWD):
            _send(server, crowd, BUSY, LONG)
            server.wait_for_inside(place + 1)
        _send(server, other, OTHER, 4)
        assert other.statuses() == [200]
        left = server.inside
        assert crowd.statuses() == [200] * CROWD
        return left


def _send(server: ScriptedServer, clients: Clients, key: str, limit: int) -> None:
    clients.send(endpoints.COMPLETIONS, limit, headers={"authorization": f"Bearer {key}"})


def test_one_keys_queue_is_not_anothers(key_file: str) -> None:
    assert left_of_the_crowd(api_key_file=key_file) >= CROWD - 1


def test_without_a_key_file_a_made_up_key_buys_nothing() -> None:
    assert left_of_the_crowd() == 0


def test_where_nobody_shares_by_key_the_queue_is_everybodys(key_file: str) -> None:
    assert left_of_the_crowd(api_key_file=key_file, fairness="none") == 0


def test_a_weight_is_named_by_the_beginning_of_the_keys_hash(key_file: str) -> None:
    """What happened before: each had one answer on one slot, and both got the same, whatever the weights were."""
    name = hashlib.sha256(OTHER.encode()).hexdigest()[:8]
    weights = (TenantWeight(tenant=name, weight=9),)
    with scripted_server(
        context_length=1024,
        running_slots=1,
        page_size=16,
        before_step=lambda step: time.sleep(0.001),
        api_key_file=key_file,
        tenant_weights=weights,
    ) as server:
        crowd, other = Clients(server), Clients(server)
        _send(server, crowd, BUSY, 300)
        server.wait_for_inside(1)
        _send(server, other, OTHER, 300)
        assert other.statuses() == [200]
        busy_has = [each.output_tokens for each in server.load().sequences]
        assert crowd.statuses() == [200]
        assert busy_has[0] < 150, "with equal shares it would have almost all of its 300"
