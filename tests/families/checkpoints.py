"""Tiny random checkpoints of every family, as transformers saves them, and the same weights as GGUF files."""

import copy

import gguf
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    Gemma3TextConfig,
    GPT2Config,
    GraniteConfig,
    GraniteMoeHybridConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Qwen2Config,
    Qwen3Config,
)

BASE = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OPT = {k: v for k, v in BASE.items() if k not in ("intermediate_size", "num_key_value_heads")} | {"ffn_dim": 128}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 500.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 256,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.1 * i for i in range(8)],
    "rope_theta": 10000.0,
}
GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
GRANITE = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.1,
    "residual_multiplier": 0.22,
    "logits_scaling": 3.0,
}
GPT2 = {"vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
LATENT = BASE | {"num_key_value_heads": 4, "first_k_dense_replace": 2, "kv_lora_rank": 24, "v_head_dim": 20}
LATENT |= {"qk_nope_head_dim": 12, "qk_rope_head_dim": 8}
DEEPSEEK_YARN = {**YARN, "mscale": 0.707, "mscale_all_dim": 0.9}
HYBRID = BASE | GRANITE | {"num_hidden_layers": 4, "num_local_experts": 0, "shared_intermediate_size": 96}
HYBRID |= {"mamba_n_heads": 8, "mamba_n_groups": 1, "mamba_d_state": 12, "mamba_d_conv": 4, "mamba_chunk_size": 16}

CONFIGS = {
    "llama": lambda: LlamaConfig(**BASE, head_dim=16),
    "llama-biased-tied-llama3": lambda: LlamaConfig(
        **BASE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rope_parameters=dict(LLAMA3)
    ),
    "llama-yarn": lambda: LlamaConfig(**BASE, rope_parameters=dict(YARN)),
    "llama-linear": lambda: LlamaConfig(**BASE, rope_parameters=dict(LINEAR)),
    "llama-longrope": lambda: LlamaConfig(**BASE, rope_parameters=dict(LONG)),
    "mistral-window": lambda: MistralConfig(**BASE, head_dim=32, sliding_window=8),
    "mistral-full": lambda: MistralConfig(**BASE, sliding_window=None),
    "qwen2": lambda: Qwen2Config(**BASE, tie_word_embeddings=True),
    "qwen2-window": lambda: Qwen2Config(**BASE, use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "qwen3": lambda: Qwen3Config(**BASE, head_dim=32),
    "gemma3": lambda: Gemma3TextConfig(
        **{**BASE, "num_hidden_layers": 6}, head_dim=16, sliding_window=8, query_pre_attn_scalar=16
    ),
    "gemma3-scaled": lambda: Gemma3TextConfig(
        **{**BASE, "num_hidden_layers": 4},
        head_dim=16,
        sliding_window=8,
        query_pre_attn_scalar=10,
        layer_types=["full_attention", "sliding_attention"] * 2,
        rope_parameters=GEMMA_ROPES,
    ),
    "granite": lambda: GraniteConfig(**BASE, **GRANITE, head_dim=32),
    "granite-biased-tied": lambda: GraniteConfig(
        **BASE, **GRANITE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "opt": lambda: OPTConfig(**OPT),
    "opt-350m": lambda: OPTConfig(**OPT, word_embed_proj_dim=32, do_layer_norm_before=False),
    "gpt2": lambda: GPT2Config(**GPT2),
    "deepseek2": lambda: DeepseekV2Config(**LATENT, q_lora_rank=None),
    "deepseek3-yarn": lambda: DeepseekV3Config(
        **LATENT, q_lora_rank=40, attention_bias=True, rope_parameters=dict(DEEPSEEK_YARN)
    ),
    "llama4": lambda: Llama4TextConfig(
        **{**BASE, "num_hidden_layers": 4},
        head_dim=16,
        intermediate_size_mlp=96,
        moe_layers=[],
        no_rope_layers=[1, 0, 1, 1],
        attention_chunk_size=10,
        floor_scale=4,
        attn_scale=0.3,
    ),
    "lfm2": lambda: Lfm2Config(
        **{**BASE, "num_hidden_layers": 4},
        layer_types=["conv", "full_attention", "conv", "conv"],
        conv_bias=True,
        conv_L_cache=4,
        block_multiple_of=20,
    ),
    "granite-hybrid": lambda: GraniteMoeHybridConfig(**HYBRID, layer_types=["mamba", "attention", "mamba", "mamba"]),
    "granite-hybrid-rope": lambda: GraniteMoeHybridConfig(
        **{**HYBRID, "num_hidden_layers": 2, "mamba_n_groups": 2},
        layer_types=["attention", "mamba"],
        position_embedding_type="rope",
        mamba_proj_bias=True,
        mamba_conv_bias=False,
        attention_bias=True,
        time_step_limit=(0.3, 0.9),
    ),
    "gpt2-by-layer": lambda: GPT2Config(**GPT2, n_inner=96, scale_attn_by_inverse_layer_idx=True),
}


def random_model(name):
    """The model with every norm and bias made random too: their usual 0 and 1 would hide mistakes."""
    torch.manual_seed(len(name))
    model = AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                centre = 0.0 if parameter_name.endswith("bias") or name.startswith("gemma") else 1.0
                parameter.normal_(centre, 0.2)
            else:
                parameter.normal_(0.0, 0.15)
    return model


def save(model, directory, dtype=torch.float32, shard="10GB"):
    """Save as transformers does; the model itself is rounded to `dtype` too, but stays in float32."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype).float())
    # A copy: casting the model would round its rope frequencies for good.
    copy.deepcopy(model).to(dtype).save_pretrained(directory, max_shard_size=shard)
    return directory


def expected_logits(model, ids):
    """[tokens, vocab] of the oracle, in float32."""
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].float().numpy()


# --- the same weights as GGUF ----------------------------------------------------------------------------------------

_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write_gguf(model, path, kind=gguf.GGMLQuantizationType.F32):
    """Write a model's weights as its family's converter would; matrices are quantized to `kind`."""
    config = model.config
    arch = {"gemma3_text": "gemma3", "mistral": "llama"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, arch)
    _write_metadata(writer, config, arch)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = _as_converted(arch, name, tensor.float(), config).contiguous().numpy()
        stored = gguf.GGMLQuantizationType.F32 if values.ndim == 1 or "wpe" in name else kind
        writer.add_tensor(gguf_name(arch, name), gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_metadata(writer, config, arch):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if arch == "gpt2":
        writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if arch == "gemma3":
        writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
        writer.add_sliding_window(config.sliding_window)
        return
    if arch == "granite":
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    if config.model_type == "mistral" and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    if config.rope_parameters["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_parameters["factor"])
    if config.rope_parameters["rope_type"] == "llama3":
        plain = config.rope_parameters["rope_theta"] ** (-torch.arange(0, head_dim, 2) / head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / llama3_frequencies(config, head_dim)).numpy())


def llama3_frequencies(config, head_dim):
    """transformers' scaled inverse frequencies."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    return ROPE_INIT_FUNCTIONS["llama3"](config)[0]


def _as_converted(arch, name, tensor, config):
    if arch in ("llama", "granite") and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        half = tensor.shape[0] // heads // 2
        return tensor.reshape(heads, 2, half, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
    if arch == "gemma3" and "norm" in name:
        return tensor + 1
    if arch == "gpt2" and name.endswith("weight") and ("c_" in name):
        return tensor.T
    return tensor


def gguf_name(arch, name):
    module, _, kind = name.rpartition(".")
    names = _GGUF_NAMES | (_GEMMA_NAMES if arch == "gemma3" else {})
    for prefix in ("model.layers.", "transformer.h."):
        if module.startswith(prefix):
            layer, _, rest = module.removeprefix(prefix).partition(".")
            return f"blk.{layer}.{names[rest]}.{kind}"
    return f"{names[module]}.{kind}"
