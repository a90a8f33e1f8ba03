"""What flags of the server put into requests that say nothing about it."""

import json

import pytest

from octavo.config.engine import ServingConfig
from octavo.errors import ConfigError
from octavo.serving.openai.server_defaults import template_variables
from octavo.text.chat_template import ChatTemplate
from tests.serving.scripted import HTTP, config_of, run_server

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "Hi"}]}


def events(url: str, path: str, body: dict) -> list[dict]:
    text = HTTP.post(url + path, json=body | {"stream": True}).text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def test_every_stream_ends_with_its_usage() -> None:
    with run_server(config=config_of(enable_force_include_usage=True)) as server:
        for path, body in ((CHAT, GOOD), ("/v1/completions", {"prompt": "Hi"})):
            for more in ({}, {"stream_options": {"include_usage": False}}):
                told = events(server.url, path, body | more)
                assert told[-1]["choices"] == []
                assert told[-1]["usage"]["completion_tokens"] == 14
                assert all(chunk["usage"] is None for chunk in told[:-1])
        assert HTTP.post(server.url + CHAT, json=GOOD).json()["usage"]["completion_tokens"] == 14


def test_tokens_are_named_by_their_ids() -> None:
    with run_server(config=config_of(return_tokens_as_token_ids=True)) as server:

        def first(**more: object) -> str:
            answer = HTTP.post(server.url + CHAT, json=GOOD | {"logprobs": True} | more).json()
            return answer["choices"][0]["logprobs"]["content"][0]["token"]

        assert first() == "token_id:72"
        assert first(return_tokens_as_token_ids=False) == "H"


def test_variables_of_the_chat_template() -> None:
    with run_server(config=config_of(default_chat_template_kwargs='{"mood": "calm", "tone": "dry"}')) as server:
        server.state.inputs.chat_template = ChatTemplate("{{ mood }}/{{ tone }}")

        def prompt(**more: object) -> str:
            answer = HTTP.post(server.url + "/tokenize", json=GOOD | more).json()
            return bytes(answer["tokens"]).decode()

        assert prompt() == "calm/dry"
        assert prompt(chat_template_kwargs={"mood": "glad"}) == "glad/dry"
        assert prompt() == "calm/dry"


@pytest.mark.parametrize("text", ["[]", "{", "1", "null", "[" * 10_000])
def test_variables_that_are_no_object_stop_the_start(text: str) -> None:
    with pytest.raises(ConfigError, match="default_chat_template_kwargs"):
        template_variables(ServingConfig(default_chat_template_kwargs=text))
