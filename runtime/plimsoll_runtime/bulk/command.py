"""`plimsoll bulk`: arguments, the order of a job, and its exit code.

Owns what a user types and reads. In: a file of request lines, servers. Out: a file of answer lines, a bar, a summary,
and an exit code: 0 every line was answered, 3 some were refused, 1 the job stopped, 2 wrong arguments. Started again
with the same files it goes on where it was.
"""

import argparse
import asyncio
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tqdm import tqdm

from plimsoll_runtime.bulk.batch_files import AnswerFile, BatchFileError, BatchRequest, RequestFile
from plimsoll_runtime.bulk.job import Job, JobStopped, Run
from plimsoll_runtime.bulk.report import Tally
from plimsoll_runtime.bulk.server import Answered, SendAgain, Server, ServerError, ServerLimits
from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.contract.key_file import key_headers

EXIT_ANSWERED: Final = 0
EXIT_STOPPED: Final = 1
EXIT_REFUSED: Final = 3


def main(arguments: Sequence[str]) -> int:
    """Run the job and return the exit code."""
    options = _parser().parse_args(list(arguments))
    try:
        with RequestFile(Path(options.requests)) as requests, AnswerFile(Path(options.answers)) as answers:
            return asyncio.run(_BulkJob(options, requests, answers).run())
    except (BatchFileError, ServerError, JobStopped, ValueError) as error:
        print(f"plimsoll bulk: {error}", file=sys.stderr)
        return EXIT_STOPPED


class _BulkJob:
    """One run of the command."""

    def __init__(self, options: argparse.Namespace, requests: RequestFile, answers: AnswerFile) -> None:
        self._options = options
        self._requests = requests
        self._answers = answers
        self._tally = Tally()
        self._started = time.monotonic()
        self._left = _without_answer(options.answers, requests.requests, answers.answered)
        self._bar: tqdm[Any] = tqdm(
            total=len(requests.requests),
            initial=len(answers.answered),
            unit="line",
            dynamic_ncols=True,
            mininterval=0.5,
        )

    async def run(self) -> int:
        headers = {} if self._options.api_key_file is None else key_headers(Path(self._options.api_key_file))
        if self._options.over_budget is not None:
            headers[endpoints.HEADER_OVER_BUDGET] = self._options.over_budget
        servers = [Server(url, headers, self._options.timeout) for url in self._options.server]
        try:
            limits = await asyncio.gather(*[server.limits() for server in servers])
            self._say_limits(servers, limits)
            await Run(self._job(), self._left).over(list(zip(servers, limits, strict=True)))
        finally:
            self._bar.close()
            print(self._tally.summary(time.monotonic() - self._started), file=sys.stderr)
            await asyncio.gather(*[server.close() for server in servers])
        return EXIT_ANSWERED if all(status == 200 for status in self._answers.answered.values()) else EXIT_REFUSED

    def _job(self) -> Job:
        return Job(
            read=self._requests.read,
            keep=self._keep,
            again=self._again,
            give_up_seconds=self._options.give_up_after,
            stops_early=not self._options.keep_going,
        )

    def _say_limits(self, servers: Sequence[Server], limits: Sequence[ServerLimits]) -> None:
        for server, its_limits in zip(servers, limits, strict=True):
            self._bar.write(f"{server.url}: {its_limits}", file=sys.stderr)
        if self._answers.answered:
            self._bar.write(f"{len(self._answers.answered):,} lines are answered already", file=sys.stderr)

    def _keep(self, request: BatchRequest, answer: Answered) -> None:
        self._answers.append(_answer_line(request, answer))
        self._answers.answered[request.custom_id] = answer.status
        self._tally.add(answer)
        self._bar.update()
        self._bar.set_postfix_str(self._tally.line(time.monotonic() - self._started), refresh=False)

    def _again(self, outcome: SendAgain) -> None:
        self._tally.sent_again += 1


def _without_answer(path: str, requests: Sequence[BatchRequest], answered: dict[str, int]) -> list[BatchRequest]:
    unknown = answered.keys() - {request.custom_id for request in requests}
    if unknown:
        raise BatchFileError(
            f"{path} holds an answer to {min(unknown)!r}, which no request line asks: name another file for the answers"
        )
    return [request for request in requests if request.custom_id not in answered]


def _answer_line(request: BatchRequest, answer: Answered) -> dict[str, Any]:
    """OpenAI's form, and beside it what the server granted."""
    names = {
        "prompt_tokens": endpoints.HEADER_PROMPT_TOKENS,
        "max_output_tokens": endpoints.HEADER_MAX_OUTPUT_TOKENS,
        "limited_by": endpoints.HEADER_LIMITED_BY,
    }
    granted = {name: answer.headers[header] for name, header in names.items() if header in answer.headers}
    line_id = f"batch_req_{uuid.uuid4().hex}"
    request_id = answer.headers.get("x-request-id", answer.headers.get("request-id", line_id))
    response = {"status_code": answer.status, "request_id": request_id, "body": answer.body}
    budget = {name: int(value) if value.isdecimal() else value for name, value in granted.items()}
    return {"id": line_id, "custom_id": request.custom_id, "response": response, "error": None, "budget": budget}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plimsoll bulk",
        description="Send every request of a file to one or more servers, and write every answer once.",
        epilog="Exit code: 0 every line was answered, 3 some were refused, 1 the job stopped, 2 wrong arguments.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("requests", metavar="IN.jsonl", help="one request per line, in the form of OpenAI's batch API")
    add("answers", metavar="OUT.jsonl", help="one answer per line is appended; what stands there is not asked again")
    add("--server", action="append", metavar="URL", required=True, help="give it once for each server")
    add("--over-budget", choices=["clamp", "refuse"], help="for every request (default: what each server does)")
    add("--keep-going", action="store_true", help="go on after a refusal that every line would get")
    add("--api-key-file", metavar="PATH", help="file whose first key is sent (default: no key is sent)")
    add("--timeout", type=_seconds, default=3600.0, metavar="SECONDS", help="per request (default: %(default)s)")
    add(
        "--give-up-after",
        type=_seconds,
        default=600.0,
        metavar="SECONDS",
        help="stop when no server has answered for so long (default: %(default)s)",
    )
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return seconds
