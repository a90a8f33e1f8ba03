"""What an answer's text adds to a response: its items, and the events that tell of them."""

import time
import uuid
from collections.abc import Iterator
from typing import Any

from octavo.flow.delta import TextDelta
from octavo.outputs.answer.feed import AnswerEvent
from octavo.outputs.answer.parser import AnswerParser, AnswerShape, joined
from octavo.serving.openai.answers import ContentLogprob
from octavo.serving.openai.generation import Tally
from octavo.serving.openai.logprobs import TokenNames, chat_logprobs
from octavo.serving.responses.schema import JsonObject, ResponseObject
from octavo.serving.stream import named_event
from octavo.text.tokenizer import Tokenizer

_KINDS = {"content": "message", "reasoning": "reasoning"}
# Why an answer is incomplete; the last two are words of our own.
_CUT = {"length": "max_output_tokens", "timeout": "timeout", "abort": "aborted", "repetition": "repetition"}


class ResponseWriter:
    """Writes one response, with the numbers of its events. Mutable; one owner.

    Args:
        logprobs: tell those of the tokens of texts.
    """

    def __init__(
        self, response: ResponseObject, shape: AnswerShape, tokenizer: Tokenizer | None, logprobs: bool = False
    ) -> None:
        self.response = response
        self._parser = AnswerParser(shape)
        self._tokenizer = tokenizer
        self._number = 0
        self._names = TokenNames(tokenizer)
        self._tells = logprobs
        self._measured: list[ContentLogprob] = []  # of tokens whose text is still to come
        self._item: JsonObject | None = None  # that is not complete

    def event(self, kind: str, /, **fields: Any) -> bytes:
        """One event."""
        self._number += 1
        return named_event(kind, {"type": kind, "sequence_number": self._number - 1, **fields})

    def state(self, name: str) -> bytes:
        """An event with the whole response."""
        return self.event(f"response.{name}", response=self.response)

    def push(self, delta: TextDelta) -> list[bytes]:
        """What more text brings."""
        found = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            found += self._parser.finish()
        if self._tells:
            self._measured += chat_logprobs(delta.logprobs, self.response.top_logprobs, self._names).content
        events = joined(found)
        if events and all(event.kind != "content" for event in events):
            self._measured.clear()  # of tokens that are no text of the answer
        return [told for event in events for told in self._part(event)]

    def finish(self, reason: str, tally: Tally) -> list[bytes]:
        """The end of an answer that did not fail; the last event is still to be told."""
        response = self.response
        cut = _CUT.get(reason)
        told = list(self._close("incomplete" if cut else "completed"))
        response.status = "incomplete" if cut else "completed"
        response.incomplete_details = {"reason": cut} if cut else None
        response.completed_at = None if cut else int(time.time())
        response.usage = self._usage(tally)
        return told

    def fail(self, code: str, message: str) -> None:
        """The end of an answer that failed."""
        if self._item is not None:
            self._item["status"] = "incomplete"
        self.response.status, self.response.error = "failed", {"code": code, "message": message}

    def cancel(self) -> None:
        """The end of an answer that nobody wants any more."""
        if self._item is not None:
            self._item["status"] = "incomplete"
        self.response.status = "cancelled"

    def _usage(self, tally: Tally) -> JsonObject:
        thoughts = [item["content"][0]["text"] for item in self.response.output if item["type"] == "reasoning"]
        encode = self._tokenizer.encode if self._tokenizer is not None else None
        reasoning = sum(len(encode(text, False)) for text in thoughts) if encode else 0
        return {
            "input_tokens": tally.prompt_tokens,
            "input_tokens_details": {"cached_tokens": tally.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": tally.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": tally.prompt_tokens + tally.completion_tokens,
        }

    def _part(self, event: AnswerEvent) -> Iterator[bytes]:
        """Items come one after another: what belongs to no open one begins the next."""
        if event.kind == "call":
            yield from self._begin(
                {
                    "type": "function_call",
                    "id": f"fc_{uuid.uuid4().hex}",
                    "call_id": f"call_{uuid.uuid4().hex[:24]}",
                    "name": event.text,
                    "arguments": "",
                    "status": "in_progress",
                }
            )
            return
        if event.kind != "arguments" and (self._item is None or self._item["type"] != _KINDS[event.kind]):
            yield from self._begin(_new_item(event.kind))
            yield self._told("response.content_part.added", content_index=0, part=dict(self._add_part()))
        item = self._item
        assert item is not None
        if event.kind == "arguments":
            item["arguments"] += event.text
            yield self._told("response.function_call_arguments.delta", delta=event.text)
            return
        item["content"][0]["text"] += event.text
        more: JsonObject = {}
        if event.kind == "content":
            more["logprobs"], self._measured = self._measured, []
            item["content"][0]["logprobs"] += more["logprobs"]
        yield self._told(f"response.{_text_of(item)}.delta", content_index=0, delta=event.text, **more)

    def _begin(self, item: JsonObject) -> Iterator[bytes]:
        yield from self._close("completed")
        self._item = item
        self.response.output.append(item)
        yield self.event("response.output_item.added", output_index=len(self.response.output) - 1, item=item)

    def _add_part(self) -> JsonObject:
        assert self._item is not None
        part: JsonObject = {"type": _text_of(self._item), "text": ""}
        if self._item["type"] == "message":
            part |= {"annotations": [], "logprobs": []}
        self._item["content"].append(part)
        return part

    def _close(self, status: str) -> Iterator[bytes]:
        item = self._item
        if item is None:
            return
        item["status"] = status
        if item["type"] == "function_call":
            yield self._told("response.function_call_arguments.done", arguments=item["arguments"], name=item["name"])
        else:
            part = item["content"][0]
            more: JsonObject = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
            yield self._told(f"response.{_text_of(item)}.done", content_index=0, text=part["text"], **more)
            yield self._told("response.content_part.done", content_index=0, part=part)
        yield self.event("response.output_item.done", output_index=len(self.response.output) - 1, item=item)
        self._item = None

    def _told(self, kind: str, /, **fields: Any) -> bytes:
        assert self._item is not None
        return self.event(kind, item_id=self._item["id"], output_index=len(self.response.output) - 1, **fields)


def _new_item(kind: str) -> JsonObject:
    if kind == "reasoning":
        return {
            "type": "reasoning",
            "id": f"rs_{uuid.uuid4().hex}",
            "summary": [],
            "content": [],
            "status": "in_progress",
        }
    return {
        "type": "message",
        "id": f"msg_{uuid.uuid4().hex}",
        "role": "assistant",
        "status": "in_progress",
        "content": [],
    }


def _text_of(item: JsonObject) -> str:
    return "reasoning_text" if item["type"] == "reasoning" else "output_text"
