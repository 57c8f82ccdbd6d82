"""`plimsoll generate [--check]`: writes what follows from the contract, or says which files are stale.

Owns the wording around the tables; every name, unit, bound and default comes from the contract, the workload's fields
and the chart's values. In: those. Out: pages below docs/reference/, the CRD below crds/ and in the chart, its
reference, and the schema of the chart's values.
Invariant: the same contract gives the same bytes, so a difference is a forgotten run.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from plimsoll_operator.chart_values import values_schema_json
from plimsoll_operator.crd import crd_yaml
from plimsoll_operator.crd_reference import reference_page
from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.contract.command_line import flag_name
from plimsoll_runtime.contract.config import RuntimeConfig
from plimsoll_runtime.contract.metrics import METRICS
from plimsoll_runtime.contract.wording import allowed_values, default_text, value_schema

HEADER: Final = "<!-- Written by `plimsoll generate`. Do not edit. -->\n\n"
YAML_HEADER: Final = "# Written by `plimsoll generate`. Do not edit.\n"
OTHER_PATHS: Final[tuple[tuple[str, str, str], ...]] = (
    ("POST", endpoints.COUNT_TOKENS, "Prompt tokens of a messages request, without running it"),
    ("GET", endpoints.MODELS, "The served model with its effective limits"),
    ("POST", endpoints.TOKENIZE, "Token ids of a text"),
    ("POST", endpoints.DETOKENIZE, "Text of token ids"),
    ("POST", endpoints.DECIDE_BUDGET, "What a request would be granted, without running it"),
    ("GET", endpoints.BUDGET, "The effective limits and the load of this server"),
    ("GET", endpoints.LIVEZ, "200 while the process works"),
    ("GET", endpoints.READYZ, "200 while new requests are served; 503 while loading and draining"),
    ("GET", endpoints.HEALTH, "The same as `/readyz`"),
    ("GET", endpoints.METRICS, "Metrics in the Prometheus text format"),
)
HEADERS: Final[tuple[tuple[str, str, str], ...]] = (
    (endpoints.HEADER_OVER_BUDGET, "request", "`clamp` or `refuse`, instead of what the server is set to"),
    (endpoints.HEADER_PROMPT_TOKENS, "answer, budget refusal", "Prompt tokens after the chat template"),
    (endpoints.HEADER_MAX_OUTPUT_TOKENS, "answer", "Output tokens granted, per choice"),
    (endpoints.HEADER_LIMITED_BY, "answer", "`request`, `default`, `limit` or `context`"),
    (endpoints.HEADER_FINISH_DETAIL, "plain answer", "Why a choice ended at its limit, deadline or as a repetition"),
    (endpoints.HEADER_REQUEST_TIMEOUT, "request", "Seconds that the client waits for the whole answer"),
    *(
        (name, "request", "What an SDK says of itself: seconds without a sign")
        for name in endpoints.SDK_TIMEOUT_HEADERS
    ),
    (endpoints.HEADER_QUEUE_WAIT_ESTIMATE, "429, 529", "Whole seconds that it would have waited, as likely as not"),
    (endpoints.HEADER_SHOULD_RETRY, "504", "`false`: the same request would take as long again"),
)


def main(arguments: Sequence[str]) -> int:
    """Write or compare every page; returns 0, or 1 when --check finds a difference."""
    options = _parser().parse_args(list(arguments))
    root = Path(options.root)
    if not (root / "pyproject.toml").is_file():
        print(f"plimsoll generate: {root.resolve()} is not the project's folder: run it there", file=sys.stderr)
        return 1
    pages = reference_pages()
    if options.check:
        return _check(root, pages)
    for name, text in pages.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
        print(f"wrote {name}")
    return 0


def reference_pages() -> Mapping[str, str]:
    """Path below the project's folder -> text, of everything that is generated."""
    return {
        "docs/reference/serve-flags.md": _flags_page(),
        "docs/reference/http.md": _http_page(),
        "crds/inferenceservers.yaml": YAML_HEADER + crd_yaml(),
        "crds/REFERENCE.md": HEADER + reference_page(),
        "charts/plimsoll/files/inferenceservers.yaml": YAML_HEADER + crd_yaml(),
        "charts/plimsoll/values.schema.json": values_schema_json(),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plimsoll generate", description="Write the reference pages from the contract.", allow_abbrev=False
    )
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a page differs")
    parser.add_argument("--root", default=".", metavar="FOLDER", help="the project's folder (default: here)")
    return parser


def _check(root: Path, pages: Mapping[str, str]) -> int:
    stale = [name for name, text in pages.items() if _text_of(root / name) != text]
    for name in stale:
        print(f"{name} is not what the contract says: run plimsoll generate", file=sys.stderr)
    return 1 if stale else 0


def _text_of(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _flags_page() -> str:
    lines = [
        "# Flags of `plimsoll serve` and fields of an InferenceServer",
        "",
        "One contract, two spellings. Words are matched without regard to case; durations are plain seconds.",
        "A manifest has no field where the pod decides.",
        "",
        "| flag | manifest | allowed | default |",
        "|---|---|---|---|",
    ]
    for name in RuntimeConfig.model_fields:
        spec = value_schema(name)["spec"]
        manifest = f"`spec.{spec}`" if spec else ""
        lines.append(f"| `{_flag(name)}` | {manifest} | {allowed_values(name)} | {default_text(name)} |")
    lines += ["", "## What each one does", ""]
    lines += [f"- `{_flag(name)}`: {field.description}" for name, field in RuntimeConfig.model_fields.items()]
    return HEADER + "\n".join(lines) + "\n"


def _flag(name: str) -> str:
    flag = flag_name(name)
    return f"{flag}, --no-{flag[2:]}" if value_schema(name)["type"] == "boolean" else flag


def _http_page() -> str:
    sections = (_paths_section(), _headers_section(), _metrics_section())
    return HEADER + "# HTTP interface of the runtime\n\n" + "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def _paths_section() -> list[str]:
    lines = ["## Paths", "", "| method | path | answers | without a key |", "|---|---|---|---|"]
    lines += [f"| POST | `{route}` | Generates, streamed or not | |" for route in endpoints.GENERATION_ROUTES]
    for method, path, text in OTHER_PATHS:
        lines.append(f"| {method} | `{path}` | {text} | {'yes' if path in endpoints.WITHOUT_KEY else ''} |")
    return [*lines, "", "The last column counts where a key file is set; every other path is 401 there."]


def _headers_section() -> list[str]:
    lines = ["## Headers", "", "| header | on | says |", "|---|---|---|"]
    return [*lines, *(f"| `{name}` | {place} | {text} |" for name, place, text in HEADERS)]


def _metrics_section() -> list[str]:
    lines = ["## Metrics", "", "| name | kind | labels | counts |", "|---|---|---|---|"]
    for metric in METRICS:
        lines.append(f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.help} |")
    return lines
