"""gpt-oss answers: messages of channels. Analysis is reasoning, a message to a function is a call, the rest is content.

Source: OpenAI, "Harmony response format" (github.com/openai/harmony, docs/format.md).
"""

import re

from octavo.outputs.answer.feed import Feed, Markers, Reading, peek, take, until

_HEADER_END = Markers(("<|message|>",))
_MESSAGE_END = Markers(("<|end|>", "<|return|>", "<|call|>", "<|start|>"))
_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.\-]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
MARKERS = ("<|message|>", "<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>", "<|constrain|>")


def read_harmony(feed: Feed) -> Reading[None]:
    """Messages, to the end. An answer that does not begin with a header is content."""
    first = yield from peek(feed)
    opening = "to=" if (yield from take(feed, "to=")) else ""
    if not opening and first not in ("<", ""):
        yield from until(feed, _MESSAGE_END, feed.content)
    while True:
        header, opening = [opening], ""
        found = yield from until(feed, _HEADER_END, header.append)
        if not found:
            return
        text = "".join(header)
        channel, recipient = _CHANNEL.search(text), _RECIPIENT.search(text)
        if recipient is not None:
            feed.call(recipient[1])
            write = feed.arguments
        elif channel is not None and channel[1] == "analysis":
            write = feed.reasoning
        else:
            write = feed.content
        ended = yield from until(feed, _MESSAGE_END, write)
        if write == feed.reasoning and ended:
            feed.end_reasoning()
