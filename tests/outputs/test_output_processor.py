"""OutputProcessor: streams joined equal the whole, each ends once, and a stop text ends it in mid-token."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InternalError
from octavo.flow.request import GenerationRequest, Sampling, Stopping
from octavo.flow.result import FinishReason, SequenceOutput, SequenceTimes, TokenLogprobs
from octavo.outputs.processor import OutputProcessor
from tests.text.vocabularies import gemma, smol


def request(id="r", n=1, tokenizer=smol, logprobs=None, prompt_logprobs=None, min_tokens=0, stop_ids=(), **options):
    stopping = Stopping(100, min_tokens, frozenset(stop_ids), frozenset(tokenizer().eos_token_ids))
    sampling = Sampling(logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    return GenerationRequest(id, (1, 2), sampling, stopping, n, **options)


def outputs_of(ids, sizes=None, reason=FinishReason.LENGTH, index=0, id="r", **last):
    """The script's tokens in steps of the given sizes; the last output ends the stream."""
    cuts, at = [], 0
    for size in sizes or [1] * len(ids):
        cuts.append(ids[at : at + size])
        at += size
    cuts.append(ids[at:])
    cuts = [cut for cut in cuts if cut] or [[]]
    made = [SequenceOutput(id, index, tuple(cut)) for cut in cuts[:-1]]
    return [*made, SequenceOutput(id, index, tuple(cuts[-1]), finish_reason=reason, **last)]


def play(outputs, submitted, tokenizer=smol):
    """All deltas of one request's outputs, given one by one, and what is to be cancelled."""
    processor = OutputProcessor(tokenizer())
    processor.add(submitted)
    deltas = [delta for output in outputs for delta in processor.push([output])]
    assert len(processor) == 0
    return deltas, processor.take_cancels()


def joined(deltas, index=0):
    return "".join(delta.text for delta in deltas if delta.index == index)


EMOJI = [143, 233, 81, 10813, 242, 218, 40303, 218, 7906, 240]


@pytest.mark.parametrize("size", [1, 3, 99])
def test_characters_over_tokens(size):
    sizes = [size] * (11 // size)
    deltas, cancels = play(outputs_of([*EMOJI, 2], sizes, FinishReason.STOP), request())
    assert joined(deltas) == "\u010fa\U0001f600 \U0001f600\u4e16"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason, cancels) == (FinishReason.STOP, None, [])
    assert list(itertools.chain(*(delta.token_ids for delta in deltas))) == [*EMOJI, 2]


@pytest.mark.parametrize(
    ("ids", "reason", "text"),
    [
        ([19556, 10813, 242], FinishReason.LENGTH, "Hello\ufffd"),
        ([19556, 10813, 2], FinishReason.STOP, "Hello\ufffd"),
        ([187, 19556, 2], FinishReason.STOP, "\ufffdHello"),
        ([19556], FinishReason.ABORT, "Hello"),
        ([], FinishReason.ABORT, ""),
    ],
)
def test_ends_inside_a_character(ids, reason, text):
    for sizes in ([1] * len(ids), [len(ids)] if ids else None):
        deltas, _ = play(outputs_of(ids, sizes, reason), request())
        assert (joined(deltas), deltas[-1].finish_reason) == (text, reason)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_every_cut_gives_the_same_answer(data):
    tokenizer = data.draw(st.sampled_from([smol, gemma]))
    words = [i for text in ("ab", "b,", ",c", "\u4e16\u754c", "\U0001f600") for i in tokenizer().encode(text, False)]
    ids = data.draw(st.lists(st.sampled_from(words) | st.integers(0, 60_000), min_size=1, max_size=25))
    stop = tuple(data.draw(st.lists(st.text("ab,c\u4e16\ufffd", min_size=1, max_size=4), max_size=3)))
    options = {
        "stop": stop,
        "include_stop_str_in_output": data.draw(st.booleans()),
        "skip_special_tokens": data.draw(st.booleans()),
        "min_tokens": data.draw(st.integers(0, 5)),
        "tokenizer": tokenizer,
    }
    sizes = data.draw(st.lists(st.integers(1, 5), max_size=25))
    answers = []
    for cut in ([len(ids)], [1] * len(ids), sizes):
        deltas, cancels = play(outputs_of(ids, cut), request(**options), tokenizer)
        ends = [delta for delta in deltas if delta.finish_reason is not None]
        assert ends == [deltas[-1]]
        taken = tuple(itertools.chain(*(delta.token_ids for delta in deltas)))
        answers.append((joined(deltas), taken, ends[0].finish_reason, ends[0].stop_reason))
        assert bool(cancels) <= (ends[0].stop_reason is not None)
    assert answers[0] == answers[1] == answers[2]
    text, taken, reason, _ = answers[0]
    if reason is FinishReason.LENGTH:
        assert taken == tuple(ids)
        assert text == tokenizer().decode(ids, skip_special_tokens=options["skip_special_tokens"])


