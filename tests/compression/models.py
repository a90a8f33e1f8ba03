"""Tiny random models of every family as directories, with a tokenizer of bytes, and what calibration needs."""

import json
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from octavo.compression.layer_runner import LayerRunner
from octavo.compression.parameters import Parameters
from octavo.kernels.cpu.library import load_library
from octavo.kernels.cpu.team import ThreadTeam
from octavo.model.source import ModelSource, open_model
from octavo.text.pieces import byte_alphabet
from tests.families.checkpoints import random_model, save

TEXTS = np.random.default_rng(0).integers(3, 256, (3, 24)).astype(np.int32)


def make(name: str, directory: Path, dtype: torch.dtype = torch.bfloat16, shard: str = "10GB") -> Path:
    """The model of that name, with a tokenizer beside it."""
    save(random_model(name), directory, dtype, shard)
    tokenizer = Tokenizer(BPE(vocab=byte_alphabet(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    return directory


def runner(source: ModelSource, parameters: Parameters, texts: np.ndarray = TEXTS) -> LayerRunner:
    """Ready to embed."""
    library = load_library()
    return LayerRunner(source.spec, parameters, texts, library, ThreadTeam(library, 1))


def outputs(source: ModelSource, parameters: Parameters, texts: np.ndarray = TEXTS) -> np.ndarray:
    """Hidden states after the last layer."""
    run = runner(source, parameters, texts)
    run.embed()
    for index in range(len(source.spec.layers)):
        run.advance(run.load(index))
    return run.hidden.copy()


def opened(path: Path) -> tuple[ModelSource, Parameters]:
    """The model, and its weights to be read and changed."""
    source = open_model(path)
    return source, Parameters(source)
