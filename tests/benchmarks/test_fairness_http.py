"""The clients of the seed replay against a whole server without a model: what they ask, count, and put up with."""

import time
from pathlib import Path
from typing import Any

import pytest

from doubles.scripted_model import Gate
from doubles.server import MODEL, scripted_server
from fairness_answers import Counts
from fairness_http import Clients, ask_all
from fairness_served import NO_KEY, SERVED_ARMS, Peaks, Served, why_missing
from fairness_trace import NUM_CLIENTS, ONE_KEY, TWO_KEYS, Entry

ENTRIES = [Entry(number, 60 if number == 3 else 4 + number, is_runaway=number == 3) for number in range(12)]
KEYS = (NO_KEY,) * NUM_CLIENTS
SERVER: dict[str, Any] = {
    "context_length": 512,
    "running_slots": 1,
    "max_output_default": 16,
    "quantum_tokens": 4,
    "page_size": 16,
}


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
def test_every_entry_is_answered_once_with_its_own_length(streamed: bool) -> None:
    with scripted_server(**SERVER) as server:
        clients = Clients(server.url, MODEL, KEYS, ONE_KEY, timeout_seconds=60, streamed=streamed)
        answers = ask_all(clients, ENTRIES)
    assert sorted(answer.entry.number for answer in answers) == list(range(12))
    assert all(answer.is_complete for answer in answers)
    assert all(answer.sent <= answer.got_slot <= answer.first_token <= answer.ended for answer in answers)
    assert all(len(answer.text) > 0 for answer in answers)
    assert not any(answer.gave_up or answer.refusals or answer.was_cut for answer in answers)


def test_our_server_s_counts_are_read() -> None:
    runaway_first = [Entry(0, 200, is_runaway=True), *(Entry(number, 4) for number in range(1, 8))]
    with scripted_server(before_step=lambda _: time.sleep(0.005), **SERVER) as server:
        served = Served(server.url, is_ours=True)
        before = served.counts()
        with served.watch() as peaks:
            ask_all(Clients(server.url, MODEL, KEYS, ONE_KEY, timeout_seconds=60), runaway_first)
        counts = peaks.added_to(served.counts().since(before))
    assert counts.pauses is not None
    assert counts.pauses > 0  # the runaway gave its slot up
    assert counts.swaps == 0
    assert counts.recomputed_tokens == 0
    assert counts.peak_paused is not None
    assert counts.peak_pages is not None
    assert list(counts.tenant_tokens.values()) == [1.0]


def test_peaks_are_the_most_of_all_looks_and_shares_those_of_all_tenants_together() -> None:
    peaks = Peaks()
    looks = [(1, 9, {"a": 0.0}), (3, 20, {"a": 0.5, "b": 0.5}), (2, 30, {"a": 0.6, "b": 0.4}), (0, 4, {"b": 1.0})]
    for paused, pages, shares in looks:
        tenants = {f'plimsoll_tenant_share{{tenant="{name}"}}': share for name, share in shares.items()}
        peaks.see({"plimsoll_requests_paused": paused, 'plimsoll_kv_pages{state="used"}': pages, **tenants})
    counts = peaks.added_to(Counts(pauses=7))
    assert (counts.pauses, counts.peak_paused, counts.peak_pages) == (7, 3, 30)
    assert list(counts.tenant_tokens.values()) == [0.6, 0.4]


def test_nothing_is_seen_of_another_s_server() -> None:
    with Served("http://127.0.0.1:1", is_ours=False).watch() as peaks:
        pass
    assert peaks.added_to(Counts()) == Counts()


def test_clients_of_two_tenants_show_their_own_keys(tmp_path: Path) -> None:
    keys = tuple(f"key-of-{tenant}" for tenant in TWO_KEYS)
    file = tmp_path / "keys"
    file.write_text("\n".join(sorted(set(keys))) + "\n", encoding="utf-8")
    with scripted_server(api_key_file=str(file), **SERVER) as server:
        entries = [Entry(0, 4), Entry(1, 4, client=NUM_CLIENTS - 1)]
        answers = ask_all(Clients(server.url, MODEL, keys, TWO_KEYS, timeout_seconds=60), entries)
    assert {answer.entry.number: answer.tenant for answer in answers} == {0: TWO_KEYS[0], 1: TWO_KEYS[-1]}


def test_a_client_that_waits_in_vain_gives_up_after_its_retries() -> None:
    gate = Gate()
    with scripted_server(before_step=gate, honour_client_deadlines=False, **SERVER) as server:
        clients = Clients(server.url, MODEL, KEYS, ONE_KEY, timeout_seconds=0.2, streamed=False)
        (answer,) = ask_all(clients, ENTRIES[:1])
        gate.open.set()
    assert answer.gave_up == 3
    assert answer.has_failed
    assert not answer.is_complete


def test_an_arm_without_its_program_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLAMA_CPP_BIN", raising=False)
    assert [arm.name for arm in SERVED_ARMS if why_missing(arm) is not None] == ["llama.cpp"]