def test_a_stop_text_cancels_the_rest_and_is_never_shown():
    ids = smol().encode("go on\nObservation: 42 and more")
    submitted = request(stop=("\nObservation:",))
    processor = OutputProcessor(smol())
    processor.add(submitted)
    deltas = [delta for output in outputs_of(ids) for delta in processor.push([output])]
    assert joined(deltas) == "go on"
    assert all("\n" not in delta.text for delta in deltas)
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, "\nObservation:")
    assert processor.take_cancels() == ["r"]
    assert processor.take_cancels() == []
    assert processor.push(outputs_of([19556], reason=FinishReason.ABORT)) == []


def test_text_and_tokens_after_the_stop_in_the_same_step_are_cut():
    ids = smol().encode("ab,b,cdef Hello")
    entries = tuple(TokenLogprobs((i,), (-1.0,), 1) for i in ids)
    output = SequenceOutput("r", 0, tuple(ids), entries)
    deltas, cancels = play([output], request(stop=("b,c",), logprobs=0))
    assert joined(deltas) == "ab,"
    assert len(deltas[0].token_ids) == len(deltas[0].logprobs) < len(ids)
    assert smol().decode(deltas[0].token_ids).startswith("ab,b,c")
    assert cancels == ["r"]


def test_a_stop_on_the_last_token_needs_no_cancel():
    deltas, cancels = play(outputs_of(smol().encode("ab!")), request(stop=("!",)))
    assert (joined(deltas), deltas[-1].finish_reason, deltas[-1].stop_reason) == ("ab", FinishReason.STOP, "!")
    assert cancels == []


def test_a_stop_text_that_never_comes_loses_nothing():
    deltas, _ = play(outputs_of(smol().encode("one two thre")), request(stop=("three", "zz")))
    assert (joined(deltas), deltas[-1].finish_reason) == ("one two thre", FinishReason.LENGTH)


@pytest.mark.parametrize(("min_tokens", "text"), [(0, ""), (1, "a"), (2, "aa"), (6, "aaaaaa")])
def test_stop_texts_count_only_after_min_tokens(min_tokens, text):
    deltas, _ = play(outputs_of([81] * 6), request(stop=("a",), min_tokens=min_tokens))
    assert joined(deltas) == text


def test_stop_token_ids_are_reported_and_not_shown():
    (comma,) = smol().encode(",")
    script = outputs_of([81, 82, comma], reason=FinishReason.STOP, stop_token_id=comma)
    deltas, _ = play(script, request(stop_ids=[comma]))
    assert (joined(deltas), deltas[-1].stop_reason, deltas[-1].token_ids) == ("ab", comma, (comma,))
    shown, _ = play(script, request(stop_ids=[comma], include_stop_str_in_output=True))
    assert joined(shown) == "ab,"


