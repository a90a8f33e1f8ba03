"""What the server's flags put into requests that say nothing about it."""

import json
from typing import Any, cast

from octavo.config.engine import ServingConfig
from octavo.errors import ConfigError
from octavo.serving.openai.schema import GenerationFields, StreamOptions


def template_variables(config: ServingConfig) -> dict[str, Any]:
    """Variables that chat templates get where a request sets none.

    Raises:
        ConfigError: not a JSON object.
    """
    text = config.default_chat_template_kwargs
    try:
        value: object = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ConfigError(
            f"""default_chat_template_kwargs: a JSON object is expected, e.g. '{{"a": false}}'; got {text}"""
        )
    return cast("dict[str, Any]", value)


def fill_in(body: GenerationFields, config: ServingConfig) -> None:
    """Change a body to what the server's flags make of it."""
    if config.return_tokens_as_token_ids and body.return_tokens_as_token_ids is None:
        body.return_tokens_as_token_ids = True
    if config.enable_force_include_usage and body.stream:
        continuous = body.stream_options and body.stream_options.continuous_usage_stats
        body.stream_options = StreamOptions(include_usage=True, continuous_usage_stats=continuous)
