"""How models mark what they think before they answer: a table of formats, and how the two are told apart."""

from dataclasses import dataclass

from octavo.outputs.answer.feed import Feed, Markers, Reading, peek, until


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning between two marks; there may be several spellings of each.

    `open`: an answer begins inside of it unless its prompt says otherwise. `whole`: what reads the
    tool calls reads reasoning as well.
    """

    name: str
    begin: tuple[str, ...] = ("<think>",)
    end: tuple[str, ...] = ("</think>",)
    open: bool = False
    whole: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """All spellings of both marks."""
        return (*self.begin, *self.end)

    def opened_by(self, prompt: str) -> bool:
        """Whether an answer to this prompt begins inside of it."""
        tail = prompt.rstrip()
        if tail.endswith(self.begin):
            return True
        return self.open and not tail.endswith(self.end)


def read_reasoning(feed: Feed, form: ReasoningFormat, opened: bool) -> Reading[None]:
    """What comes before the answer, if anything does."""
    feed.mark()
    yield from peek(feed)
    if (yield from _begins(feed, form.begin)):
        opened = True
    elif not opened:
        feed.give_up()
        return
    feed.settle()
    if (yield from until(feed, Markers(form.end), feed.reasoning)):
        feed.end_reasoning()
    elif feed.ended:
        feed.finish("reasoning")


def _begins(feed: Feed, marks: tuple[str, ...]) -> Reading[bool]:
    """Pass over one of these marks if it comes next."""
    while True:
        rest = feed.text[feed.at :]
        found = next((mark for mark in marks if rest.startswith(mark)), None)
        if found is not None:
            feed.at += len(found)
            return True
        if feed.ended or not any(mark.startswith(rest) for mark in marks):
            return False
        yield


REASONING: dict[str, ReasoningFormat] = {
    form.name: form
    for form in (
        ReasoningFormat("qwen3"),
        ReasoningFormat("deepseek_r1", open=True),
        ReasoningFormat("mistral", ("[THINK]",), ("[/THINK]",)),
        ReasoningFormat(
            "granite",
            ("Here is my thought process:", "Here's my thought process:"),
            ("Here is my response:", "Here's my response:"),
        ),
        ReasoningFormat("openai_gptoss", (), (), whole=True),
    )
}

ALIASES = {
    "deepseek_v3": "qwen3",
    "deepseek_v31": "qwen3",
    "glm45": "qwen3",
    "olmo3": "qwen3",
    "hunyuan_a13b": "qwen3",
    "kimi_k2": "deepseek_r1",
    "minimax_m2": "deepseek_r1",
    "qwq": "deepseek_r1",
    "gpt_oss": "openai_gptoss",
    "openai": "openai_gptoss",
}
