"""The step-time model learns what steps cost, and chunks keep the time between tokens at its target."""

import pytest

from octavo.errors import ConfigError
from octavo.scheduling.step_time import LEAST_CHUNK, Pace, StepLoad, StepTimeModel, pairs_of
from tests.fakes import request
from tests.scheduling.driver import Engine
from tests.scheduling.virtual import Device, Virtual

TARGET = 0.03


def learnt(device, steps=60):
    """A model that has seen chunks of many sizes beside decoding."""
    model = StepTimeModel(TARGET)
    for step in range(steps):
        tokens, rows, pairs = 8 + step * 37 % 200, 8 + step % 3, 3000 + step * 977 % 20_000
        exact = device.fixed + device.token * tokens + device.row * rows + device.pair * pairs
        model.observe(StepLoad(tokens, rows, pairs), exact)
    return model


def test_it_learns_the_cost_of_each_part():
    device = Device()
    model = learnt(device)
    assert model.token_seconds == pytest.approx(device.token, rel=0.1)
    load = StepLoad(120, 9, 40_000)
    assert model.seconds(load) == pytest.approx(0.005 + 0.012 + 0.0027 + 0.0004, rel=0.05)


def test_it_follows_a_device_that_changes():
    model = learnt(Device())
    slower = Device(token=0.0004)
    for step in range(400):
        tokens = 8 + step * 37 % 100
        model.observe(StepLoad(tokens, 9, 9000), 0.005 + slower.token * tokens + 0.0027)
    assert model.token_seconds == pytest.approx(slower.token, rel=0.15)


def test_an_outlier_moves_it_little():
    model = learnt(Device())
    before = model.seconds(StepLoad(100, 8, 5000))
    model.observe(StepLoad(100, 8, 5000), 5.0)
    assert model.seconds(StepLoad(100, 8, 5000)) < before * 1.5
    for nonsense in (float("nan"), float("inf"), 0.0, -1.0):
        model.observe(StepLoad(100, 8, 5000), nonsense)
    assert model.steps == 61


def test_the_same_step_for_ever_keeps_it_sane():
    model = StepTimeModel(TARGET)
    for _ in range(20_000):
        model.observe(StepLoad(8, 8, 4000), 0.009)
    assert model.seconds(StepLoad(8, 8, 4000)) == pytest.approx(0.009, rel=0.01)
    assert 0 < model.pace(StepLoad(8, 8, 4000)).within(0) < 10_000
    model.observe(StepLoad(108, 9, 9000), 0.019)
    assert 0 < model.seconds(StepLoad(108, 9, 9000)) < 0.1


@pytest.mark.parametrize("start", [0, 500, 7000])
def test_a_chunk_fills_the_time_that_is_left(start):
    model = learnt(Device(pair=1e-7))
    pace = Pace(model, 0.02)
    count = pace.within(start)
    cost = model.row_seconds + model.token_seconds * count + model.pair_seconds * pairs_of(start, count)
    one_more = model.token_seconds + model.pair_seconds * (start + count + 1)
    assert cost <= 0.02 < cost + one_more * 1.01
    pace.spend(start, count)
    assert pace.within(start) <= 1


def test_prompts_get_on_even_where_there_is_no_time():
    pace = Pace(learnt(Device()), -1.0)
    assert pace.within(100) == LEAST_CHUNK
    pace.spend(100, LEAST_CHUNK)
    assert pace.within(100) == 0


def long_prompts(device, target):
    """Eight streams decode; then six prompts of 4,000 tokens come. Steps that decode, after the model's first ones."""
    engine = Virtual(device, target_itl=target)
    streams = [(1.0, request(f"s{i}", [i, *range(99)], 600)) for i in range(8)]
    prompts = [(1.5 + i / 10, request(f"p{i}", [i + 100, *range(3999)], 2)) for i in range(6)]
    engine.run([*streams, *prompts])
    assert len(engine.ends) == 14
    decoding = [
        (plan, seconds)
        for plan, seconds in engine.steps
        if any(row.count == 1 for row in plan.rows) and any(row.count > 1 for row in plan.rows)
    ]
    return decoding[10:]


@pytest.mark.parametrize("noise", [0.0, 0.03])
@pytest.mark.parametrize("pair", [0.0, 1e-8, 1e-7])
def test_inter_token_latency_holds_its_target_under_long_prefills(noise, pair):
    seconds = sorted(seconds for _, seconds in long_prompts(Device(noise=noise, pair=pair), TARGET))
    assert len(seconds) > 50
    assert seconds[int(len(seconds) * 0.9)] <= TARGET
    assert seconds[-1] <= TARGET * (1.0 + 5 * noise + 0.05)
    assert seconds[len(seconds) // 2] >= TARGET * 0.8, "the time is used"
    assert max(seconds for _, seconds in long_prompts(Device(noise=noise, pair=pair), None)) > 5 * TARGET


def test_without_decoding_nothing_is_held_back():
    engine = Virtual(target_itl=0.001)
    engine.run([(1.0, request("p", range(4000), 1))])
    assert [plan.num_tokens for plan, _ in engine.steps] == [2048, 1952]


def test_a_target_that_cannot_be_held_starves_no_prompt():
    engine = Virtual(target_itl=0.0001)
    engine.run([(1.0, request("s", [1], 400)), (1.1, request("p", range(800), 1))])
    assert len(engine.ends["p"].token_ids) == 1
    assert len(engine.steps) <= 401


def test_a_target_needs_chunks():
    with pytest.raises(ConfigError, match="chunked"):
        Engine(enable_chunked_prefill=False, max_num_batched_tokens=64, target_itl=0.1)
