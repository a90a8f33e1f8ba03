"""What `LLM.get_tokenizer()` gives: Octavo's tokenizer under the names that scripts written for transformers use."""

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.engine.frontend import Frontend
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.text.chat_template import ChatTemplate
from octavo.text.tokenizer import Tokenizer


class ApiTokenizer:
    """The model's tokenizer and chat template. Safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self._template = template

    @property
    def vocab_size(self) -> int:
        """Largest token id + 1."""
        return self._tokenizer.vocab_size

    def __len__(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text."""
        return next(iter(self._tokenizer.eos_token_ids), None)

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text."""
        return self._tokenizer.bos_token_id

    @property
    def eos_token(self) -> str | None:
        """Its spelling."""
        return self._tokenizer.special_tokens.get("eos_token")

    @property
    def bos_token(self) -> str | None:
        """Its spelling."""
        return self._tokenizer.special_tokens.get("bos_token")

    @property
    def all_special_ids(self) -> list[int]:
        """Tokens that skip_special_tokens leaves out."""
        return sorted(self._tokenizer.special_ids)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        return self._tokenizer.encode(text, add_special_tokens)

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True) -> dict[str, Any]:
        """{"input_ids", "attention_mask"} of a text, or of each of several."""
        if isinstance(text, str):
            ids: Any = self.encode(text, add_special_tokens)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        many = [self.encode(one, add_special_tokens) for one in text]
        return {"input_ids": many, "attention_mask": [[1] * len(ids) for ids in many]}

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """Text of token ids."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._tokenizer.decode(ids, skip_special_tokens)

    def batch_decode(self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        """Text of each sequence."""
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text as the vocabulary spells them, without special ones around."""
        return [self._tokenizer.token(token_id) or "" for token_id in self.encode(text, add_special_tokens=False)]

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> Any:
        """The vocabulary's spelling of one id, or of each of several."""
        if isinstance(ids, int):
            return self._tokenizer.token(ids)
        return [self._tokenizer.token(token_id) for token_id in ids]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The id of one token in the vocabulary's spelling, or of each of several."""
        if isinstance(tokens, str):
            return self._tokenizer.id_of(tokens)
        return [self._tokenizer.id_of(token) for token in tokens]

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **more: Any,
    ) -> Any:
        """The prompt of a conversation (or of each of several), as token ids or as text.

        Raises:
            InvalidRequestError: the model has no chat template, or the template refuses.
        """
        if self._template is None:
            raise InvalidRequestError("this model has no chat template; give one with chat_template=")
        if conversation and not isinstance(conversation[0], Mapping):
            options: dict[str, Any] = {
                "tokenize": tokenize,
                "add_generation_prompt": add_generation_prompt,
                "continue_final_message": continue_final_message,
                **more,
            }
            return [self.apply_chat_template(one, **options) for one in conversation]  # type: ignore[arg-type]
        text = self._template.render(
            conversation,  # type: ignore[arg-type]
            add_generation_prompt,
            continue_final_message,
            **more,
        )
        return self.encode(text, add_special_tokens=False) if tokenize else text


def tokenizer_of(frontend: Frontend) -> ApiTokenizer:
    """The tokenizer of a model's text side.

    Raises:
        UnsupportedError: skip_tokenizer_init.
    """
    if frontend.tokenizer is None:
        raise UnsupportedError("there is no tokenizer: skip_tokenizer_init was set")
    return ApiTokenizer(frontend.tokenizer, frontend.chat_template)
