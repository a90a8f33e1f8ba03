"""What log-probabilities call a token."""

from octavo.outputs.logprobs import token_text
from tests.text.vocabularies import smol


def test_one_token_for_itself():
    assert token_text(smol(), 905) == " world"
    assert token_text(smol(), 242) == "\ufffd"
