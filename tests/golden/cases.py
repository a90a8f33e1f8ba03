"""What the real models are asked: the same prompts for the oracle, which writes the golden files, and for Octavo."""

import json
from dataclasses import dataclass
from pathlib import Path

from octavo.compression.calibration_text import cut, read_texts
from octavo.model.source import open_model
from octavo.text.chat_template import ChatTemplate
from octavo.text.gguf_vocabulary import tokenizer_from_metadata

DATA = Path(__file__).parent / "data"
# The introduction of Charles Darwin's "On the Origin of Species" (1859): real prose that few models know by heart.
PAGE = Path(__file__).parents[1] / "corpus" / "origin_of_species.txt"
STEPS = 64
TOP = 5


@dataclass(frozen=True)
class Prompt:
    """A question to chat about, or a text to continue."""

    name: str
    text: str
    chat: bool = False

    @property
    def messages(self):
        """The conversation of a chat prompt."""
        return [{"role": "user", "content": self.text}]


def read_page():
    """The whole page."""
    return PAGE.read_text("utf-8").strip()


# Chosen so that no greedy step is a near-tie (tests.golden.make refuses those). The page without its last sentence is
# longer than Gemma's window of 512 tokens.
_PAGE = Prompt("page", read_page().rpartition(" A fair result")[0])
PROMPTS = {
    "smollm2": (
        Prompt("sky", "Why is the sky blue? Explain it to a child.", chat=True),
        Prompt("prime", "What is a prime number? Give some examples.", chat=True),
        Prompt("rome", "The Roman Empire was"),
        _PAGE,
    ),
    "gemma3": (Prompt("rome", "The Roman Empire was"), Prompt("water", "Water boils when"), _PAGE),
}
WEIGHTS = ("quantized", "bf16")


def page_ids(path):
    """The whole page's token ids."""
    return prompt_ids(path, [Prompt("", read_page())])[""]


def calibration_windows(path, count=6, length=512):
    """Token ids of windows from all over the text that `octavo quantize` calibrates with."""
    tokenizer = tokenizer_from_metadata(open_model(path).gguf_metadata)
    return cut(read_texts(None, None), tokenizer, count, length).calibration.tolist()


def prompt_ids(path, prompts):
    """{name: token ids}, as Octavo's tokenizer and template make them of the file's metadata."""
    source = open_model(path)
    tokenizer = tokenizer_from_metadata(source.gguf_metadata)
    found = {}
    for prompt in prompts:
        text = prompt.text
        if prompt.chat:
            text = ChatTemplate(source.chat_template, tokenizer.special_tokens).render(prompt.messages)
        found[prompt.name] = tokenizer.encode(text, add_special_tokens=not prompt.chat)
    return found


@dataclass(frozen=True)
class Golden:
    """What the oracle says after one prompt: its greedy tokens, and at each step the likeliest with their logprobs."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    top_ids: tuple[tuple[int, ...], ...]
    top_logprobs: tuple[tuple[float, ...], ...]

    @property
    def margins(self):
        """How much likelier the best token of each step is than the second, as a difference of log-probabilities."""
        return [step[0] - step[1] for step in self.top_logprobs]


def golden_path(model, weights):
    """The file of one model with one kind of weights."""
    return DATA / f"{model}-{weights}.json"


def read_golden(model, weights):
    """{prompt's name: Golden}."""
    stored = json.loads(golden_path(model, weights).read_text())
    return {
        name: Golden(
            tuple(entry["prompt"]),
            tuple(step[0][0] for step in entry["steps"]),
            tuple(tuple(token for token, _ in step) for step in entry["steps"]),
            tuple(tuple(logprob for _, logprob in step) for step in entry["steps"]),
        )
        for name, entry in stored.items()
    }


def write_golden(model, weights, golden):
    """One line a step, so that a change reads well as a diff."""
    entries = []
    for name, entry in golden.items():
        steps = ",\n".join(
            f"    {json.dumps([list(pair) for pair in zip(ids, logprobs, strict=True)])}"
            for ids, logprobs in zip(entry.top_ids, entry.top_logprobs, strict=True)
        )
        entries.append(f'"{name}": {{\n  "prompt": {json.dumps(entry.prompt)},\n  "steps": [\n{steps}\n  ]\n}}')
    golden_path(model, weights).write_text("{\n" + ",\n".join(entries) + "\n}\n")


_BF16_ERRORS = DATA / "transformers-bf16.json"


def write_bf16_errors(found):
    """{model: what transformers is off by in bf16: root mean square over all steps and prompts, in nats}."""
    _BF16_ERRORS.write_text(json.dumps({name: round(value, 5) for name, value in found.items()}) + "\n")


def read_bf16_errors():
    """See write_bf16_errors."""
    return json.loads(_BF16_ERRORS.read_text())
