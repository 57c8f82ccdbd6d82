"""Lines that cannot be sent are named by file, line and fault before anything is sent; answers survive kills."""

import json
from pathlib import Path
from typing import Any

import pytest

from bulk.batch_lines import read_lines, request_line, write_lines
from plimsoll_runtime.bulk.batch_files import AnswerFile, BatchFileError, RequestFile

BROKEN: dict[str, tuple[Any, str]] = {
    "not-an-object": ([1], "line 2 is not a JSON object"),
    "no-id": (request_line("b") | {"custom_id": ""}, "line 2 has no custom_id"),
    "id-a-number": (request_line("b") | {"custom_id": 7}, "line 2 has no custom_id"),
    "id-twice": (request_line("a"), "line 2 has custom_id 'a', which already stands in line 1"),
    "method": (request_line("b", method="GET"), "line 2 has method 'GET'"),
    "url": (request_line("b", url="/v1/embeddings"), "line 2 has url '/v1/embeddings': it must be one of"),
    "url-a-list": (request_line("b", url=["/v1/messages"]), "line 2 has url"),
    "no-body": (request_line("b", body="REMOVED"), "line 2 has no body"),
    "stream": (request_line("b", body={"stream": True}), "line 2 asks for a stream"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_line_that_cannot_be_sent_is_named(name: str, tmp_path: Path) -> None:
    line, message = BROKEN[name]
    path = write_lines(tmp_path / "in.jsonl", [request_line("a"), line])
    with pytest.raises(BatchFileError, match=message) as error:
        RequestFile(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "raw", ["{", "\ud800".encode("utf-8", "surrogatepass"), "[" * 200_000], ids=["cut", "bytes", "deep"]
)
def test_a_line_that_is_not_json_is_named(raw: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(raw.encode() if isinstance(raw, str) else raw)
    with pytest.raises(BatchFileError, match="line 1 is not JSON"):
        RequestFile(path)


def test_requests_are_read_again_from_their_place(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    lines = [request_line(name, limit) for name, limit in (("ä", 1), ("b", 2), ("c", 3))]
    path.write_text("\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")
    with RequestFile(path) as file:
        assert [request.line_number for request in file.requests] == [1, 3, 5]
        assert [file.read(request).body for request in reversed(file.requests)] == [
            line["body"] for line in lines[::-1]
        ]


def answer(custom_id: str) -> dict[str, Any]:
    return {"custom_id": custom_id, "response": {"status_code": 200, "body": {"text": "zerrissen \ud83d"}}}


@pytest.mark.parametrize("torn", [b"", b"{", b'{"custom_id": "c", "response": {"status_code": 200}}'], ids=str)
def test_a_torn_line_is_cut_off_and_asked_again(torn: bytes, tmp_path: Path) -> None:
    """A kill in the middle of a write left half a line, and the next run wrote on after it."""
    path = tmp_path / "out.jsonl"
    with AnswerFile(path) as answers:
        answers.append(answer("a"))
        answers.append(answer("b"))
    with path.open("ab") as file:
        file.write(torn)
    with AnswerFile(path) as answers:
        assert answers.answered == {"a": 200, "b": 200}
        answers.append(answer("c"))
    assert [line["custom_id"] for line in read_lines(path)] == ["a", "b", "c"]


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("my notes\n")
    with pytest.raises(BatchFileError, match="line 1 is not an answer of a bulk job"):
        AnswerFile(path)
    assert path.read_text() == "my notes\n"


def test_two_jobs_never_write_one_file(tmp_path: Path) -> None:
    with AnswerFile(tmp_path / "out.jsonl"), pytest.raises(BatchFileError, match="is being written by another job"):
        AnswerFile(tmp_path / "out.jsonl")
