"""GPTQ, AWQ, SmoothQuant and float8 against what they promise, and the layouts against plain loops."""

import numpy as np
import pytest
import torch

from octavo.quantization import awq, layouts, smooth
from octavo.quantization.gptq import GptqOptions, gptq
from octavo.quantization.integers import SHARES, Grid, round_to_nearest

RANDOM = np.random.default_rng(5)
WEIGHT = (RANDOM.standard_normal((48, 128)) * 0.05).astype(np.float32)


def correlated(rows: int, columns: int, rank: int = 20) -> np.ndarray:
    """Inputs that mostly lie in few directions, as a model's do."""
    common = RANDOM.standard_normal((rows, rank)) @ RANDOM.standard_normal((rank, columns))
    return (common + 0.2 * RANDOM.standard_normal((rows, columns))).astype(np.float32)


def error(inputs: np.ndarray, weight: np.ndarray, rounded: np.ndarray) -> float:
    return float(np.square(inputs @ (rounded - weight).T).sum())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("group", "act_order"), [(32, False), (32, True), (0, True)])
def test_gptq_errs_less_than_rounding(bits: int, symmetric: bool, group: int, act_order: bool) -> None:
    inputs = correlated(600, 128)
    grid = Grid(bits, symmetric, group)
    coded = gptq(WEIGHT, inputs.T @ inputs, grid, GptqOptions(act_order))
    nearest = round_to_nearest(grid, WEIGHT, SHARES)
    assert error(inputs, WEIGHT, coded.values()) < 0.5 * error(inputs, WEIGHT, nearest.values())
    assert coded.codes.max() <= grid.top
    assert coded.group_of.tolist() == [column // grid.size(128) for column in range(128)]


def test_gptq_takes_inputs_that_never_come_and_too_few_texts() -> None:
    inputs = correlated(5, 128)  # the Hessian has rank 5
    inputs[:, 7] = 0
    coded = gptq(WEIGHT, inputs.T @ inputs, Grid(4, False, 32), GptqOptions())
    assert np.isfinite(coded.values()).all()
    assert not coded.values()[:, 7].any()  # a group's zero point stands for nothing
    assert error(inputs, WEIGHT, coded.values()) < error(
        inputs, WEIGHT, round_to_nearest(Grid(4, False, 32), WEIGHT).values()
    )


def test_awq_errs_less_than_rounding_where_channels_differ() -> None:
    inputs = correlated(400, 128)
    inputs[:, [3, 50, 90]] *= 40
    grid = Grid(4, False, 32)
    scales = awq.search_scales([WEIGHT], inputs[:200], np.abs(inputs).mean(axis=0), grid, lambda s: s)
    assert scales[50] > 2 * np.median(scales)
    scaled, divided = WEIGHT * scales, inputs / scales
    clipped = awq.round_clipped(grid, scaled, divided[:200]).values() / scales
    plain = awq.round_clipped(grid, scaled, None).values() / scales
    nearest = error(inputs, WEIGHT, round_to_nearest(grid, WEIGHT).values())
    assert error(inputs, WEIGHT, plain) < 0.7 * nearest
    assert error(inputs, WEIGHT, clipped) < error(inputs, WEIGHT, plain)


def test_awq_scales_nothing_where_that_helps_nobody() -> None:
    """With exponent 0 all scales are 1; of equal channels no other may win by much."""
    assert np.array_equal(awq.channel_scales(np.array([1, 5, 100], np.float32), 0.0), np.ones(3, np.float32))
    scales = awq.channel_scales(np.array([1, 5, 100], np.float32), 0.5)
    assert scales.max() * scales.min() == pytest.approx(1)
    assert scales[2] / scales[0] == pytest.approx(10)


def test_smoothing_levels_inputs_and_weights() -> None:
    peaks = np.array([100, 1, 1, 0], np.float32)
    weight = np.array([[1, 1, 4, 0], [-1, 0.5, 1, 0]], np.float32)
    factors = smooth.smoothing(peaks, [weight], 0.5, lambda values: values)
    assert factors[:3].tolist() == pytest.approx([10, 1, 0.5])
    assert (peaks / factors)[0] == pytest.approx(np.abs(weight * factors).max(axis=0)[0])
    assert np.isfinite(factors).all()


def test_smooth_int8_products_err_less_where_an_input_is_large() -> None:
    inputs = RANDOM.standard_normal((200, 128)).astype(np.float32)
    inputs[:, 11] *= 60
    factors = smooth.smoothing(np.abs(inputs).max(axis=0), [WEIGHT], 0.5, lambda values: values)

    def product(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Both rounded to 8 bits, inputs a row at a time."""
        scale = np.abs(x).max(axis=1, keepdims=True) / 127
        return np.rint(x / scale) * scale @ smooth.int8_rows(weight, lambda s: s).values().T

    exact = inputs @ WEIGHT.T
    smoothed = np.square(product(inputs / factors, WEIGHT * factors) - exact).sum()
    assert smoothed < 0.2 * np.square(product(inputs, WEIGHT) - exact).sum()


def test_float8_is_torch_s() -> None:
    values = np.concatenate(
        [
            RANDOM.standard_normal(4000) * 100,
            RANDOM.standard_normal(4000) * 2.0**-8,
            [0.0, -0.0, 448, -448, 1e9, -1e9, 2.0**-9, 2.0**-10, 1.5 * 2.0**-9, 0.9375, 0.96875],
        ]
    ).astype(np.float32)
    wanted = torch.from_numpy(np.clip(values, -448, 448)).to(torch.float8_e4m3fn)
    codes = smooth.e4m3_codes(values)
    assert np.array_equal(codes, wanted.view(torch.uint8).numpy())
    assert np.array_equal(smooth.e4m3_values(codes), wanted.float().numpy())
    assert np.isnan(smooth.e4m3_values(np.array([127, 255], np.uint8))).all()


def test_a_row_of_zeros_keeps_a_scale() -> None:
    weight = WEIGHT.copy()
    weight[3] = 0
    for rows in (smooth.int8_rows(weight, lambda s: s), smooth.e4m3_rows(weight, lambda s: s)):
        assert not rows.values()[3].any()
        assert np.abs(rows.values() - weight).max() < 0.02
    assert not round_to_nearest(Grid(4, True, 32), weight).values()[3].any()


def test_awq_words_by_a_plain_loop() -> None:
    coded = round_to_nearest(Grid(4, False, 32), WEIGHT)
    tensors = layouts.awq_tensors(coded)
    assert tensors["qweight"].shape == (128, 48 // 8)
    assert tensors["qzeros"].shape == (128 // 32, 48 // 8)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    for row, word in ((0, 0), (17, 3), (127, 5)):
        packed = int(tensors["qweight"][row, word]) & 0xFFFFFFFF
        for place, column in enumerate(order):
            assert packed >> (4 * place) & 15 == coded.codes[8 * word + column, row]
    zero = int(tensors["qzeros"][2, 1]) & 0xFFFFFFFF
    assert [zero >> (4 * place) & 15 for place in range(8)] == [int(coded.zeros[8 + c, 2]) for c in order]
    back = layouts.read_awq(tensors, 32)
    assert np.array_equal(back.values(), coded.values())


@pytest.mark.parametrize("bits", [4, 8])
def test_gptq_words_by_a_plain_loop(bits: int) -> None:
    inputs = correlated(300, 128)
    grid = Grid(bits, False, 32)
    coded = gptq(WEIGHT, inputs.T @ inputs, grid, GptqOptions(act_order=True))
    tensors, count, mask = layouts.gptq_tensors(coded, bits), 32 // bits, (1 << bits) - 1
    assert tensors["qweight"].shape == (128 // count, 48)
    assert tensors["g_idx"].tolist() == coded.group_of.tolist()
    for row, column in ((0, 0), (9, 31), (127, 47)):
        word = int(tensors["qweight"][row // count, column]) & 0xFFFFFFFF
        assert word >> (bits * (row % count)) & mask == coded.codes[column, row]
        zero = int(tensors["qzeros"][1, column // count]) & 0xFFFFFFFF
        assert ((zero >> (bits * (column % count)) & mask) + 1) & mask == coded.zeros[column, 1]
    back = layouts.read_gptq(tensors, bits)
    assert np.array_equal(back.values(), coded.values())
    whole = layouts.gptq_tensors(coded, bits, less=0)
    assert int(whole["qzeros"][1, 0]) & mask == coded.zeros[0, 1]
    assert np.array_equal(layouts.read_gptq(whole, bits, less=0).values(), coded.values())
