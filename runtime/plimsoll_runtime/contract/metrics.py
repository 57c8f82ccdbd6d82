"""Names, kinds, labels and help of every metric of the runtime, for whoever writes, scrapes or documents them.

Owns names only and needs no metrics library. Invariants: labels have few values: `route` is the path (`other` for an
unknown one), `outcome` and `state` the words below, `reason` a refusal code, `tenant` the first digits of a key's hash,
for few tenants at a time. No metric carries a prompt, a key or a user's name.
"""

from dataclasses import dataclass
from typing import Final, Literal

MetricKind = Literal["counter", "gauge", "histogram"]
Outcome = Literal["completed", "length", "cancelled", "refused", "failed"]

OTHER_ROUTE: Final = "other"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric under its full name; seconds in histograms, counts elsewhere."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


REQUESTS_RUNNING: Final = Metric("plimsoll_requests_running", "gauge", "Requests that hold a running slot.")
REQUESTS_WAITING: Final = Metric("plimsoll_requests_waiting", "gauge", "Requests that wait for a running slot.")
REQUESTS_PAUSED: Final = Metric("plimsoll_requests_paused", "gauge", "Requests paused with their progress kept.")
REQUESTS: Final = Metric(
    "plimsoll_requests_total",
    "counter",
    "Requests that ended, by outcome: completed, length, cancelled, refused or failed.",
    ("route", "outcome"),
)
BUDGET_DECISIONS: Final = Metric(
    "plimsoll_budget_decisions_total",
    "counter",
    "Budgets granted, by what limited them: request, default, limit or context.",
    ("route", "limited_by"),
)
REFUSALS: Final = Metric("plimsoll_refusals_total", "counter", "Requests refused, by error code.", ("route", "reason"))
UNKNOWN_FIELDS: Final = Metric(
    "plimsoll_unknown_fields_total", "counter", "Fields of requests that no dialect knows, ignored.", ("route",)
)
PROMPT_TOKENS: Final = Metric("plimsoll_prompt_tokens_total", "counter", "Prompt tokens of requests that were served.")
CACHED_TOKENS: Final = Metric(
    "plimsoll_cached_tokens_total", "counter", "Prompt tokens that the prefix cache spared from being computed."
)
OUTPUT_TOKENS: Final = Metric("plimsoll_output_tokens_total", "counter", "Tokens sampled, end tokens included.")
QUEUE_WAIT_SECONDS: Final = Metric(
    "plimsoll_queue_wait_seconds", "histogram", "Time from arrival to the first running slot."
)
TIME_TO_FIRST_TOKEN_SECONDS: Final = Metric(
    "plimsoll_time_to_first_token_seconds", "histogram", "Time from arrival to the first token."
)
INTER_TOKEN_SECONDS: Final = Metric(
    "plimsoll_inter_token_seconds", "histogram", "Time between two tokens of one sequence."
)
REQUEST_SECONDS: Final = Metric("plimsoll_request_seconds", "histogram", "Time from arrival to the end of a request.")
KV_PAGES: Final = Metric(
    "plimsoll_kv_pages", "gauge", "Pages of the key-value cache: free, used or cached.", ("state",)
)

PREEMPTIONS: Final = Metric(
    "plimsoll_preemptions_total",
    "counter",
    "Sequences that gave up their slot: their pages stayed (pause), moved to host memory (swap), or were lost "
    "(recompute).",
    ("kind",),
)
SWAP_BYTES: Final = Metric(
    "plimsoll_swap_bytes_total",
    "counter",
    "Keys and values of paused sequences moved between the cache and host memory: out of the cache, or in.",
    ("direction",),
)
LEVEL_TOKENS: Final = Metric(
    "plimsoll_level_tokens_total", "counter", "Tokens sampled on each level of the schedule, 0 the first.", ("level",)
)
OLDEST_WAIT_SECONDS: Final = Metric(
    "plimsoll_oldest_wait_seconds", "gauge", "Longest present wait for a token on each level.", ("level",)
)
TENANT_SHARE: Final = Metric(
    "plimsoll_tenant_share",
    "gauge",
    "Share of each tenant in the house in the weighted tokens served to them; the first digits of its key's hash.",
    ("tenant",),
)
SLOWDOWN: Final = Metric(
    "plimsoll_slowdown", "histogram", "Life of a complete request over the part of it that it had a slot; 1 is no wait."
)
DEADLINE_TRUNCATIONS: Final = Metric(
    "plimsoll_deadline_truncations_total", "counter", "Answers that ended at their deadline."
)
REPETITIONS: Final = Metric(
    "plimsoll_repetitions_total",
    "counter",
    "Answers seen to repeat themselves, by what became of them: demoted to the last level, or stopped.",
    ("action",),
)
EXPERT_USES: Final = Metric(
    "plimsoll_expert_uses_total",
    "counter",
    "Experts that a step's layer needed, by whether they were in the cache: hit or miss. Only with experts on disk.",
    ("result",),
)
EXPERT_BYTES: Final = Metric(
    "plimsoll_expert_bytes_total", "counter", "Bytes of experts brought from disk into the cache."
)
EXPERT_WAIT_SECONDS: Final = Metric(
    "plimsoll_expert_wait_seconds_total", "counter", "Time that steps waited for experts to come from disk."
)
EXPERT_SLOTS: Final = Metric("plimsoll_expert_slots", "gauge", "Slots of the expert cache: used or free.", ("state",))

METRICS: Final[tuple[Metric, ...]] = (
    REQUESTS_RUNNING,
    REQUESTS_WAITING,
    REQUESTS_PAUSED,
    REQUESTS,
    BUDGET_DECISIONS,
    REFUSALS,
    UNKNOWN_FIELDS,
    PROMPT_TOKENS,
    CACHED_TOKENS,
    OUTPUT_TOKENS,
    QUEUE_WAIT_SECONDS,
    TIME_TO_FIRST_TOKEN_SECONDS,
    INTER_TOKEN_SECONDS,
    REQUEST_SECONDS,
    KV_PAGES,
    PREEMPTIONS,
    SWAP_BYTES,
    LEVEL_TOKENS,
    OLDEST_WAIT_SECONDS,
    TENANT_SHARE,
    SLOWDOWN,
    DEADLINE_TRUNCATIONS,
    REPETITIONS,
    EXPERT_USES,
    EXPERT_BYTES,
    EXPERT_WAIT_SECONDS,
    EXPERT_SLOTS,
)
