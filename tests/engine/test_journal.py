"""What an engine that was started again tells once more is held back, and what differs is an error."""

import random
from dataclasses import replace

import pytest

from octavo.engine.journal import Journal
from octavo.errors import EngineDeadError
from octavo.flow.request import GenerationRequest, Sampling, Stopping
from octavo.flow.result import FinishReason, SequenceOutput, TokenLogprobs


def logprobs(token_ids: tuple[int, ...]) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs((token_id,), (-1.0,), 1) for token_id in token_ids)


def request(name: str = "r", n: int = 1, ttft_deadline: float | None = None) -> GenerationRequest:
    return GenerationRequest(name, (1, 2), Sampling(), Stopping(100), n=n, ttft_deadline=ttft_deadline)


def again(name: str = "r", n: int = 1) -> GenerationRequest:
    """As the next engine gets it."""
    return replace(request(name, n), resumed=True)


def pieces(token_ids: tuple[int, ...], chance: random.Random) -> list[SequenceOutput]:
    """An answer cut at random, its prompt's scores with the first pieces."""
    outputs = [SequenceOutput("r", 0, (), prompt_logprobs=logprobs((7, 8))), SequenceOutput("r", 0, ())]
    outputs.append(SequenceOutput("r", 0, (), prompt_logprobs=logprobs((9,))))
    at = 0
    while at < len(token_ids):
        end = min(len(token_ids), at + chance.randint(1, 4))
        reason = FinishReason.LENGTH if end == len(token_ids) else None
        outputs.append(SequenceOutput("r", 0, token_ids[at:end], logprobs(token_ids[at:end]), finish_reason=reason))
        at = end
    return outputs


@pytest.mark.parametrize("seed", range(20))
def test_what_is_told_in_all_is_the_answer_wherever_engines_die(seed: int) -> None:
    chance = random.Random(seed)
    token_ids = tuple(chance.choices(range(1000), k=30))
    journal, told = Journal(), list[SequenceOutput]()
    journal.add(request())
    for life in range(3):
        outputs = pieces(token_ids, chance)
        for output in outputs if life == 2 else outputs[: chance.randint(0, len(outputs) - 1)]:
            news, wrong = journal.news([output])
            assert not wrong
            told += news
        if life < 2:
            journal.death()
            assert journal.unsent() == [(again(), ())]
            assert journal.unsent() == []
    assert tuple(token_id for output in told for token_id in output.token_ids) == token_ids
    assert tuple(entry for output in told for entry in output.logprobs) == logprobs(token_ids)
    assert tuple(entry for output in told for entry in output.prompt_logprobs) == logprobs((7, 8, 9))
    assert [output.finish_reason for output in told if output.finish_reason] == [FinishReason.LENGTH]


@pytest.mark.parametrize(
    "output",
    [
        SequenceOutput("r", 0, (1, 5)),
        SequenceOutput("r", 0, (1, 2), finish_reason=FinishReason.STOP),
    ],
)
def test_another_answer_is_an_error(output: SequenceOutput) -> None:
    journal = Journal()
    journal.add(request())
    journal.news([SequenceOutput("r", 0, (1, 2, 3))])
    journal.death()
    journal.unsent()
    news, wrong = journal.news([output])
    assert not news
    assert isinstance(wrong["r"], EngineDeadError)


def test_a_deadline_may_pass_before_all_has_come_again() -> None:
    journal = Journal()
    journal.add(request(ttft_deadline=1.0))
    journal.news([SequenceOutput("r", 0, (1, 2, 3))])
    journal.death()
    assert journal.unsent() == [(again(), ())]  # its first token came in time
    late = SequenceOutput("r", 0, (1,), finish_reason=FinishReason.TIMEOUT)
    assert journal.news([late]) == ([SequenceOutput("r", 0, (), finish_reason=FinishReason.TIMEOUT)], {})


def test_streams_that_are_over_are_not_told_again_and_deaths_are_counted_by_request() -> None:
    journal = Journal()
    journal.add(request("a", n=2))
    journal.news([SequenceOutput("a", 1, (4,))])
    journal.end("a", 1)
    assert journal.death() == []
    assert journal.unsent() == [(again("a", n=2), (1,))]
    journal.add(request("b"))
    repeated = [SequenceOutput("a", 1, (4, 5)), SequenceOutput("a", 0, (6,)), SequenceOutput("gone", 0, (1,))]
    assert journal.news(repeated) == ([SequenceOutput("a", 0, (6,))], {})
    assert journal.death() == ["a"]
    assert journal.death() == ["a"]  # an engine that did not start had nothing
    journal.drop("a")
    assert [one.id for one, _ in journal.unsent()] == ["b"]
