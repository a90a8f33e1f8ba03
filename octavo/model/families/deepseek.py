"""DeepSeek-V2 and V3 whose layers are all dense: latent attention, rotary pairs side by side, YaRN in the scores.

Source: DeepSeek-V2, arXiv:2405.04434, section 2.1; transformers' DeepseekV2Config, DeepseekV3Config and modeling code;
the weight names of deepseek-ai/DeepSeek-V2-Lite and DeepSeek-V3. Layers with experts are refused.
"""

import math
from collections.abc import Mapping
from typing import Any

from octavo.errors import UnsupportedError
from octavo.model.families.common import LLAMA_NAMES, MAX_LAYERS, decoder, with_layer
from octavo.model.families.reader import ConfigReader
from octavo.model.families.rope import read_rope
from octavo.model.families.table import at
from octavo.ops.weight import StoredTensor
from octavo.spec.decoder import DecoderSpec, DenseMlpSpec, LatentSpec, NormSpec, sequential

ARCHITECTURES = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
GGUF_ARCHITECTURES: tuple[str, ...] = ()  # there are files of models with experts only

WEIGHTS = with_layer(
    LLAMA_NAMES,
    {
        "mixer.q": at("{p}layers.{i}.self_attn.q_proj", "{p}layers.{i}.self_attn.q_b_proj", unpair=True),
        "mixer.q_down": at("{p}layers.{i}.self_attn.q_a_proj"),
        "mixer.q_norm": at("{p}layers.{i}.self_attn.q_a_layernorm"),
        "mixer.kv_down": at("{p}layers.{i}.self_attn.kv_a_proj_with_mqa", unpair=True),
        "mixer.latent_norm": at("{p}layers.{i}.self_attn.kv_a_layernorm"),
        "mixer.kv_up": at("{p}layers.{i}.self_attn.kv_b_proj"),
    },
)
GGUF_WEIGHTS = WEIGHTS

_LATENT_NORM = NormSpec("rms", 1e-6)  # whatever the model's own eps is


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder of a config.json. `first_k_dense_replace` layers are dense; missing it is 0 in V2 and 3 in V3."""
    read = ConfigReader(config)
    named = read.texts("architectures") or ()
    third = "DeepseekV3ForCausalLM" in named or read.text("model_type", "deepseek_v2") == "deepseek_v3"
    layers = read.size("num_hidden_layers", most=MAX_LAYERS)
    dense = read.whole("first_k_dense_replace", 3 if third else 0)
    if dense < layers:
        raise UnsupportedError(f"config: layers {dense} to {layers - 1} have experts, which are not supported")
    if not read.flag("rope_interleave", True):
        raise UnsupportedError("config: rope_interleave = false is not supported")
    q_rank = read.optional_size("q_lora_rank", 1536)
    nope, rope_dim = read.size("qk_nope_head_dim", 128), read.size("qk_rope_head_dim", 64)
    mixer = LatentSpec(
        heads=read.size("num_attention_heads"),
        nope=nope,
        rope_dim=rope_dim,
        value_dim=read.size("v_head_dim", 128),
        rank=read.size("kv_lora_rank", 512),
        scale=(nope + rope_dim) ** -0.5 * _score_factor(read),
        rope=read_rope(read, rope_dim),
        latent_norm=_LATENT_NORM,
        q_rank=q_rank,
        q_norm=None if q_rank is None else _LATENT_NORM,
        bias=read.flag("attention_bias", False),
    )
    norm = NormSpec("rms", read.number("rms_norm_eps", 1e-6))
    mlp = DenseMlpSpec(
        read.size("intermediate_size"),
        read.activation("hidden_act", "silu"),
        bias=not third and read.flag("mlp_bias", False),
    )
    layer = sequential(mixer, mlp, norm)
    return decoder(read, (layer,) * layers, norm, positions=4096 if third else 2048, tied=False)


def _score_factor(read: ConfigReader) -> float:
    """The square of YaRN's temperature, arXiv:2309.00071, section 3.4, where the file gives it a weight."""
    scaling = read.section("rope_parameters") or read.section("rope_scaling")
    weight = None if scaling is None else scaling.optional_number("mscale_all_dim")
    if scaling is None or weight is None or scaling.text("rope_type", scaling.text("type", "default")) == "default":
        return 1.0
    factor = scaling.number("factor")
    return (1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0) ** 2


def read_gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """There are no GGUF files without experts."""
    raise UnsupportedError("DeepSeek's GGUF files have experts, which are not supported")