def test_a_special_token_s_name_as_stop_text_is_reported_as_text():
    script = outputs_of([81, 1], reason=FinishReason.STOP, stop_token_id=1)
    deltas, _ = play(script, request(stop=("<|im_start|>",), stop_ids=[1]))
    assert (joined(deltas), deltas[-1].stop_reason) == ("a", "<|im_start|>")
    included, _ = play(script, request(stop=("<|im_start|>",), stop_ids=[1], include_stop_str_in_output=True))
    assert joined(included) == "a<|im_start|>"


def test_streams_of_one_request_are_apart_and_end_once_each():
    submitted = request(n=3, stop=("!",))
    scripts = [
        outputs_of(smol().encode("first! never seen"), index=0),
        outputs_of([*EMOJI], index=1),
        outputs_of(smol().encode("third"), index=2, reason=FinishReason.STOP),
    ]
    mixed = [output for step in itertools.zip_longest(*scripts) for output in step if output is not None]
    processor = OutputProcessor(smol())
    processor.add(submitted)
    deltas = processor.push(mixed)
    assert [joined(deltas, index) for index in range(3)] == ["first", "\u010fa\U0001f600 \U0001f600\u4e16", "third"]
    ends = [(delta.index, delta.finish_reason) for delta in deltas if delta.finish_reason is not None]
    assert sorted(ends) == [(0, FinishReason.STOP), (1, FinishReason.LENGTH), (2, FinishReason.STOP)]
    assert len(processor) == 0


def test_a_request_of_several_streams_is_cancelled_when_the_last_one_ends():
    processor = OutputProcessor(smol())
    processor.add(request(n=2, stop=("b",)))
    processor.push([SequenceOutput("r", 0, (81,)), SequenceOutput("r", 0, (82,))])
    assert processor.take_cancels() == []
    processor.push([SequenceOutput("r", 1, (82,))])
    assert processor.take_cancels() == ["r"]


def test_logprobs_are_limited_to_what_was_asked():
    entry = TokenLogprobs((9, 81, 82, 83), (-3.0, -0.1, -0.2, -0.3), 7)
    output = SequenceOutput("r", 0, (81,), (entry,), (entry, entry), FinishReason.LENGTH)
    (delta,), _ = play([output], request(logprobs=2, prompt_logprobs=0))
    assert delta.logprobs == (TokenLogprobs((9, 81, 82), (-3.0, -0.1, -0.2), 7),)
    assert delta.prompt_logprobs == (TokenLogprobs((9,), (-3.0,), 7),) * 2
    (delta,), _ = play([output], request(logprobs=-1))
    assert (delta.logprobs, delta.prompt_logprobs) == ((entry,), ())
    (delta,), _ = play([output], request(logprobs=0))
    assert delta.logprobs[0].token_ids == (9,)


def test_without_detokenizing_only_ids_come():
    for tokenizer, submitted in ((None, request()), (smol(), request(detokenize=False))):
        processor = OutputProcessor(tokenizer)
        processor.add(submitted)
        deltas = processor.push(outputs_of([81, 82]))
        assert [(delta.text, delta.token_ids) for delta in deltas] == [("", (81,)), ("", (82,))]


def test_errors_times_and_cached_tokens_are_carried():
    times = SequenceTimes(1.0, 2.0, 3.0, 4.0, 1)
    output = SequenceOutput(
        "r", 0, (), finish_reason=FinishReason.ERROR, num_cached_tokens=5, times=times, error="logits are not finite"
    )
    (delta,), _ = play([output], request())
    assert (delta.finish_reason, delta.error) == (FinishReason.ERROR, "logits are not finite")
    assert (delta.times, delta.num_cached_tokens) == (times, 5)


def test_unknown_dropped_and_repeated_requests():
    processor = OutputProcessor(smol())
    assert processor.push(outputs_of([81])) == []
    processor.add(request())
    with pytest.raises(InternalError, match="in use"):
        processor.add(request())
    processor.drop("r")
    processor.drop("r")
    assert processor.push(outputs_of([81])) == []
    assert len(processor) == 0
