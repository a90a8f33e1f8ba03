"""POST /tokenize and POST /detokenize."""

import asyncio

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequestError
from octavo.serving.errors import json_response
from octavo.serving.limits import MAX_TOKENIZED, check_depth, read_body
from octavo.serving.openai.answers import Detokenized, Tokenized
from octavo.serving.openai.chat import render
from octavo.serving.openai.notices import template_notices
from octavo.serving.openai.schema import BodyReader, DetokenizeRequest, TokenizeRequest, refuse_fields
from octavo.serving.openai.tools import unshown
from octavo.serving.state import state_of

_TOKENIZE = BodyReader(TokenizeRequest)
_DETOKENIZE = BodyReader(DetokenizeRequest)


async def tokenize(request: Request) -> Response:
    """The token ids of a prompt or of a conversation, as a completion would see them."""
    state = state_of(request)
    data = await read_body(request, state.max_body_bytes)
    check_depth(data)
    body, warnings = _TOKENIZE.read(data)
    state.check_model(body.model)
    refuse_fields(body)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("give either prompt or messages", "prompt")
    if body.prompt is not None:
        text, special = body.prompt, body.add_special_tokens is not False
    else:
        warnings += [*unshown(state, bool(body.tools)), *template_notices(state, body.chat_template_kwargs)]
        text, special = await render(request, state, body), bool(body.add_special_tokens)
    state.check_strict(warnings)
    if len(text) > MAX_TOKENIZED:
        name = "messages" if body.prompt is None else "prompt"
        raise InvalidRequestError(f"a text of {len(text)} characters; at most {MAX_TOKENIZED} are tokenized", name)
    tokens = await asyncio.to_thread(state.tokenizer.encode, text, special)
    names = [state.tokenizer.token(token) or "" for token in tokens] if body.return_token_strs else None
    return json_response(Tokenized(len(tokens), state.engine.info.max_model_len, tokens, names, warnings or UNSET))


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    state = state_of(request)
    data = await read_body(request, state.max_body_bytes)
    body, warnings = _DETOKENIZE.read(data)
    state.check_model(body.model)
    state.check_strict(warnings)
    most = state.tokenizer.vocab_size - 1
    if body.tokens and not 0 <= min(body.tokens) <= max(body.tokens) <= most:
        wrong = next(token for token in body.tokens if not 0 <= token <= most)
        raise InvalidRequestError(f"tokens: {wrong} is not in the vocabulary (0 to {most})", "tokens")
    text = await asyncio.to_thread(state.tokenizer.decode, body.tokens, False)
    return json_response(Detokenized(text, warnings or UNSET))
