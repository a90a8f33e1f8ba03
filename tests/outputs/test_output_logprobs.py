"""What log-probabilities call a token."""

from vocabularies import smol

from octavo.outputs.logprobs import token_text


def test_one_token_for_itself():
    assert token_text(smol(), 905) == " world"
    assert token_text(smol(), 242) == "\ufffd"
