"""Tiny random models that are pooled, with the tokenizers they come with, as transformers saves them."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = (
    "the a panda bear is of what black white small giant hello world runs eats leaf tree in and with over un ##s ##ly"
)
# A vocabulary of WordPiece: BERT's special tokens first.
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split(), *"abcdefghijklmnopqrstuvwxyz.,?!0123456789"]
TEXTS = (
    "what is a panda?",
    "the giant panda is a black and white bear",
    "hello world",
    "a small bear eats a leaf in the tree and runs over the world with a panda. " * 3,
    "a",
)
SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 80,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
# Config class, sizes that differ, and the stem of the model classes.
ENCODERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("BertConfig", {"type_vocab_size": 2, "hidden_act": "gelu"}, "Bert"),
    "bert-relu": ("BertConfig", {"hidden_act": "relu", "layer_norm_eps": 1e-5}, "Bert"),
    "roberta": ("RobertaConfig", {"pad_token_id": 1, "max_position_embeddings": 130, "type_vocab_size": 1}, "Roberta"),
    "xlm-roberta": (
        "XLMRobertaConfig",
        {"pad_token_id": 1, "max_position_embeddings": 130, "type_vocab_size": 1},
        "XLMRoberta",
    ),
    "distilbert": ("DistilBertConfig", {"dim": 48, "n_layers": 3, "n_heads": 3, "hidden_dim": 80}, "DistilBert"),
    "mpnet": ("MPNetConfig", {"pad_token_id": 1, "max_position_embeddings": 130}, "MPNet"),
    "modernbert": ("ModernBertConfig", {"local_attention": 8, "num_hidden_layers": 4, "norm_bias": True}, "ModernBert"),
}


def make_encoder(name: str, head: str = "Model", **changes: Any) -> Any:
    """A random model of a family; every norm and bias is random, too."""
    config_class, own, stem = ENCODERS[name]
    config = getattr(transformers, config_class)(**{**SIZES, **own, **changes})
    if name == "distilbert":
        config.max_position_embeddings = 128
    torch.manual_seed(7)
    model = getattr(transformers, f"{stem}{head}")(config).eval()
    return randomized(model)


def make_decoder(config_class: str, model_class: str, **changes: Any) -> Any:
    """A random decoder."""
    sizes = {**SIZES, "num_key_value_heads": 1, "eos_token_id": 3, "bos_token_id": 2, **changes}
    config = getattr(transformers, config_class)(**sizes)
    torch.manual_seed(11)
    return randomized(getattr(transformers, model_class)(config).eval())


def randomized(model: Any) -> Any:
    """Norms, biases and heads begin as ones and zeros, which would hide mistakes."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if parameter.dim() == 1 and parameter.mean() > 0.5 else 0.15 * noise)
    return model


def save(model: Any, directory: Path, pair_types: bool = True, **config: Any) -> Path:
    """The model with a WordPiece tokenizer.

    Args:
        pair_types: the second text of a pair is of another type, as BERT has it.
        config: entries added to config.json.
    """
    model.save_pretrained(directory, safe_serialization=True)
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    tokenizer(pair_types).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"cls_token": "[CLS]", "sep_token": "[SEP]"}))
    return directory


def tokenizer(pair_types: bool = True) -> Tokenizer:
    """[CLS] text [SEP], and for a pair a second text and [SEP]."""
    built = Tokenizer(models.WordPiece({word: i for i, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    built.normalizer = normalizers.BertNormalizer(lowercase=True)
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    second = "1" if pair_types else "0"
    built.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] $B:{second} [SEP]:{second}",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    built.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return built


def add_sentence_files(
    directory: Path,
    pooling: dict[str, Any],
    *,
    normalize: bool = True,
    dense: tuple[int, int] | None = None,
    **more: Any,
) -> None:
    """The files of sentence-transformers.

    Args:
        dense: widths in and out of a dense layer with tanh.
        more: sentence_bert_config.json (`limits`), config_sentence_transformers.json (`prompts`).
    """
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if dense is not None:
        modules.append(("2_Dense", "Dense"))
        place = directory / "2_Dense"
        place.mkdir(exist_ok=True)
        generator = torch.Generator().manual_seed(5)
        weight = torch.randn(dense[1], dense[0], generator=generator) / dense[0] ** 0.5
        save_file({"linear.weight": weight, "linear.bias": 0.1 * torch.ones(dense[1])}, place / "model.safetensors")
        settings = {"in_features": dense[0], "out_features": dense[1], "bias": True}
        settings["activation_function"] = "torch.nn.modules.activation.Tanh"
        (place / "config.json").write_text(json.dumps(settings))
    if normalize:
        modules.append(("9_Normalize", "Normalize"))
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    (directory / "modules.json").write_text(json.dumps(listed))
    if "limits" in more:
        (directory / "sentence_bert_config.json").write_text(json.dumps(more["limits"]))
    if "prompts" in more:
        (directory / "config_sentence_transformers.json").write_text(json.dumps(more["prompts"]))
