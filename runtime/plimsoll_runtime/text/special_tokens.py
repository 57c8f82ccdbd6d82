"""Which tokens steer instead of speak: begin, end, and the ends of a turn.

Owns the list of texts that end a turn in known models, nearly llama.cpp's. In: what a model's files say. Out:
`SpecialTokens`. Invariant: generation ends on the union of everything that any file of the model calls an end, since
a single missed one lets answers run on to their limit.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

END_OF_TURN_TEXTS = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<｜end▁of▁sentence｜>",
    }
)
"""Control tokens with these texts end a turn in every model that has them, whether or not its files say so."""


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids and texts of steering tokens. `adds_bos`: the tokenizer itself begins every text with `bos_id`.

    `named` holds every text that a chat template may ask for by name (`bos_token`, `pad_token`, ...).
    """

    bos_id: int | None
    eos_id: int | None
    end_ids: frozenset[int]
    adds_bos: bool
    named: dict[str, str] = field(default_factory=dict)


def end_ids(declared: Iterable[int], ids: Mapping[str, int], is_control: Callable[[int], bool]) -> frozenset[int]:
    """The declared end ids and those of the well-known texts.

    A well-known text that the model does not call a control token counts only where nobody could mean it as text:
    Gemma has `</s>` as a tag of HTML, while an unmarked `<|im_end|>` is a converter's mistake.
    """
    known = {text: ids[text] for text in END_OF_TURN_TEXTS if text in ids}
    ends = {token_id for text, token_id in known.items() if is_control(token_id) or text.startswith(("<|", "<｜"))}
    return frozenset(declared) | ends
