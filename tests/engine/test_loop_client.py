"""What every engine client promises: the one in this process, and the fake that others are tested with."""

import pytest

from octavo.engine.client import EngineInfo
from octavo.engine.local_client import LocalClient
from octavo.errors import EngineDeadError, OverloadedError
from octavo.flow.result import FinishReason
from tests.engine.fake_client import Answer, ByteTokenizer, FakeEngineClient
from tests.fakes import request
from tests.scheduling.driver import Engine


def local():
    engine = Engine(max_num_seqs=4)
    return LocalClient(EngineInfo(64, 64, 4, 4, 32, 50, 0.0), engine.loop)


@pytest.fixture(params=[local, FakeEngineClient], ids=["local", "fake"])
def client(request):
    return request.param()


def drain(client):
    outputs = []
    while got := client.receive():
        outputs += got
    return outputs


def test_every_stream_ends_once_and_nothing_follows(client):
    client.submit(request("a", [1, 2, 3], 3, n=2))
    client.submit(request("b", [4, 5], 2))
    outputs = drain(client)
    ends = [(output.request_id, output.index) for output in outputs if output.finish_reason]
    assert sorted(ends) == [("a", 0), ("a", 1), ("b", 0)]
    tokens = dict.fromkeys(ends, 0)
    for output in outputs:
        tokens[output.request_id, output.index] += len(output.token_ids)
    assert tokens == {("a", 0): 3, ("a", 1): 3, ("b", 0): 2}
    assert client.receive(0.0) == []
    assert client.stats().generation_tokens == 8
    assert client.stats().running == 0


def test_receive_without_patience_runs_one_step(client):
    client.submit(request("a", [1, 2, 3], 3))
    for _ in range(3):
        (output,) = client.receive(0.0)
        assert len(output.token_ids) == 1
    assert output.finish_reason is FinishReason.LENGTH


def test_cancel_ends_every_stream_and_ignores_the_unknown(client):
    client.submit(request("a", [1, 2, 3], 3, n=2))
    client.receive(0.0)
    client.cancel(["nobody", "a"])
    client.cancel(["a"])
    ends = [output for output in drain(client) if output.finish_reason]
    assert [(end.index, end.finish_reason) for end in ends] == [(0, FinishReason.ABORT), (1, FinishReason.ABORT)]
    assert all(end.times is not None for end in ends)


def test_pause_and_resume(client):
    client.submit(request("a", [1, 2, 3], 3))
    client.receive(0.0)
    client.pause("abort")
    assert [output.finish_reason for output in drain(client)] == [FinishReason.ABORT]
    assert client.stats().paused
    assert client.stats().under_way == 0
    client.resume()
    assert not client.stats().paused
    client.submit(request("b", [1, 2, 3], 3))
    assert drain(client)[-1].finish_reason is FinishReason.LENGTH


def test_a_paused_engine_gives_the_caller_back_control():
    client = local()
    client.pause()
    client.submit(request("a", [1, 2, 3], 3))
    assert client.receive() == []
    assert client.drain() == []
    client.resume()
    assert drain(client)[-1].finish_reason is FinishReason.LENGTH


def test_drain_brings_what_was_begun_to_its_end():
    client = local()
    for number in range(6):
        client.submit(request(str(number), [number], 3))
    client.receive(0.0)
    ends = [output.request_id for output in client.drain() if output.finish_reason]
    assert sorted(ends) == ["0", "1", "2", "3"]
    assert client.drain(0.0) == []
    client.resume()
    assert {output.request_id for output in drain(client)} == {"4", "5"}


def test_reset_and_close(client):
    assert client.reset_prefix_cache()
    client.close()


def test_the_fake_follows_its_script():
    forever = FakeEngineClient(lambda asked, index: Answer([7, 8], None))
    forever.submit(request("a", [1]))
    assert [output.token_ids for output in drain(forever)] == [(7,), (8,)]
    forever.cancel(["a"])
    assert drain(forever)[0].finish_reason is FinishReason.ABORT
    forever.refuse = OverloadedError("full", 3.0)
    with pytest.raises(OverloadedError):
        forever.submit(request("b", [1]))
    forever.dead = True
    with pytest.raises(EngineDeadError):
        forever.receive()


def test_the_byte_tokenizer_gives_back_what_it_got():
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode("Grüße 🙂")
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids) == "Grüße 🙂"
    assert tokenizer.decode(ids[:-1]).endswith("\ufffd")
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == "Grüße 🙂"
    assert all(tokenizer.id_of(tokenizer.token(token)) == token for token in range(258))
