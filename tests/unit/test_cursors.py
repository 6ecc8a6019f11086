"""Cursors and page tokens: opaque, and told from what is not theirs."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import replace

import pytest
from hivemem.v1.episode_service_pb2 import ListEpisodesRequest
from hivemem.v1.session_service_pb2 import ListSessionsRequest
from hivemem_server.domain.errors import CursorDiverged, CursorForeign, CursorMalformed, PageTokenMalformed
from hivemem_server.domain.values import Namespace, NamespaceSettings, Point
from hivemem_server.log.cursors import decode_cursor, encode_cursor
from hivemem_server.rpc.pages import page_key, page_token
from hypothesis import given
from hypothesis import strategies as st

NOW = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
NAMESPACE = Namespace(
    key=7, name="n", epoch=uuid.UUID(int=5), digest_key=b"", settings=NamespaceSettings(), floor=0, head=0,
    create_time=NOW, update_time=NOW,
)  # fmt: skip
points = st.builds(Point, position=st.integers(0, 2**63 - 1), record_id=st.uuids())


@given(points)
def test_a_cursor_brings_its_point_back(point: Point) -> None:
    assert decode_cursor(NAMESPACE, encode_cursor(NAMESPACE, point)) == point


@given(points, st.data())
def test_an_altered_cursor_is_malformed(point: Point, data: st.DataObject) -> None:
    cursor = bytearray(encode_cursor(NAMESPACE, point))
    cursor[data.draw(st.integers(0, len(cursor) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CursorMalformed):
        decode_cursor(NAMESPACE, bytes(cursor))


@given(st.binary(max_size=80))
def test_any_bytes_are_malformed(data: bytes) -> None:
    with pytest.raises(CursorMalformed):
        decode_cursor(NAMESPACE, data)


@given(points)
def test_a_cursor_of_another_namespace_or_history_is_told(point: Point) -> None:
    cursor = encode_cursor(NAMESPACE, point)
    with pytest.raises(CursorForeign):
        decode_cursor(replace(NAMESPACE, key=8), cursor)
    with pytest.raises(CursorDiverged):
        decode_cursor(replace(NAMESPACE, epoch=uuid.UUID(int=6)), cursor)


@given(st.lists(st.integers(-(2**62), 2**62) | st.text(max_size=20), min_size=1, max_size=3), st.integers(0, 1000))
def test_a_page_token_brings_its_key_back_whatever_the_page_size(key: list[int | str], size: int) -> None:
    request = ListEpisodesRequest(page_size=10)
    again = ListEpisodesRequest(page_size=size, page_token=page_token(request, key))
    assert list(page_key(again)) == key


def test_a_page_token_of_another_request_is_malformed() -> None:
    token = page_token(ListEpisodesRequest(namespace="a"), [1])
    with pytest.raises(PageTokenMalformed):
        page_key(ListEpisodesRequest(namespace="b", page_token=token))
    with pytest.raises(PageTokenMalformed):
        page_key(ListSessionsRequest(page_token=page_token(ListEpisodesRequest(), [1])))


def test_no_key_is_no_token() -> None:
    assert page_token(ListEpisodesRequest(), ()) == ""
    assert page_key(ListEpisodesRequest()) == ()
