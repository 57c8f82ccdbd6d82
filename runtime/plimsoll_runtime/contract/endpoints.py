"""Paths, port and headers of the runtime's HTTP interface, for both the server and whoever probes it.

Owns names only. The four generation routes are the keys of the every-route test; a new one must be added here.
"""

from typing import Final, Literal

DEFAULT_PORT: Final = 8000

CHAT_COMPLETIONS: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
MESSAGES: Final = "/v1/messages"
RESPONSES: Final = "/v1/responses"
Route = Literal["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"]
GENERATION_ROUTES: Final[tuple[Route, ...]] = (CHAT_COMPLETIONS, COMPLETIONS, MESSAGES, RESPONSES)

COUNT_TOKENS: Final = "/v1/messages/count_tokens"
MODELS: Final = "/v1/models"
TOKENIZE: Final = "/tokenize"
DETOKENIZE: Final = "/detokenize"
DECIDE_BUDGET: Final = "/v1/budget"
BUDGET: Final = "/budget"
LIVEZ: Final = "/livez"
READYZ: Final = "/readyz"
HEALTH: Final = "/health"
METRICS: Final = "/metrics"

WITHOUT_KEY: Final = frozenset({LIVEZ, READYZ, HEALTH, METRICS, BUDGET})
"""What answers without a key when a key file is set; the NetworkPolicy limits who reaches it."""

HEADER_OVER_BUDGET: Final = "x-plimsoll-over-budget"
HEADER_REQUEST_TIMEOUT: Final = "x-plimsoll-request-timeout"
"""Seconds that the client waits for the whole answer."""
SDK_TIMEOUT_HEADERS: Final = ("x-stainless-read-timeout", "x-stainless-timeout")
"""What the OpenAI and Anthropic SDKs say of themselves: seconds of silence after which they hang up."""
HEADER_PROMPT_TOKENS: Final = "x-plimsoll-prompt-tokens"
HEADER_MAX_OUTPUT_TOKENS: Final = "x-plimsoll-max-output-tokens"
HEADER_LIMITED_BY: Final = "x-plimsoll-limited-by"
HEADER_FINISH_DETAIL: Final = "x-plimsoll-finish-detail"
HEADER_QUEUE_WAIT_ESTIMATE: Final = "x-plimsoll-queue-wait-estimate"
"""On a refusal for want of a place or of time: whole seconds that the request would have waited, as likely as not."""
HEADER_SHOULD_RETRY: Final = "x-should-retry"
"""What the SDKs of OpenAI and Anthropic obey before any rule of their own."""
