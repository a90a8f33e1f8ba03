"""The text side of a model: what turns prompts into requests and tokens into text. Needs no weights."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import octavo
from octavo.config.engine import EngineConfig
from octavo.config.overrides import read_overrides
from octavo.config.pooling import read_pooling_wish
from octavo.engine.client import EngineInfo
from octavo.errors import ConfigError
from octavo.flow.generation_config import defaults_from
from octavo.inputs.limits import InputLimits
from octavo.inputs.pooling import PoolingProcessor, refuse_pooling
from octavo.inputs.processor import InputProcessor
from octavo.model.source import ModelSource, find_model, open_model
from octavo.outputs.answer.choose import AnswerFormats, choose_formats
from octavo.outputs.logprobs import token_text
from octavo.outputs.processor import OutputProcessor
from octavo.spec.pooling import PoolerSpec
from octavo.text.chat_template import ChatTemplate
from octavo.text.gguf_vocabulary import tokenizer_from_metadata
from octavo.text.grammar import GrammarCompiler
from octavo.text.json_files import read_json
from octavo.text.tokenizer import Tokenizer, load_tokenizer_file

# Of generation_config.json, these hold also where its sampling defaults are not wanted.
_END_KEYS = ("eos_token_id", "bos_token_id")
_MAX_TEMPLATE_PATH = 4096


@dataclass(frozen=True, slots=True)
class Frontend:
    """What a frontend knows of its model.

    name: what the user called the model, or the file's name. generation: generation_config.json as it applies.
    tokenizer: None with `skip_tokenizer_init`. pooler: what its states are read as; None: it generates.
    """

    config: EngineConfig
    name: str
    path: Path
    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None
    formats: AnswerFormats
    grammars: GrammarCompiler
    generation: dict[str, Any]
    pooler: PoolerSpec | None = None

    @property
    def shown_name(self) -> str:
        """What messages call the model."""
        return next(iter(self.config.serving.served_model_name), self.name)

    def inputs(self, info: EngineInfo, shorten_output: bool = False) -> InputProcessor:
        """The way into an engine; see `InputLimits` for `shorten_output`."""
        limits = InputLimits(
            info.max_model_len, info.vocab, self.config.serving.max_logprobs, shorten_output=shorten_output
        )
        return InputProcessor(
            self.tokenizer,
            self.chat_template,
            limits,
            self.generation,
            self.config.model.seed,
            self.grammars,
            pooled=None if self.pooler is None else self.pooling(info),
        )

    def pooling(self, info: EngineInfo) -> PoolingProcessor:
        """The way of texts into an engine that pools them.

        Raises:
            UnsupportedError: it generates.
        """
        if self.pooler is None:
            raise refuse_pooling(self.shown_name)
        limits = InputLimits(info.max_model_len, info.vocab)
        # The template that a model brings is for chats; pairs of texts have one when it is given.
        template = self.chat_template if self.config.model.chat_template else None
        return PoolingProcessor(self.tokenizer, limits, self.pooler, self.shown_name, template)

    def outputs(self) -> OutputProcessor:
        """The way out of an engine."""
        return OutputProcessor(self.tokenizer)

    def token_text(self, token_id: int) -> str:
        """The text of one token for itself; empty without a tokenizer."""
        return "" if self.tokenizer is None else token_text(self.tokenizer, token_id)

    def fingerprint(self) -> str:
        """Of the text side: what turns a conversation into tokens, and fills in what a request leaves out."""
        template = self.chat_template.sources if self.chat_template is not None else ()
        said = repr(
            (template, sorted(self.generation.items(), key=str), self.config.serving.default_chat_template_kwargs)
        )
        return hashlib.sha256(said.encode()).hexdigest()

    def answers_fingerprint(self, info: EngineInfo) -> dict[str, str]:
        """Of all that decides the bits of answers, by name; see `flow/receipt.py`."""
        return {**dict(info.fingerprint), "octavo": octavo.__version__, "template": self.fingerprint()}

    def sampling_defaults(self) -> dict[str, Any]:
        """What requests get where they say nothing."""
        return defaults_from(self.generation)


def build_frontend(config: EngineConfig, source: ModelSource | None = None) -> Frontend:
    """Read tokenizer, chat template and sampling defaults.

    Args:
        source: the model, when the caller has opened it already.

    Raises:
        UserError: no such model, or a damaged or unsupported file of it.
    """
    model = config.model
    if source is None:
        source = open_model(
            find_model(model.model, model.revision, model.download_dir, model.hf_token),
            read_pooling_wish(model),
            read_overrides(model.hf_overrides),
        )
    tokenizer = load_tokenizer(config, source)
    template = _template_text(model.chat_template) if model.chat_template else source.chat_template
    special = tokenizer.special_tokens if tokenizer else None
    return Frontend(
        config=config,
        name=model.model or source.path.stem,
        path=source.path,
        tokenizer=tokenizer,
        chat_template=ChatTemplate(template, special) if template else None,
        formats=choose_formats(_flat(template), config.serving.tool_call_parser, config.serving.reasoning_parser),
        grammars=GrammarCompiler(lambda: tokenizer, source.spec.vocab),
        generation=_generation(model.generation_config, source),
        pooler=source.pooler,
    )


def load_tokenizer(config: EngineConfig, source: ModelSource) -> Tokenizer | None:
    """The model's tokenizer; None with `skip_tokenizer_init`.

    Raises:
        UserError: there is none, or it is damaged.
    """
    model = config.model
    if model.skip_tokenizer_init:
        return None
    if model.tokenizer:
        path = find_model(model.tokenizer, None, model.download_dir, model.hf_token)
        return load_tokenizer_file(path, source.config)
    if source.gguf_metadata:
        return tokenizer_from_metadata(source.gguf_metadata)
    return load_tokenizer_file(source.tokenizer_files or source.path, source.config)


def _flat(template: object) -> str:
    """All the texts of a template, which may be several by name."""
    if isinstance(template, str):
        return template
    return json.dumps(template, ensure_ascii=False) if template else ""


def _template_text(given: str) -> str:
    """A file's content, or the text itself.

    Raises:
        ConfigError: it looks like a path, and there is no such file, or none that can be read.
    """
    if "{" in given or len(given) > _MAX_TEMPLATE_PATH:
        return given
    path = Path(os.path.expanduser(given))
    try:
        return path.read_text("utf-8")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise ConfigError(f"chat_template: no file {path}, and the text is no Jinja template") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"chat_template: {path} cannot be read: {error}") from None


def _generation(wanted: str, source: ModelSource) -> dict[str, Any]:
    if wanted == "auto":
        return source.generation_config
    if wanted == "vllm":
        return {key: source.generation_config[key] for key in _END_KEYS if key in source.generation_config}
    path = Path(os.path.expanduser(wanted)) / "generation_config.json"
    if not path.is_file():
        raise ConfigError(f"generation_config: no file {path}; give 'auto', 'vllm' or a directory that has one")
    return read_json(path)
