"""`plimsoll bulk` against real servers: every line once, limits said in words, jobs that stop at once or go on."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bulk.batch_lines import read_lines, request_line, write_lines
from doubles.scripted_model import NOT_A_NUMBER
from doubles.server import scripted_server
from plimsoll_runtime.bulk.command import EXIT_ANSWERED, EXIT_REFUSED, EXIT_STOPPED, main
from plimsoll_runtime.bulk.job import FIRST_ANSWERS, MAX_FAILURES_OF_A_LINE
from plimsoll_runtime.contract import endpoints

BODY = {"messages": [{"role": "user", "content": "hi"}]}


class Files:
    """The two files of a job."""

    def __init__(self, folder: Path) -> None:
        self.requests = folder / "in.jsonl"
        self.answers = folder / "out.jsonl"

    def run(self, lines: list[dict[str, Any]], *options: str) -> int:
        write_lines(self.requests, lines)
        return main([str(self.requests), str(self.answers), *options])


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_every_route_is_answered_with_what_was_granted(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    bodies: dict[str, dict[str, Any]] = {
        endpoints.CHAT_COMPLETIONS: {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 9},
        endpoints.COMPLETIONS: {"prompt": "hi"},
        endpoints.MESSAGES: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
        endpoints.RESPONSES: {"input": "hi", "max_output_tokens": 900},
    }
    lines = [
        request_line(url, url=url, body={"model": "scripted", "ignore_eos": True, **body})
        for url, body in bodies.items()
    ]
    with scripted_server(context_length=64, max_output_default=7, max_output_limit=20) as server:
        assert files.run(lines, "--server", server.url) == EXIT_ANSWERED
    budgets = {line["custom_id"]: line["budget"] for line in read_lines(files.answers)}
    assert {url: (budget["max_output_tokens"], budget["limited_by"]) for url, budget in budgets.items()} == {
        endpoints.CHAT_COMPLETIONS: (9, "request"),
        endpoints.COMPLETIONS: (7, "default"),
        endpoints.MESSAGES: (5, "request"),
        endpoints.RESPONSES: (20, "limit"),
    }
    said = capsys.readouterr().err
    assert "model scripted, context 64, default output 7, output limit 20" in said
    assert "8 of prompts, 41 of output" in said
    assert "4 answers used all that they were granted" in said


def second_report(number: int) -> list[dict[str, Any]]:
    """Every line asks for as many tokens as the whole context holds."""
    return [request_line(f"line-{index}", 64) for index in range(number)]


# The second report: 193,000 requests were refused one by one, and nobody was told.
def test_limit_equal_to_the_context_finishes_under_clamp(files: Files) -> None:
    with scripted_server(context_length=64) as server:
        assert files.run(second_report(20), "--server", server.url, "--over-budget", "clamp") == EXIT_ANSWERED
    assert {line["budget"]["max_output_tokens"] for line in read_lines(files.answers)} == {62}


def test_limit_equal_to_the_context_stops_at_once_under_refuse(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_server(context_length=64, over_budget="refuse") as server:
        assert files.run(second_report(500), "--server", server.url) == EXIT_STOPPED
        refused = server.client.get("/metrics").text
    said = capsys.readouterr().err
    assert "and every line like it" in said
    assert "64" in said
    assert files.answers.read_text() == "", "nothing that could be asked again is written down"
    count = next(
        float(line.split()[-1]) for line in refused.splitlines() if line.startswith("plimsoll_refusals_total{")
    )
    assert count <= 8, "no more than the workers' first lines were sent"


def test_keep_going_writes_the_refusals_down(files: Files) -> None:
    with scripted_server(context_length=64, over_budget="refuse") as server:
        assert files.run(second_report(20), "--server", server.url, "--keep-going") == EXIT_REFUSED
    assert [line["response"]["status_code"] for line in read_lines(files.answers)] == [400] * 20


def test_a_prompt_too_long_is_its_own_line_s_fault(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    long = request_line("long", body={"model": "scripted", "messages": [{"role": "user", "content": "x" * 99}]})
    lines = [request_line("a"), long, request_line("b")]
    with scripted_server(context_length=64) as server:
        assert files.run(lines, "--server", server.url) == EXIT_REFUSED
    statuses = {line["custom_id"]: line["response"]["status_code"] for line in read_lines(files.answers)}
    assert statuses == {"a": 200, "long": 400, "b": 200}
    assert "context_length_exceeded 1" in capsys.readouterr().err


def test_many_refusals_before_any_answer_stop_the_job(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "x" * 99}]}
    lines = [request_line(str(index), body=body) for index in range(200)]
    with scripted_server(context_length=64) as server:
        assert files.run(lines, "--server", server.url) == EXIT_STOPPED
    assert f"the first {FIRST_ANSWERS} lines were all refused" in capsys.readouterr().err
    assert len(read_lines(files.answers)) < 30


@pytest.mark.parametrize(
    ("settings", "lines", "sentence"),
    [
        pytest.param({}, [request_line("a", body={**BODY, "model": "other"})], "every line like it", id="model"),
        pytest.param({"api_key_file": "KEYS"}, [request_line("a")], "names no model|status 401", id="key"),
    ],
)
def test_what_all_lines_would_get_stops_the_job(
    settings: dict[str, Any], lines: list[Any], sentence: str, files: Files, tmp_path: Path, capsys: Any
) -> None:
    if "api_key_file" in settings:
        (tmp_path / "keys").write_text("secret\n")
        settings = {"api_key_file": str(tmp_path / "keys")}
    with scripted_server(**settings) as server:
        assert files.run(lines, "--server", server.url) == EXIT_STOPPED
    said = capsys.readouterr().err
    assert any(part in said for part in sentence.split("|")), said


def test_answers_are_not_asked_again(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [request_line(name) for name in "abc"]
    with scripted_server() as server:
        assert files.run(lines[:2], "--server", server.url) == EXIT_ANSWERED
        first = read_lines(files.answers)
        assert files.run(lines, "--server", server.url) == EXIT_ANSWERED
    *before, added = read_lines(files.answers)
    assert before == first
    assert {line["custom_id"] for line in first} == {"a", "b"}, "in the order in which they ended"
    assert added["custom_id"] == "c"
    assert "2 lines are answered already" in capsys.readouterr().err


def test_answers_of_other_requests_are_not_mixed_in(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server() as server:
        files.run([request_line("a")], "--server", server.url)
        assert files.run([request_line("b")], "--server", server.url) == EXIT_STOPPED
    assert "holds an answer to 'a'" in capsys.readouterr().err


def test_a_full_queue_is_waited_for(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """More workers than places: 429 and Retry-After, and yet every line is answered."""
    lines = [request_line(str(index)) for index in range(12)]
    with scripted_server(running_slots=2, max_waiting=0) as server:
        assert files.run(lines, "--server", server.url) == EXIT_ANSWERED
    assert len(read_lines(files.answers)) == 12


def test_a_line_that_breaks_the_model_is_given_up_alone(files: Files) -> None:
    def script(vocabulary: Any) -> Callable[[tuple[int, ...], int], int]:
        return lambda prompt, position: NOT_A_NUMBER if len(prompt) > 2 else vocabulary.ids(["a"])[0]

    poison = request_line("poison", body={"model": "scripted", "messages": [{"role": "user", "content": "xxx"}]})
    lines = [request_line("a"), poison, request_line("b")]
    with scripted_server(script) as server:
        assert files.run(lines, "--server", server.url) == EXIT_REFUSED
        assert server.runner.num_steps < 100
    statuses = {line["custom_id"]: line["response"]["status_code"] for line in read_lines(files.answers)}
    assert statuses == {"a": 200, "poison": 500, "b": 200}
    assert MAX_FAILURES_OF_A_LINE > 1


def test_an_answer_that_would_take_as_long_again_is_not_asked_again(files: Files) -> None:
    """A line that is too long for the deadline was computed again and again until the job gave up."""
    settings: dict[str, Any] = {"context_length": 4096, "request_timeout": 0.3, "on_deadline": "abort"}
    with scripted_server(before_step=lambda step: time.sleep(0.002), **settings) as server:
        assert files.run([request_line("long", 4000), request_line("short")], "--server", server.url) == EXIT_REFUSED
    statuses = {line["custom_id"]: line["response"]["status_code"] for line in read_lines(files.answers)}
    assert statuses == {"long": 504, "short": 200}


def test_no_server_at_all_is_said(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    assert files.run([request_line("a")], "--server", "http://127.0.0.1:1") == EXIT_STOPPED
    assert "does not answer" in capsys.readouterr().err


def test_an_answer_line_has_the_form_of_a_batch(files: Files) -> None:
    with scripted_server() as server:
        files.run([request_line("a")], "--server", server.url)
    line = json.loads(files.answers.read_text())
    assert set(line) == {"id", "custom_id", "response", "error", "budget"}
    assert set(line["response"]) == {"status_code", "request_id", "body"}
    assert line["response"]["body"]["choices"][0]["finish_reason"] == "length"
