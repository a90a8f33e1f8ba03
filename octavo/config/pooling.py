"""What flags say of pooling: whether a model is to generate or to be pooled, as what, and with which settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import msgspec

from octavo.config.engine import ModelConfig
from octavo.errors import ConfigError, UnsupportedError

Runner = Literal["auto", "generate", "pooling"]
Convert = Literal["auto", "none", "embed", "classify", "reward"]

# vLLM's older --task: which runner, and what the model becomes.
_TASKS: dict[str, tuple[Runner, Convert]] = {
    "auto": ("auto", "auto"),
    "generate": ("generate", "none"),
    "embed": ("pooling", "embed"),
    "embedding": ("pooling", "embed"),
    "classify": ("pooling", "classify"),
    "reward": ("pooling", "reward"),
    "score": ("pooling", "auto"),
}
_OF_TEXT = ("CLS", "LAST", "MEAN")
_OF_TOKENS = ("ALL", "STEP")
_TYPES = {
    "pooling_type": (*_OF_TEXT, *_OF_TOKENS),
    "seq_pooling_type": _OF_TEXT,
    "tok_pooling_type": _OF_TOKENS,
}
_NOT_THERE = ("logit_bias", "logit_mean", "logit_sigma", "max_embed_len", "enable_chunked_processing")


class PoolerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`--pooler-config`, with vLLM's fields; None: as the model says.

    Attributes:
        pooling_type: CLS, LAST, MEAN, ALL or STEP; `seq_pooling_type` and `tok_pooling_type` are vLLM's newer names.
        normalize: embeddings get the length 1.
        use_activation: classes are squashed; `softmax` and `activation` are older names.
        dimensions: lengths that embeddings are cut to where a request does not say.
        matryoshka_dimensions: lengths that requests may ask for; is_matryoshka: any.
    """

    pooling_type: str | None = None
    seq_pooling_type: str | None = None
    tok_pooling_type: str | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    softmax: bool | None = None
    activation: bool | None = None
    dimensions: int | None = None
    is_matryoshka: bool | None = None
    matryoshka_dimensions: list[int] | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None

    @property
    def of_text(self) -> str | None:
        """How a text's one answer is pooled, in lower case, if that is said."""
        return self._given(self.seq_pooling_type, _OF_TEXT)

    @property
    def of_tokens(self) -> str | None:
        """Which tokens have answers, in lower case, if that is said."""
        return self._given(self.tok_pooling_type, _OF_TOKENS)

    def _given(self, own: str | None, types: tuple[str, ...]) -> str | None:
        plain = self.pooling_type if self.pooling_type and self.pooling_type.upper() in types else None
        return next((name.lower() for name in (own, plain) if name), None)

    @property
    def squashes(self) -> bool | None:
        """Whether classes are squashed, if that is said."""
        return next((x for x in (self.use_activation, self.activation, self.softmax) if x is not None), None)


@dataclass(frozen=True, slots=True)
class PoolingWish:
    """What the flags ask for."""

    runner: Runner = "auto"
    convert: Convert = "auto"
    config: PoolerConfig = field(default_factory=PoolerConfig)


def read_pooling_wish(model: ModelConfig) -> PoolingWish:
    """The wish of a configuration.

    Raises:
        ConfigError: flags contradict each other, or a setting is wrong.
        UnsupportedError: a setting that Octavo does not have.
    """
    runner, convert = _TASKS[model.task]
    if model.runner != "auto":
        if runner not in ("auto", model.runner):
            raise ConfigError(f"task {model.task} and runner {model.runner} contradict each other: give one of them")
        runner = model.runner
    if model.convert != "auto":
        if convert not in ("auto", model.convert):
            raise ConfigError(f"task {model.task} and convert {model.convert} contradict each other: give one of them")
        convert = model.convert
    config = read_pooler_config(model.pooler_config)
    if runner == "generate" and (convert not in ("auto", "none") or config != PoolerConfig()):
        raise ConfigError("convert and pooler_config are for pooling, but generating is asked for (runner or task)")
    return PoolingWish(runner, convert, config)


def read_pooler_config(given: str | None) -> PoolerConfig:
    """The settings of a JSON text.

    Raises:
        ConfigError: it is none, or a setting is wrong.
        UnsupportedError: a setting that Octavo does not have.
    """
    if given is None:
        return PoolerConfig()
    try:
        values = msgspec.json.decode(given)
    except msgspec.DecodeError as error:
        raise ConfigError(f"pooler_config is no JSON: {error}") from None
    if not isinstance(values, Mapping):
        raise ConfigError('pooler_config must be a JSON object, for example {"pooling_type": "MEAN"}')
    settings = _known(cast(Mapping[str, Any], values))
    try:
        config = msgspec.convert(settings, PoolerConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"pooler_config: {error}") from None
    for name, types in _TYPES.items():
        given = getattr(config, name)
        if given is not None and given.upper() not in types:
            raise ConfigError(f"pooler_config: {name} is one of {', '.join(types)}, not {given[:64]!r}")
    if config.dimensions is not None and config.dimensions < 1:
        raise ConfigError(f"pooler_config: dimensions must be at least 1, got {config.dimensions}")
    return config


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that ask for something.

    Raises:
        ConfigError: one that there is not.
        UnsupportedError: one that Octavo does not have.
    """
    settings = {str(name): value for name, value in values.items() if value is not None}
    settings.pop("task", None)  # vLLM's objects carry it; the flag of this name decides
    for name in sorted(settings):
        if name in _NOT_THERE:
            if settings.pop(name):
                raise UnsupportedError(f"pooler_config: {name} is not supported")
        elif name not in PoolerConfig.__struct_fields__:
            known = ", ".join(PoolerConfig.__struct_fields__)
            raise ConfigError(f"pooler_config has no setting {name!r}; there are {known}")
    return settings
