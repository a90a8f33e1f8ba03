"""Which turns of a conversation are left out so that it fits the context."""

import asyncio
from typing import Any

from starlette.requests import Request

from octavo.serving.openai.chat import render
from octavo.serving.openai.schema import ChatRequest
from octavo.serving.state import ServerState


async def shortened(request: Request, state: ServerState, chat: ChatRequest) -> list[str]:
    """Leave out the oldest turns of `chat`, as few as possible; what was done, as a warning.

    A turn begins with a message of the user, so calls and their results stay together. Instructions stay.
    """
    messages = chat.messages
    head = 1 if messages and messages[0].get("role") == "system" else 0
    starts = [number for number, message in enumerate(messages) if number > head and message.get("role") == "user"]
    if not starts or await _fits(request, state, chat):
        return []
    low, high = 0, len(starts) - 1  # the fewest turns to leave out; when nothing fits, all but the last
    while low < high:
        middle = (low + high) // 2
        chat.messages = messages[:head] + messages[starts[middle] :]
        if await _fits(request, state, chat):
            high = middle
        else:
            low = middle + 1
    chat.messages = messages[:head] + messages[starts[low] :]
    return [f"truncation: the oldest {starts[low] - head} messages were left out"]


async def _fits(request: Request, state: ServerState, chat: Any) -> bool:
    most = state.engine.info.max_model_len - (chat.max_completion_tokens or 1)
    text = await render(request, state, chat)
    if len(text) > most * state.tokenizer.longest_token():
        return False
    return len(await asyncio.to_thread(state.tokenizer.encode, text, False)) <= most
