"""The demo model with a cache too small for its prompts: the same tokens with every tier, whatever becomes of files."""

import random
import shutil

import pytest

from octavo import LLM, SamplingParams
from octavo.cache.tier_cost import TransferCost
from octavo.errors import EngineAsleepError, InvalidRequestError, UnsupportedError
from octavo.execution.tiers import disk
from octavo.execution.tiers.envelope import HEADER_BYTES
from tests.model.files import TINY, tiny_tensors, write_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
STORY = "The old lighthouse keeper climbed the stairs every evening, lit the lamp and wrote the weather into his book. "
PROMPTS = [f"{number}. {STORY * 4}Then" for number in ("One", "Two", "Three")]
LIMITS = {"max_model_len": 160, "num_gpu_blocks_override": 13, "max_num_seqs": 2, "max_num_batched_tokens": 64}


@pytest.fixture(autouse=True)
def always_worth_it(monkeypatch):
    """A page that was slow to come, on a busy machine, does not make a tier one that is not asked. What it costs, and
    what follows, is in test_tier_policy.py."""
    monkeypatch.setattr(TransferCost, "expects", lambda _self, _pages, _recompute: True)


def rounds(llm, turns=2):
    """Every prompt by itself, so that each pushes out what the last one left: tokens, and how many were cached."""
    outputs = [llm.generate(prompt, GREEDY, use_tqdm=False)[0] for _ in range(turns) for prompt in PROMPTS]
    return [output.outputs[0].token_ids for output in outputs], [output.num_cached_tokens for output in outputs]


@pytest.fixture(scope="module")
def wanted():
    with LLM(**LIMITS) as llm:
        tokens, cached = rounds(llm)
    assert max(cached) < 60  # what one leaves is mostly gone when its turn comes again
    return tokens


def metrics(llm, name):
    """Readings of a metric by the values of its own labels."""
    found = [one for one in llm.get_metrics() if one.name == f"octavo_cache_tier_{name}"]
    return {tuple(v for k, v in one.labels.items() if k not in ("model_name", "engine")): one.value for one in found}


@pytest.mark.parametrize(("host", "space"), [("64MiB", None), (None, "64MiB"), ("8MiB", "64MiB")])
def test_the_same_tokens_with_every_tier(wanted, tmp_path, host, space):
    path = str(tmp_path / "kv") if space else None
    with LLM(**LIMITS, kv_host=host, kv_disk=space, kv_disk_path=path) as llm:
        tokens, cached = rounds(llm)
        assert tokens == wanted
        assert min(cached[3:]) >= 80
        assert sum(metrics(llm, "hits").values()) >= 5
        assert metrics(llm, "written_bytes")[("host",)] > 0
        if space:
            assert metrics(llm, "blocks")[("disk",)] > 0


def test_the_prefix_cache_survives_a_restart_and_damage(wanted, tmp_path):
    options = LIMITS | {"num_gpu_blocks_override": 60, "kv_disk": "64MiB", "kv_disk_path": str(tmp_path / "kv")}
    with LLM(**options) as llm:
        assert rounds(llm)[0] == wanted
    files = sorted(tmp_path.rglob("*.kv"))
    assert len(files) >= 15
    with LLM(**options) as llm:
        tokens, cached = rounds(llm, 1)
        assert tokens == wanted[:3]
        assert min(cached) >= 80
    rng = random.Random(1)
    for path in files:
        content = bytearray(path.read_bytes())
        content[rng.randrange(HEADER_BYTES, len(content))] ^= 0x10
        path.write_bytes(content)
    with LLM(**options) as llm:
        tokens, cached = rounds(llm, 1)
        assert tokens == wanted[:3]
        assert max(cached) < 20
        assert metrics(llm, "misses")[("disk", "corrupt")] >= 3
        assert metrics(llm, "hits").get(("disk",), 0) == 0
    with LLM(**options) as llm:  # what was damaged was written anew
        assert min(rounds(llm, 1)[1]) >= 80
        assert llm.reset_prefix_cache()
    with LLM(**options) as llm:  # and what was reset is gone
        assert max(rounds(llm, 1)[1]) < 20


def test_blocks_of_products_that_round_otherwise_are_not_taken(tmp_path):
    options = LIMITS | {"num_gpu_blocks_override": 60, "kv_disk": "64MiB", "kv_disk_path": str(tmp_path / "kv")}
    with LLM(**options, linear_compute="int16") as llm:
        rounds(llm, 1)
    for compute, least, most in (("exact", 0, 19), ("int16", 80, 160)):
        with LLM(**options, linear_compute=compute) as llm:
            assert all(least <= cached <= most for cached in rounds(llm, 1)[1])


