"""``balancer/processes/frames.py``: messages come out as they went in, however the stream is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.processes import frames
from balancer.processes.frames import FrameReader, ProtocolError, framed


@given(st.lists(st.binary(max_size=40)), st.lists(st.integers(1, 9)))
def test_messages_come_out_as_they_went_in(messages: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(framed, messages))
    reader, found = FrameReader(), []
    for size in cuts:
        found += reader.feed(stream[:size])
        stream = stream[size:]
    assert found + reader.feed(stream) == messages


@given(st.binary(max_size=20), st.data())
def test_it_says_how_much_it_waits_for(message: bytes, data: st.DataObject) -> None:
    stream, reader = framed(message), FrameReader()
    while stream:
        size = data.draw(st.integers(1, reader.wanted))
        found = reader.feed(stream[:size])
        stream = stream[size:]
        assert bool(found) == (not stream)
    assert reader.wanted == 4


def test_a_length_that_nobody_sends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME", 100)
    assert FrameReader().feed(framed(b"a" * 100)) == [b"a" * 100]
    with pytest.raises(ProtocolError):
        framed(b"a" * 101)
    with pytest.raises(ProtocolError):
        FrameReader().feed((101).to_bytes(4, "big"))
