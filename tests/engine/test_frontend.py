"""The text side of a model: paths that people give for its templates and defaults."""

import pytest

from octavo.config.engine import EngineConfig
from octavo.engine.frontend import build_frontend
from octavo.errors import ConfigError
from tests.model.files import tiny_tensors, write_model


def frontend(directory, **options):
    return build_frontend(EngineConfig.from_options(model=str(directory), skip_tokenizer_init=True, **options))


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", "directory"])
def test_a_chat_template_that_is_no_text_is_one_line(tmp_path, content):
    directory, template = write_model(tmp_path / "model", tiny_tensors()), tmp_path / "template.jinja"
    if content == "directory":
        template.mkdir()
    elif content is not None:
        template.write_bytes(content)
    with pytest.raises(ConfigError, match=r"chat_template: .*template\.jinja"):
        frontend(directory, chat_template=str(template))


@pytest.mark.parametrize("option", ["chat_template", "generation_config"])
def test_the_home_of_nobody_is_no_file(tmp_path, option):
    with pytest.raises(ConfigError, match="no file ~no-such-user-here"):
        frontend(write_model(tmp_path / "model", tiny_tensors()), **{option: "~no-such-user-here/x"})
