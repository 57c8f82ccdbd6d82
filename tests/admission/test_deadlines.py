"""By when a request must start and be done: whose patience is the shortest, and who is told what to change."""

import pytest

from plimsoll_runtime.admission.checks import MAX_TIMEOUT_SECONDS, CheckedFields, check_fields
from plimsoll_runtime.admission.deadlines import ClientPatience, Patience, Times, before_hanging_up, decide_times
from plimsoll_runtime.contract.endpoints import COMPLETIONS, HEADER_REQUEST_TIMEOUT
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import ClientTimeouts, GenerationRequest, TextPrompt

SERVER = Patience(queue_seconds=120, request_seconds=600)
ARRIVAL = 1000.0


def times(total: float | None, silence: float | None, *, streams: bool, patience: Patience = SERVER) -> Times:
    return decide_times(patience, ClientPatience(total, silence), streams=streams, arrival=ARRIVAL)


# total, silence, streams -> seconds to the first slot, seconds to the end
ROWS = [
    (None, None, False, 120, 600),
    (None, None, True, 120, 600),
    (None, 600.0, False, 120, 585),  # what both SDKs send when nobody sets a timeout: they hang up at 600
    (None, 600.0, True, 120, 600),  # pings fill the silence of a stream
    (None, 20.0, False, 18, 18),
    (None, 20.0, True, 18, 600),
    (20.0, None, False, 18, 18),
    (20.0, None, True, 18, 18),  # our own header is about the whole answer
    (60.0, 20.0, False, 18, 18),
    (60.0, 20.0, True, 18, 58),
    (1.0, None, False, 0.5, 0.5),
    (10_000.0, 10_000.0, False, 120, 600),
]


@pytest.mark.parametrize(("total", "silence", "streams", "start", "finish"), ROWS)
def test_the_shortest_patience_decides(
    total: float | None, silence: float | None, streams: bool, start: float, finish: float
) -> None:
    """What happened elsewhere: a plain run of 3,400 s met a client that hung up at 600 and came twice again."""
    decided = times(total, silence, streams=streams)
    assert [decided.start_by - ARRIVAL, decided.finish_by - ARRIVAL] == pytest.approx([start, finish])


@pytest.mark.parametrize("seconds", [0.001, 1.0, 3.9, 4.0, 20.0, 79.9, 80.0, 600.0, 1e6])
def test_what_is_left_to_bring_the_answer_is_2_s_or_a_fortieth_or_half(seconds: float) -> None:
    left = seconds - before_hanging_up(seconds)
    assert left == pytest.approx(min(max(2.0, seconds / 40), seconds / 2))


def test_a_server_that_does_not_listen_keeps_its_own_times() -> None:
    deaf = Patience(120, 600, honours_client=False)
    decided = times(20, 20, streams=False, patience=deaf)
    assert (decided.start_by, decided.finish_by, decided.silence_seconds) == (ARRIVAL + 120, ARRIVAL + 600, None)


@pytest.mark.parametrize(
    ("patience", "silence", "named"),
    [
        (SERVER, None, "--queue-timeout"),
        (Patience(120, 60), None, "--request-timeout"),
        (SERVER, 20.0, HEADER_REQUEST_TIMEOUT),
    ],
)
def test_what_decided_the_wait_is_named(patience: Patience, silence: float | None, named: str) -> None:
    assert named in times(None, silence, streams=True, patience=patience).start_limit


def checked(own: str | None, *sdk: str) -> CheckedFields | Refusal:
    request = GenerationRequest(COMPLETIONS, "m", "prompt", (TextPrompt("x"),), timeouts=ClientTimeouts(own, sdk))
    return check_fields(request, 9)


@pytest.mark.parametrize(
    "own", ["", "0", "0.0", "-1", "abc", "1e3", "inf", "nan", "20s", " 20", "+20", "١", str(MAX_TIMEOUT_SECONDS + 1)]
)
def test_our_own_header_must_be_seconds(own: str) -> None:
    refusal = checked(own)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.param) == ("invalid_value", HEADER_REQUEST_TIMEOUT)


@pytest.mark.parametrize(
    ("own", "seconds"), [(None, None), ("20", 20), ("0.25", 0.25), (str(MAX_TIMEOUT_SECONDS), 604_800)]
)
def test_seconds_of_our_own_header(own: str | None, seconds: float | None) -> None:
    fields = checked(own)
    assert isinstance(fields, CheckedFields)
    assert fields.client.total_seconds == seconds


@pytest.mark.parametrize(
    ("sdk", "seconds"),
    [
        ((), None),
        (("600",), 600),
        (("600.0", "20"), 20),
        (("NOT_GIVEN",), None),  # anthropic's SDK says so where no timeout was set
        (("None", "0", "-5", "nan", "1e999"), None),
        (("NOT_GIVEN", "20.5"), 20.5),
    ],
)
def test_what_an_sdk_says_is_taken_where_it_means_something(sdk: tuple[str, ...], seconds: float | None) -> None:
    fields = checked(None, *sdk)
    assert isinstance(fields, CheckedFields)
    assert fields.client.silence_seconds == seconds