def test_blocks_of_matrices_in_another_type_are_not_taken(tmp_path):
    """With rows of 100 inputs, which no blocks fit, `mlp.down_proj` is in the type of `dtype` beside int8 ones."""
    config = TINY | {"intermediate_size": 100}
    model = write_model(tmp_path / "model", tiny_tensors(config), config)
    options = {"skip_tokenizer_init": True, "quantization": "int8", "max_num_seqs": 2, "kv_disk": "64MiB"}
    for dtype, cached in (("float16", 0), ("float32", 0), ("float16", 64), ("auto", 64)):
        with LLM(model=str(model), dtype=dtype, kv_disk_path=str(tmp_path / "kv"), **options) as llm:
            (output,) = llm.generate({"prompt_token_ids": list(range(3, 43)) * 2}, GREEDY, use_tqdm=False)
            assert output.num_cached_tokens == cached


def test_a_vanished_directory_and_a_full_disk_stop_nothing(wanted, tmp_path, monkeypatch):
    path = tmp_path / "kv"
    options = LIMITS | {"kv_disk": "64MiB", "kv_disk_path": str(path)}
    with LLM(**options) as llm:
        rounds(llm, 1)
    with LLM(**options) as llm:
        shutil.rmtree(path)
        tokens, cached = rounds(llm, 1)
        assert tokens == wanted[:3]
        assert cached[0] == 0
        assert metrics(llm, "misses")[("disk", "missing")] >= 5

        def full(_descriptor, _blob):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(disk, "_write_all", full)
        for number in range(4):  # these push the others out, and find no room on the disk
            llm.generate(f"{number} {PROMPTS[0]}", GREEDY, use_tqdm=False)
        assert rounds(llm, 1)[0] == wanted[:3]
        assert metrics(llm, "refusals")[("disk", "full")] >= 3
        assert metrics(llm, "active")[("disk",)] == 0
    assert not list(path.rglob("*.partial"))


def test_two_engines_do_not_share_a_directory(wanted, tmp_path):
    options = LIMITS | {"kv_disk": "64MiB", "kv_disk_path": str(tmp_path)}
    with LLM(**options) as first, LLM(**options) as second:
        assert rounds(second, 1)[0] == wanted[:3]
        assert not metrics(second, "blocks")
        assert rounds(first, 1)[0] == wanted[:3]
        assert metrics(first, "blocks")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_disk_path": "x"}, "needs kv_disk"),
        ({"kv_host": "1KiB"}, "does not hold one block"),
        ({"kv_disk": "1KiB"}, "does not hold one block"),
        ({"kv_host": "9999GiB"}, "that are free"),
        ({"kv_host": "much"}, "no size"),
        ({"kv_host": "1GiB", "enable_prefix_caching": False}, "enable_prefix_caching"),
        ({"kv_host": "1GiB", "backend": "torch"}, "torch backend"),
        ({"kv_disk": "1GiB", "kv_disk_path": "/proc/no"}, "kv_disk_path"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises((ValueError, UnsupportedError), match=message):
        LLM(**(LIMITS | options))


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize(("weight_cache", "space"), [(True, None), (False, "64MiB")])
def test_sleep_releases_memory_and_changes_no_answer(wanted, tmp_path, weight_cache, space):
    cache = {"weight_cache": weight_cache, "weight_cache_dir": str(tmp_path / "weights")}
    path = str(tmp_path / "kv") if space else None
    options = LIMITS | {"num_gpu_blocks_override": 60} | cache
    with LLM(**options, kv_disk=space, kv_disk_path=path, enable_sleep_mode=True) as llm:
        assert rounds(llm, 1)[0] == wanted[:3]
        for level, least in ((1, 4 << 20), (2, 80 << 20)):
            before = resident()
            llm.sleep(level)
            assert before - resident() > least
            assert llm.is_sleeping()
            with pytest.raises(EngineAsleepError, match=f"level {level}"):
                llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)
            if level == 2:
                llm.wake_up(["weights"])
                assert llm.is_sleeping()
            llm.wake_up()
            assert not llm.is_sleeping()
            tokens, cached = rounds(llm, 1)
            assert tokens == wanted[:3]
            assert (min(cached) >= 80) == bool(space)


def test_sleep_refuses_what_makes_no_sense():
    with LLM(**LIMITS, enable_sleep_mode=True) as llm:
        for call, argument in ((llm.sleep, 3), (llm.sleep, 0), (llm.wake_up, ["brain"])):
            with pytest.raises(InvalidRequestError):
                call(argument)
        llm.wake_up()
        llm.sleep(1)
        llm.sleep(1)
        llm.wake_up(["kv_cache"])
        assert not llm.is_sleeping()
    with LLM(**LIMITS) as llm, pytest.raises(UnsupportedError, match="enable-sleep-mode"):
        llm.sleep()
