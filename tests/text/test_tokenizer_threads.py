"""Threads and tokenizers: nobody waits for another's long text, and nobody's settings reach another."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from octavo.flow.sampling_params import SamplingParams
from octavo.inputs.limits import InputLimits
from octavo.inputs.processor import InputProcessor
from octavo.text.chat_template import ChatTemplate
from tests.text.vocabularies import gemma, smol, smol_metadata


@pytest.mark.parametrize("tokenizer", [smol, gemma])
def test_a_long_text_is_tokenized_as_the_short_ones_are_and_holds_up_no_thread(tokenizer) -> None:
    known = tokenizer()
    text = "caf\u00e9 \U0001f600 ab" * 15_000
    shares: list[float] = []
    while len(shares) < 20 and min(shares, default=1.0) >= 0.5:  # on a busy machine one good try tells enough
        found: list[list[int]] = []
        thread = threading.Thread(target=lambda found=found: found.append(known.encode(text)))
        began = last = time.monotonic()
        longest = 0.0
        thread.start()
        while thread.is_alive():
            time.sleep(0.0005)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        shares.append(longest / (last - began))
        assert known.decode(found[0]) == text
        assert found[0] == known._backend.encode(text).ids
    assert min(shares) < 0.5, shares


def test_every_use_of_one_tokenizer_in_32_threads_is_what_it_is_alone() -> None:
    tokenizer = smol()
    template = ChatTemplate(smol_metadata()["tokenizer.chat_template"])
    inputs = InputProcessor(tokenizer, template, InputLimits(4096, tokenizer.vocab_size))
    text = "The quick \u010d fox. " * 20

    def cut() -> object:
        return tokenizer.encode_parts([text], True, 5).ids

    def chat() -> object:
        return inputs.prepare(inputs.render([{"role": "user", "content": text}]), None, "r").prompt_token_ids

    def words() -> object:
        return inputs.prepare("a", SamplingParams(bad_words=["foo", "antidisestablishment"]), "r").sampling.bad_words

    def long() -> object:
        return tokenizer.encode(text * 50)

    def back() -> object:
        return tokenizer.decode(tokenizer.encode(text))

    calls = (cut, chat, words, back, long, lambda: tokenizer.encode(text), cut)
    alone = [call() for call in calls]
    assert len(alone[0]) == 5  # type: ignore[arg-type]
    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(lambda number: calls[number % len(calls)](), range(len(calls) * 60)))
    assert found == alone * 60
