"""Encoders as GGUF files, under the names and in the form that llama.cpp's converter gives them."""

import base64
import json
from pathlib import Path
from typing import Any

import gguf
import torch
from tokenizers import Tokenizer

POOLING = {"mean": 1, "cls": 2, "last": 3, "rank": 4}


def write_encoder(
    path: Path,
    state: dict[str, torch.Tensor],
    config: dict[str, Any],
    vocabulary: Tokenizer,
    *,
    pooling: str | None = None,
    arch: str = "bert",
    labels: list[str] | None = None,
) -> Path:
    """A file in float32.

    Args:
        state: tensors as transformers names them, without a prefix.
        config: as in config.json; positions that no token has are cut off (RoBERTa's).
    """
    writer = gguf.GGUFWriter(path, arch)
    layers = int(config["num_hidden_layers"])
    dropped = int(config.get("dropped_positions", 0))
    writer.add_context_length(int(config["max_position_embeddings"]) - dropped)
    writer.add_embedding_length(int(config["hidden_size"]))
    writer.add_feed_forward_length(int(config["intermediate_size"]))
    writer.add_block_count(layers)
    writer.add_head_count(int(config["num_attention_heads"]))
    writer.add_layer_norm_eps(float(config["layer_norm_eps"]))
    writer.add_causal_attention(False)
    if "rope_theta" in config:
        writer.add_rope_freq_base(float(config["rope_theta"]))
    if pooling is not None:
        writer.add_uint32(f"{arch}.pooling_type", POOLING[pooling])
    if labels is not None:
        writer.add_array(f"{arch}.classifier.output_labels", labels)
    _write_vocabulary(writer, vocabulary, int(config.get("type_vocab_size", 1)))
    kind = {"bert": gguf.MODEL_ARCH.BERT, "nomic-bert": gguf.MODEL_ARCH.NOMIC_BERT}[arch]
    names = gguf.get_tensor_name_map(kind, layers)
    for name, tensor in state.items():
        if "position_ids" in name or "pooler.dense" in name or name.startswith("cls."):
            continue
        if "position_embeddings" in name:
            tensor = tensor[dropped:]
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        squeezed = tensor.float().contiguous().squeeze()
        writer.add_tensor(found, (squeezed if squeezed.dim() else tensor.float()).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_vocabulary(writer: gguf.GGUFWriter, vocabulary: Tokenizer, types: int) -> None:
    state = json.loads(vocabulary.to_str())
    special = {token["content"] for token in state["added_tokens"] if token["special"]}
    unigram = state["model"]["type"] == "Unigram"
    known = {number: piece for piece, number in vocabulary.get_vocab().items()}
    pieces = [known.get(number, f"[PAD{number}]") for number in range(max(known) + 1)]
    kinds = [3 if piece in special else 1 if number in known else 5 for number, piece in enumerate(pieces)]
    if unigram:
        kinds[state["model"]["unk_id"]] = 2
        writer.add_tokenizer_model("t5")
        writer.add_token_list(pieces)
        writer.add_token_scores([float(score) for _, score in state["model"]["vocab"]])
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)
        if state["normalizer"] is not None:
            writer.add_precompiled_charsmap(base64.b64decode(state["normalizer"]["precompiled_charsmap"]))
        roles = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>"}
    else:
        marked = [
            piece if kind == 3 else piece[2:] if piece.startswith("##") else "\u2581" + piece
            for piece, kind in zip(pieces, kinds, strict=True)
        ]
        writer.add_tokenizer_model("bert")
        writer.add_token_list(marked)
        roles = {"bos": "[CLS]", "unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    writer.add_tokenizer_pre("default")
    writer.add_token_types(kinds)
    writer.add_token_type_count(types)
    for role, token in roles.items():
        number = vocabulary.token_to_id(token)
        if number is not None:
            getattr(writer, f"add_{role}_token_id")(number)
