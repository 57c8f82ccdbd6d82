"""The Berkeley Function Calling Leaderboard's own client and checker against a model that writes the right calls.

`python tests/clients/bfcl.py BFCL_PYTHON` starts a server whose scripted model answers each entry with the calls that
the checker accepts, as Hermes writes them, lets `bfcl-eval` ask it over HTTP on the three routes with tools, and prints
the scores. What is lost on the way (an argument, a call, a name) costs points: the exit code is 1 below 100 %. With
`--wrong` every call's first argument is left out, and the score must be 0: it is the client that counts.

The client needs an environment of its own, since it wants other versions of what we use:

    python3.11 -m venv /tmp/bfcl && /tmp/bfcl/bin/pip install --no-deps bfcl-eval==2026.3.23
    /tmp/bfcl/bin/pip install 'openai>=1.86,<3' 'anthropic<1' requests tqdm numpy==1.26.4 pandas 'pydantic>=2.8.2' \\
      python-dotenv tree_sitter==0.21.3 tree-sitter-java==0.21.0 tree-sitter-javascript==0.21.4 mistralai==1.7.0 \\
      cohere==5.18.0 typer tabulate datamodel-code-generator==0.25.7 google-genai mpmath==1.3.0 tenacity writer-sdk \\
      overrides boto3 beautifulsoup4 html2text rank_bm25==0.2.2 networkx==3.3 filelock==3.20.0 huggingface_hub \\
      qwen-agent google-search-results soundfile
    make bfcl BFCL_PYTHON=/tmp/bfcl/bin/python
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from doubles.scripted_model import Script
from doubles.server import Vocabulary, scripted_server

CATEGORIES = ("simple_python", "multiple", "parallel")
ENTRIES = 20
ROUTES = ("chat", "responses", "messages")
MODEL = "claude-haiku-4-5-20251001"
"""What the scripted model is called: the client asks on messages for names of that API's vendor alone."""
HERE = Path(__file__).parent
TEMPLATE = "{{ tools | tojson }}{% for message in messages %}{{ message.content }}{% endfor %}"


def main() -> int:
    parser = argparse.ArgumentParser(description="bfcl-eval against a scripted model that writes the right calls")
    parser.add_argument("bfcl_python", help="the Python of the client's environment")
    parser.add_argument("--wrong", action="store_true", help="leave out an argument of every call: the score must be 0")
    options = parser.parse_args()
    package = _output(options.bfcl_python, "-c", "import bfcl_eval; print(bfcl_eval.__path__[0])")
    answers = recorded_answers(Path(package) / "data", is_wrong=options.wrong)
    with (
        tempfile.TemporaryDirectory() as project,
        scripted_server(
            _script(answers),
            template=TEMPLATE,
            page_size=64,
            context_length=32_768,
            served_model_name=MODEL,
            tool_call_parser="hermes",
        ) as server,
    ):
        scores = run_client(options.bfcl_python, server.url, Path(project))
    wanted = 0.0 if options.wrong else 1.0
    for name, accuracy in scores.items():
        print(f"{name:<32} {accuracy:7.1%} of {ENTRIES}")
    return 0 if len(scores) == len(ROUTES) * len(CATEGORIES) and set(scores.values()) == {wanted} else 1


def recorded_answers(data: Path, *, is_wrong: bool) -> dict[str, str]:
    """What the model writes, by the question that it is asked."""
    answers: dict[str, str] = {}
    for category in CATEGORIES:
        questions = _lines(data / f"BFCL_v4_{category}.json")
        truths = _lines(data / "possible_answer" / f"BFCL_v4_{category}.json")
        for question, truth in list(zip(questions, truths, strict=True))[:ENTRIES]:
            assert question["id"] == truth["id"]
            calls = [_call(call, is_wrong=is_wrong) for call in truth["ground_truth"]]
            answers[question["question"][0][-1]["content"]] = "\n".join(calls)
    return answers


def _call(accepted: Mapping[str, Any], *, is_wrong: bool) -> str:
    """One call as Hermes writes it. The client sends names with underscores for dots."""
    [(name, parameters)] = accepted.items()
    arguments = _first_accepted(parameters)
    if is_wrong:
        arguments.pop(next(iter(arguments)))
    call = {"name": name.replace(".", "_"), "arguments": arguments}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _first_accepted(parameters: Mapping[str, list[Any]]) -> dict[str, Any]:
    """The first value that the checker accepts for each parameter; an empty one says that it may be left out."""
    chosen = {name: [value for value in values if value != ""] for name, values in parameters.items()}
    return {name: _value(values[0]) for name, values in chosen.items() if values}


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return _first_accepted(value)
    return [_value(each) for each in value] if isinstance(value, list) else value


def _script(answers: Mapping[str, str]) -> Any:
    def script(vocabulary: Vocabulary) -> Script:
        ids = {asked: [*answer.encode(), vocabulary.end_id] for asked, answer in answers.items()}

        def write(prompt_ids: tuple[int, ...], position: int) -> int:
            prompt = bytes(token_id for token_id in prompt_ids if token_id < 256).decode()
            asked = max((each for each in ids if prompt.endswith(each)), key=len, default=None)
            answer = [vocabulary.end_id] if asked is None else ids[asked]
            return answer[min(position, len(answer) - 1)]

        return write

    return script


def run_client(python: str, url: str, project: Path) -> dict[str, float]:
    """The accuracy of each model row and category, as the checker wrote it down."""
    wanted = {category: [f"{category}_{number}" for number in range(ENTRIES)] for category in CATEGORIES}
    (project / "test_case_ids_to_generate.json").write_text(json.dumps(wanted))
    settings = {
        "BFCL_PROJECT_ROOT": str(project),
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "BFCL_MODEL": MODEL,
    }
    models = ",".join(f"{MODEL}-{route}-FC" for route in ROUTES)
    asked = ["generate", "--model", models, "--run-ids", "--num-threads", "4"]
    judged = ["evaluate", "--model", models, "--test-category", ",".join(CATEGORIES), "--partial-eval"]
    for command in (asked, judged):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | settings
        subprocess.run([python, str(HERE / "bfcl_row.py"), *command], env=environment, cwd=project, check=True)
    failed = [path.name for path in project.glob("result/**/*.json") if "Error during inference" in path.read_text()]
    assert not failed, f"requests failed in {failed}: a failed one is a wrong answer to the checker, and nothing more"
    return {
        f"{path.parts[-3]} {path.stem.removeprefix('BFCL_v4_').removesuffix('_score')}": _accuracy(path)
        for path in sorted(project.glob("score/*/*/BFCL_v4_*_score.json"))
    }


def _accuracy(path: Path) -> float:
    return float(json.loads(path.read_text().splitlines()[0])["accuracy"])


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
