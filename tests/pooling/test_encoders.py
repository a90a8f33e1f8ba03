"""Encoders of every family and head give transformers' numbers, whatever shares a step with them."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo import LLM, AsyncLLM, PoolingParams
from octavo.errors import (
    CheckpointError,
    ConfigError,
    EngineDeadError,
    InvalidRequestError,
    ModelNotFoundError,
    UnsupportedError,
)
from octavo.spec.decoder import DistanceSpec
from tests.pooling.checkpoints import ENCODERS, TEXTS, VOCABULARY, make_decoder, make_encoder, save, tokenizer

QUIET: dict[str, Any] = {"use_tqdm": False}


def open_llm(path: Path, **options: Any) -> LLM:
    return LLM(str(path), weight_cache=False, enable_metrics=False, **options)


def ids_of(text: str, second: str | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    encoded = tokenizer().encode(text, second) if second is not None else tokenizer().encode(text)
    return torch.tensor([encoded.ids]), torch.tensor([encoded.type_ids])


def states_of(model: Any, text: str, second: str | None = None) -> np.ndarray:
    """The last hidden states of one text alone, [tokens, hidden]."""
    ids, types = ids_of(text, second)
    extra = {"token_type_ids": types} if getattr(model.config, "type_vocab_size", 1) > 1 else {}
    with torch.inference_mode():
        return model(input_ids=ids, **extra).last_hidden_state[0].numpy()


def logits_of(model: Any, text: str, second: str | None = None) -> np.ndarray:
    ids, types = ids_of(text, second)
    extra = {"token_type_ids": types} if getattr(model.config, "type_vocab_size", 1) > 1 else {}
    with torch.inference_mode():
        return model(input_ids=ids, **extra).logits[0].numpy()


def near(found: np.ndarray, expected: np.ndarray, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(found, expected, atol=tolerance * max(1.0, float(np.abs(expected).max())))


RAW = PoolingParams(use_activation=False)


@pytest.mark.parametrize("name", ENCODERS)
def test_hidden_states_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = make_encoder(name)
    save(model, tmp_path)
    with open_llm(tmp_path) as llm:
        found = llm.encode(list(TEXTS), RAW, pooling_task="token_embed", **QUIET)
        for text, output in zip(TEXTS, found, strict=True):
            near(output.outputs.data, states_of(model, text))
            assert output.prompt_token_ids == tokenizer().encode(text).ids


def test_the_reference_backend_computes_the_same(tmp_path: Path) -> None:
    model = make_encoder("modernbert")
    save(model, tmp_path)
    with open_llm(tmp_path, backend="torch", max_num_seqs=2) as llm:
        found = llm.encode(list(TEXTS), RAW, pooling_task="token_embed", **QUIET)
        for text, output in zip(TEXTS, found, strict=True):
            near(output.outputs.data, states_of(model, text))


@pytest.mark.parametrize(("name", "labels"), [(name, labels) for name in ENCODERS for labels in (3,)] + [("bert", 1)])
def test_classes_are_those_of_transformers(name: str, labels: int, tmp_path: Path) -> None:
    model = make_encoder(name, "ForSequenceClassification", num_labels=labels)
    save(model, tmp_path)
    with open_llm(tmp_path) as llm:
        plain = llm.classify(list(TEXTS), pooling_params=RAW, **QUIET)
        squashed = llm.classify(list(TEXTS), **QUIET)
        for text, raw, output in zip(TEXTS, plain, squashed, strict=True):
            logits = logits_of(model, text)
            near(np.array(raw.outputs.probs), logits)
            tensor = torch.from_numpy(logits)
            expected = torch.sigmoid(tensor) if labels == 1 else torch.softmax(tensor, 0)
            near(np.array(output.outputs.probs), expected.numpy())
            assert output.outputs.num_classes == labels


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "modernbert", "mpnet"])
def test_every_token_gets_classes(name: str, tmp_path: Path) -> None:
    model = make_encoder(name, "ForTokenClassification", num_labels=5)
    save(model, tmp_path)
    with open_llm(tmp_path) as llm:
        found = llm.encode(list(TEXTS), RAW, **QUIET)
        for text, output in zip(TEXTS, found, strict=True):
            near(output.outputs.data, logits_of(model, text))


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
def test_a_cross_encoder_reads_pairs(name: str, tmp_path: Path) -> None:
    model = make_encoder(name, "ForSequenceClassification", num_labels=1)
    save(model, tmp_path, pair_types=name == "bert")
    query, documents = TEXTS[0], list(TEXTS[1:])
    with open_llm(tmp_path) as llm:
        found = llm.score(query, documents, pooling_params=RAW, **QUIET)
        near(
            np.array([output.outputs.score for output in found]),
            np.array([logits_of(model, query, document)[0] for document in documents]),
        )
        squashed = llm.score(query, documents, **QUIET)
        near(
            np.array([output.outputs.score for output in squashed]),
            1 / (1 + np.exp(-np.array([output.outputs.score for output in found]))),
        )
        each = llm.score([query, documents[0]], documents[:2], pooling_params=RAW, **QUIET)
        near(np.array(each[1].outputs.score), logits_of(model, documents[0], documents[1])[0])


def test_what_sentence_transformers_noted_is_done_to_scores(tmp_path: Path) -> None:
    model = make_encoder("bert", "ForSequenceClassification", num_labels=1)
    save(model, tmp_path, sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})
    with open_llm(tmp_path) as llm:
        score = llm.score(TEXTS[0], TEXTS[1], **QUIET)[0].outputs.score
        near(np.array(score), logits_of(model, TEXTS[0], TEXTS[1])[0])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bert")
    return save(make_encoder("bert"), directory)


def test_a_text_has_the_same_bits_in_every_batch(small: Path) -> None:
    with open_llm(small) as together, open_llm(small, max_num_seqs=1, threads=1) as alone:
        many = [TEXTS[number % len(TEXTS)] for number in range(70)]
        found = together.embed(many, **QUIET)
        single = {text: alone.embed(text, **QUIET)[0].outputs.embedding for text in TEXTS}
        for text, output in zip(many, found, strict=True):
            assert output.outputs.embedding == single[text]


def test_texts_come_back_in_their_order_over_many_steps(small: Path) -> None:
    texts = [" ".join(["panda", "bear", "tree"][: 1 + number % 3] * (1 + number % 7)) for number in range(300)]
    with open_llm(small, max_num_batched_tokens=128, max_num_seqs=16) as llm:
        found = llm.embed(texts, **QUIET)
        assert [output.prompt_token_ids for output in found] == [tokenizer().encode(text).ids for text in texts]
        assert len({tuple(output.outputs.embedding) for output in found}) == len(set(texts))
        stats = llm.llm_engine.engine.client.stats()
        assert (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)
        assert stats.generation_tokens == 0
        assert stats.prompt_tokens == sum(len(output.prompt_token_ids) for output in found)


@pytest.mark.parametrize(
    ("options", "least"),
    [({"dtype": "bfloat16"}, 0.999), ({"dtype": "float16"}, 0.99999), ({"quantization": "int8"}, 0.995)],
)
def test_rounded_weights_stay_near(small: Path, options: dict[str, Any], least: float) -> None:
    model = make_encoder("bert")
    with open_llm(small, **options) as llm:
        for text, output in zip(TEXTS, llm.embed(list(TEXTS), **QUIET), strict=True):
            expected = states_of(model, text)[0]
            found = np.array(output.outputs.embedding)
            assert found @ expected / np.linalg.norm(expected) > least


def test_an_encoder_needs_no_cache_worth_the_name(small: Path) -> None:
    with open_llm(small) as llm:
        engine = llm.llm_engine.engine
        info = engine.info
        assert info.num_blocks <= info.max_num_batched_tokens // info.block_size + info.max_num_seqs
        (group,) = engine.groups
        assert len(group.layers) == 1  # all layers use the same place
        assert not engine.resolved.cache.prefix_caching.value


def test_an_encoder_does_not_generate(small: Path) -> None:
    with open_llm(small) as llm, pytest.raises(UnsupportedError, match="generates no text"):
        llm.generate("hello", use_tqdm=False)
    with pytest.raises(UnsupportedError, match="does not generate"):
        open_llm(small, runner="generate")
    with pytest.raises(ConfigError, match="kv_host"):
        open_llm(small, kv_host="1MiB")
    with pytest.raises(ConfigError, match="max_num_batched_tokens 64"):
        open_llm(small, max_num_batched_tokens=64, max_num_seqs=2)


def test_a_generator_does_not_pool(tmp_path: Path) -> None:
    save(make_decoder("Qwen3Config", "Qwen3ForCausalLM", head_dim=16), tmp_path)
    options = {"max_model_len": 64, "kv_cache_memory_bytes": "4MiB"}
    with open_llm(tmp_path, **options) as llm, pytest.raises(UnsupportedError, match="--runner pooling"):
        llm.embed("hello", **QUIET)


def test_gammas_and_betas_of_the_first_files_are_read(tmp_path: Path, small: Path) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(small / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tensors.items()
    }
    assert set(old) != set(tensors)
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((small / name).read_bytes())
    save_file({f"bert.{name}": value for name, value in old.items()}, tmp_path / "model.safetensors")
    with open_llm(small) as new, open_llm(tmp_path) as first:
        assert first.embed(TEXTS[0], **QUIET)[0].outputs == new.embed(TEXTS[0], **QUIET)[0].outputs


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"is_decoder": True}, UnsupportedError, "is_decoder"),
        ({"position_embedding_type": "relative_key"}, UnsupportedError, "position_embedding_type"),
        ({"num_attention_heads": 5}, CheckpointError, "no multiple"),
        ({"max_position_embeddings": 127}, CheckpointError, "position_embeddings"),
        ({"hidden_act": "mish"}, UnsupportedError, "mish"),
    ],
)
def test_what_would_come_out_wrong_is_refused(
    small: Path, tmp_path: Path, change: dict[str, Any], error: type[Exception], match: str
) -> None:
    import json

    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((small / name).read_bytes())
    config = json.loads((small / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(error, match=match):
        open_llm(tmp_path)


def test_a_stepped_engine_pools_and_keeps_nothing_of_what_it_could_not_take(small: Path) -> None:
    with open_llm(small) as llm:
        engine = llm.llm_engine
        for number, text in enumerate(TEXTS):
            assert engine.add_request(f"r{number}", text, PoolingParams(task="embed")) == f"r{number}"
        found: dict[str, Any] = {}
        while engine.has_unfinished_requests():
            found |= {output.request_id: output.outputs for output in engine.step()}
        whole = llm.embed(list(TEXTS), **QUIET)
        assert [found[f"r{n}"].data.tolist() for n in range(len(TEXTS))] == [one.outputs.embedding for one in whole]
    with pytest.raises(EngineDeadError, match="closed"):
        engine.add_request("late", TEXTS[0], PoolingParams(task="embed"))
    assert not engine.has_unfinished_requests()


def test_an_event_loop_pools_many_at_once(small: Path) -> None:
    async def main() -> tuple[list[Any], int]:
        engine = AsyncLLM(str(small), weight_cache=False)

        async def one(number: int) -> Any:
            async for output in engine.encode(TEXTS[number % len(TEXTS)], request_id=f"r{number}"):
                return output
            raise AssertionError("no output")

        try:
            found = await asyncio.gather(*(one(number) for number in range(20)))
            with pytest.raises(UnsupportedError, match="generates no text"):
                async for _ in engine.generate("hello"):
                    pass
            with pytest.raises(InvalidRequestError, match="embed and token_embed"):
                async for _ in engine.encode("hello", PoolingParams(task="classify")):
                    pass
            return found, len(found[0].outputs.data)
        finally:
            await engine.close()

    found, width = asyncio.run(main())
    assert width == 48
    assert [output.request_id for output in found] == [f"r{number}" for number in range(20)]
    with open_llm(small) as llm:
        for number, output in enumerate(found):
            assert output.outputs.data.tolist() == llm.embed(TEXTS[number % len(TEXTS)], **QUIET)[0].outputs.embedding


@pytest.mark.parametrize(
    "values",
    [
        {"dimensions": 0},
        {"dimensions": True},
        {"dimensions": 1.5},
        {"normalize": 1},
        {"truncate_prompt_tokens": 0},
        {"truncate_prompt_tokens": -2},
        {"truncation_side": "middle"},
        {"step_tag_id": -1},
        {"returned_token_ids": [0] * 70_000},
    ],
)
def test_pooling_params_are_checked_when_they_are_made(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(values))):
        PoolingParams(**values)


def test_params_are_checked_again_when_they_are_used(small: Path) -> None:
    params = PoolingParams()
    params.dimensions = -1
    with open_llm(small) as llm:
        with pytest.raises(InvalidRequestError, match="dimensions"):
            llm.embed("a", pooling_params=params, **QUIET)
        with pytest.raises(InvalidRequestError, match="prompt 1: "):
            llm.embed(["a", ""], **QUIET)
        with pytest.raises(InvalidRequestError, match="pooling_params has 2 entries for 1"):
            llm.embed(["a"], pooling_params=[PoolingParams()] * 2, **QUIET)
        with pytest.raises(UnsupportedError, match="padding"):
            llm.embed("a", tokenization_kwargs={"padding": True}, **QUIET)
        cut = llm.embed(TEXTS[3], tokenization_kwargs={"truncation": True, "max_length": 6}, **QUIET)[0]
        assert cut.prompt_token_ids == [*tokenizer().encode(TEXTS[3]).ids[:5], 3]


def test_ways_of_pooling_texts_and_tokens_are_told_apart(small: Path) -> None:
    model = make_encoder("bert")
    mean = states_of(model, TEXTS[0]).mean(axis=0)
    first = states_of(model, TEXTS[0])[0]
    for config, expected in (
        ({"pooling_type": "ALL"}, first),
        ({"seq_pooling_type": "MEAN", "tok_pooling_type": "ALL"}, mean),
        ({"pooling_type": "mean", "enable_chunked_processing": False}, mean),
    ):
        with open_llm(small, override_pooler_config={**config, "use_activation": False}) as llm:
            near(np.array(llm.embed(TEXTS[0], **QUIET)[0].outputs.embedding), expected)


def test_a_classifier_gives_vectors_when_asked(tmp_path: Path) -> None:
    model = make_encoder("bert", "ForSequenceClassification", num_labels=3)
    save(model, tmp_path)
    with open_llm(tmp_path, convert="embed", pooler_config={"normalize": False}) as llm:
        found = np.array(llm.embed(TEXTS[0], **QUIET)[0].outputs.embedding)
        near(found, states_of(model.bert, TEXTS[0])[0])


def test_parameters_of_another_type_are_refused(small: Path) -> None:
    with open_llm(small) as llm, pytest.raises(InvalidRequestError, match="must be PoolingParams, got int"):
        llm.embed("a", pooling_params=3, **QUIET)  # pyright: ignore[reportArgumentType]


def test_weights_that_are_not_read_are_named(tmp_path: Path) -> None:
    save(make_encoder("bert"), tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelNotFoundError, match=r"pytorch_model.bin is not read.*save the model as safetensors"):
        open_llm(tmp_path)


def test_distances_fall_into_the_buckets_of_transformers() -> None:
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    far = torch.arange(-700, 701)
    for buckets, reach in ((32, 128), (16, 50)):
        expected = MPNetEncoder.relative_position_bucket(far, num_buckets=buckets, max_distance=reach)
        assert [DistanceSpec(buckets, reach).bucket(int(one)) for one in far] == expected.tolist()


def test_scores_lean_by_distance_in_long_texts(tmp_path: Path) -> None:
    model = make_encoder("mpnet", max_position_embeddings=402)
    save(model, tmp_path)
    text = " ".join(VOCABULARY[5 + number * number % 60] for number in range(390))
    with open_llm(tmp_path) as llm:
        (found,) = llm.encode(text, RAW, pooling_task="token_embed", **QUIET)
        assert len(found.outputs.data) > 300
        near(found.outputs.data, states_of(model, text))
