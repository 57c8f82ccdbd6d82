"""Text to token ids and back, byte-exact, for one model.

Owns the choice of what is matched in a text: all added tokens, all but the control tokens, or all with a disguise
that keeps typed control tokens apart from real ones. In: a `tokenizers.Tokenizer` and what the model's files say of
its special tokens. Out: ids, bytes. It does not know where the vocabulary came from (tokenizer_folder.py,
gguf_vocabulary.py) nor any chat template.

Invariants: `num_tokens` counts the ids that a text can have, not the padded rows of an embedding; ids are never
truncated or padded, whatever the model's file asks for; encoding runs outside Python's interpreter lock, so a 20 MB
text does not stop other threads. All views share one model in memory.
"""

import functools
from collections.abc import Callable, Iterable, Sequence

import tokenizers
from tokenizers import AddedToken, normalizers

from plimsoll_runtime.text.errors import TokenizerError
from plimsoll_runtime.text.special_tokens import SpecialTokens
from plimsoll_runtime.text.token_bytes import PieceBytes


class Tokenizer:
    """One model's tokenizer. Safe to use from several threads at once."""

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        special: SpecialTokens,
        piece_bytes: PieceBytes,
        added_bytes: PieceBytes = str.encode,
    ) -> None:
        """`library` is owned from here on; `piece_bytes` and `added_bytes` give a token's bytes from its spelling."""
        library.no_truncation()
        library.no_padding()
        self.special = special
        self._library = library
        self._piece_bytes = piece_bytes
        self._added_bytes = added_bytes
        self._added: dict[int, AddedToken] = library.get_added_tokens_decoder()
        self._control_ids = special.end_ids | {token_id for token_id, token in self._added.items() if token.special}
        self._text_only = _view(library, _as_it_is)
        self._text_only.encode_special_tokens = True
        self.num_tokens = 1 + max(library.get_vocab().values(), default=-1)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every token that ends generation."""
        return self.special.end_ids

    @property
    def bos_token(self) -> str | None:
        return self.special.named.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special.named.get("eos_token")

    @property
    def control_texts(self) -> frozenset[str]:
        """Texts of the control tokens: what a client may type but must never say."""
        pieces = (self._library.id_to_token(token_id) for token_id in self._control_ids)
        return frozenset(piece for piece in pieces if piece)

    def control_ids(self, texts: Iterable[str]) -> frozenset[int]:
        """The control tokens among `texts`."""
        ids = (self._library.token_to_id(text) for text in texts)
        return frozenset(token_id for token_id in ids if token_id is not None) & self._control_ids

    def token_id(self, text: str) -> int | None:
        """The token that stands for just this text, where the model has one."""
        token_id: int | None = self._library.token_to_id(text)
        return token_id

    @property
    def added_texts(self) -> frozenset[str]:
        """Texts of all added tokens, those included that are matched in any text."""
        return frozenset(token.content for token in self._added.values())

    def encode(self, text: str, *, parse_special: bool, add_special: bool) -> list[int]:
        """Ids of `text`. `parse_special`: control tokens in it are recognized, else they are text like any other;
        `add_special`: begin and end tokens are added as the model's tokenizer does.

        Raises UnicodeEncodeError for an unpaired surrogate.
        """
        return _encode(self._library if parse_special else self._text_only, text, add_special=add_special)

    def encode_marked(self, text: str, mark: str) -> list[int]:
        """Ids of `text` without the character `mark`, control tokens recognized unless a mark stands inside them."""
        return _encode(self._blind_to(mark), text, add_special=False)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of a token; an id inside the vocabulary that no token has gives none."""
        added = self._added.get(token_id)
        if added is not None:
            return self._added_bytes(added.content)
        piece = self._library.id_to_token(token_id)
        return self._piece_bytes(piece) if piece is not None else b""

    def is_special(self, token_id: int) -> bool:
        """Whether this is a control token, which never stands in visible text."""
        return token_id in self._control_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids without control tokens; bytes that are no character become U+FFFD."""
        visible = (self.token_bytes(token_id) for token_id in token_ids if not self.is_special(token_id))
        return b"".join(visible).decode(errors="replace")

    def least_tokens(self, text: str) -> int:
        """A number of tokens that `text` has at the least, found without tokenizing it.

        No token covers more bytes than the longest one; a normalizer may shorten a text first, though hardly to a
        quarter.
        """
        shortened_to = 1 if self._library.normalizer is None else 4
        return len(text.encode()) // (self._longest_token_bytes * shortened_to)

    @functools.cached_property
    def _longest_token_bytes(self) -> int:
        return max(len(self.token_bytes(token_id)) for token_id in range(self.num_tokens))

    def _blind_to(self, mark: str) -> tokenizers.Tokenizer:
        """A view that drops `mark` after added tokens were searched for and before anything else is done.

        Every added token is searched for in the text as it came: one that is searched for after normalization
        would be found again once the mark inside it is gone.
        """
        view = _view(self._library, _before_normalization)
        dropped: normalizers.Normalizer = normalizers.Replace(mark, "")
        own = self._library.normalizer
        view.normalizer = dropped if own is None else normalizers.Sequence([dropped, own])
        return view


def _encode(library: tokenizers.Tokenizer, text: str, *, add_special: bool) -> list[int]:
    if not text.isascii():
        text.encode()  # raises where the library would only say that it wants a str
    # The batch call releases the interpreter lock while it works; the single one does not.
    ids: list[int] = library.encode_batch_fast([text], add_special_tokens=add_special)[0].ids
    return ids


def _view(library: tokenizers.Tokenizer, change: Callable[[AddedToken], AddedToken]) -> tokenizers.Tokenizer:
    """A tokenizer over the same model (shared, not copied) whose added tokens are changed, their ids kept."""
    view = tokenizers.Tokenizer(library.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor"):
        if getattr(library, part) is not None:
            setattr(view, part, getattr(library, part))
    added = library.get_added_tokens_decoder()
    view.add_tokens([change(added[token_id]) for token_id in sorted(added)])
    if view.get_added_tokens_decoder().keys() != added.keys():
        raise TokenizerError("added tokens have ids that do not follow the vocabulary: the tokenizer cannot be used")
    return view


def _as_it_is(token: AddedToken) -> AddedToken:
    return token


def _before_normalization(token: AddedToken) -> AddedToken:
    return AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=False,
        special=token.special,
    )
