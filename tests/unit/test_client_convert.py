from __future__ import annotations

import dataclasses
import enum
from datetime import UTC, datetime, timedelta, timezone

import hivemem
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hivemem import _convert
from hivemem.v1 import episode_service_pb2, search_service_pb2, session_service_pb2, thread_service_pb2, types_pb2

NOON = datetime(2026, 5, 4, 12, 0, 0, 123_456, tzinfo=UTC)


@pytest.mark.parametrize(
    "moment",
    [
        NOON,
        NOON.astimezone(timezone(timedelta(hours=-9))),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ],
)
def test_times_come_back_as_they_went(moment: datetime) -> None:
    message = _convert.time_message(moment)
    assert message is not None
    assert 0 <= message.nanos < 10**9
    assert _convert.time(message) == moment
    assert _convert.time(message).tzinfo is UTC


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        _convert.time_message(NOON.replace(tzinfo=None))


def test_spans_may_be_seconds_or_timedeltas() -> None:
    for span in (1.5, timedelta(seconds=1.5)):
        message = _convert.duration_message(span)
        assert message is not None
        assert _convert.duration(message) == timedelta(seconds=1.5)


@pytest.mark.parametrize("value", ["text", "", 0, 1, -(2**63), 2**63 - 1, 0.5, 1.0, True, False])
def test_attributes_keep_their_types(value: hivemem.AttributeValue) -> None:
    message = types_pb2.Episode(attributes={"key": _convert.attribute_message(value)})
    (back,) = _convert.attributes(message.attributes).values()
    assert (back, type(back)) == (value, type(value))


def test_an_attribute_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="str, int, float or bool"):
        _convert.attribute_message(None)  # type: ignore[arg-type]


def test_an_attribute_that_only_a_newer_server_knows_is_left_out() -> None:
    message = types_pb2.Episode(attributes={"new": types_pb2.AttributeValue()})
    assert _convert.attributes(message.attributes) == {}


def test_plain_strings_stand_for_decisions_threads_and_references() -> None:
    short = hivemem.NewEpisode(
        summary="s", decisions=["d"], open_threads=["t"], resolves=["r"], drops=["p"], supersedes_threads=["q"]
    )
    long = dataclasses.replace(
        short,
        decisions=[hivemem.NewDecision(text="d")],
        open_threads=[hivemem.NewThread(text="t")],
        resolves=[hivemem.ThreadReference(thread_id="r")],
        drops=[hivemem.ThreadReference(thread_id="p")],
        supersedes_threads=[hivemem.ThreadReference(thread_id="q")],
    )
    assert _convert.new_episode_message(short) == _convert.new_episode_message(long)


@pytest.mark.parametrize("name", ["tags", "decisions", "open_threads", "resolves", "drops", "to_agents"])
def test_one_string_in_place_of_a_list_is_refused(name: str) -> None:
    episode = dataclasses.replace(hivemem.NewEpisode(summary="s"), **{name: "oops"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=f"{name} takes a list"):
        _convert.new_episode_message(episode)


def test_every_field_of_a_new_episode_is_sent() -> None:
    message = _convert.new_episode_message(
        hivemem.NewEpisode(
            episode_id="e",
            turn=3,
            summary="s",
            kind="finding",
            tags=["a"],
            attributes={"n": 1},
            event_time=NOON,
            decisions=[hivemem.NewDecision(text="d", decision_id="d1", supersedes=["d0"])],
            open_threads=[hivemem.NewThread(text="t", thread_id="t1", priority=2, tags=["x"], plan_id="p", step=4)],
            resolves=[hivemem.ThreadReference(thread_id="r", fence=9)],
            drops=["p"],
            supersedes_threads=["q"],
            to_agents=["writer"],
        )
    )
    assert all_set(message)
    assert all_set(message.decisions[0])
    assert all_set(message.open_threads[0])
    assert all_set(message.resolves[0])


def test_every_field_of_an_episode_is_read() -> None:
    stamp = Timestamp(seconds=1, nanos=2000)
    message = types_pb2.Episode(
        episode_id="e",
        position=1,
        session_id="s",
        agent_id="a",
        revision=2,
        turn=3,
        summary="text",
        kind="note",
        tags=["x"],
        attributes={"n": types_pb2.AttributeValue(int_value=1)},
        event_time=stamp,
        commit_time=stamp,
        decisions=[types_pb2.Decision(decision_id="d", text="t", supersedes=["c"])],
        open_threads=[types_pb2.OpenThread(thread_id="t", text="t", priority=1, tags=["y"], plan_id="p", step=2)],
        resolves=[types_pb2.ThreadReference(thread_id="r", fence=1)],
        drops=[types_pb2.ThreadReference(thread_id="r", fence=1)],
        supersedes_threads=[types_pb2.ThreadReference(thread_id="r", fence=1)],
        to_agents=["b"],
    )
    assert all_set(message)
    episode = _convert.episode(message)
    for found in (episode, episode.decisions[0], episode.open_threads[0], episode.resolves[0]):
        assert all(getattr(found, field.name) for field in dataclasses.fields(found))


def test_what_is_not_set_is_none_or_empty() -> None:
    episode = _convert.episode(types_pb2.Episode())
    assert (episode.turn, episode.event_time, episode.tags, episode.attributes) == (None, None, (), {})
    thread = _convert.thread(thread_service_pb2.Thread())
    assert (thread.plan_id, thread.claim, thread.end_time, thread.user_id) == (None, None, None, None)
    session = _convert.session_info(session_service_pb2.Session())
    assert (session.user_id, session.close_time, session.last_position) == (None, None, 0)
    resumed = _convert.resumed(session_service_pb2.ResumeSessionResponse())
    assert (resumed.session, resumed.away, resumed.messages) == (None, None, ())


def test_every_field_of_a_filter_is_sent() -> None:
    span = hivemem.TimeRange(start_time=NOON, end_time=NOON)
    message = _convert.filter_message(
        hivemem.Filter(
            session_ids=["s"],
            agent_ids=["a"],
            exclude_agent_ids=["b"],
            user_ids=["u"],
            kinds=["k"],
            any_tags=["t"],
            all_tags=["t"],
            to_agents=["c"],
            attributes=[hivemem.AttributePredicate(key="n", operator=hivemem.AttributeOperator.LESS, values=[3])],
            commit_time=span,
            event_time=span,
            positions=hivemem.PositionRange(after=1, through=2),
        )
    )
    assert all_set(message)
    assert message.attributes[0].operator == types_pb2.ATTRIBUTE_OPERATOR_LESS


def test_beliefs_and_starts_are_one_of_the_kinds_of_the_contract() -> None:
    for expect, name in (
        (hivemem.NoStream(), "no_stream"),
        (hivemem.StreamExists(), "stream_exists"),
        (hivemem.Revision(3), "revision"),
    ):
        message = _convert.expectation_message(expect)
        assert message is not None
        assert message.WhichOneof("state") == name
    for after, point in (
        (hivemem.Start.BEGINNING, "beginning"),
        (hivemem.Start.NOW, "now"),
        (b"cursor", "cursor"),
        (0, "position"),
        (NOON, "time"),
    ):
        assert _convert.start_message(after).WhichOneof("point") == point
    with pytest.raises(TypeError, match="cursor"):
        _convert.start_message("latest")  # type: ignore[arg-type]


@pytest.mark.parametrize("words", [value for value in vars(hivemem).values() if isinstance(value, enum.EnumMeta)])
def test_the_words_of_an_enum_are_those_of_the_contract(words: type[enum.Enum]) -> None:
    tables = {table._words: table for table in vars(_convert).values() if isinstance(table, _convert._Words)}
    if words is hivemem.Start:
        return
    numbers = tables[words]._numbers
    assert {word.value for word in words} - {"unknown"} == set(numbers) - {"unspecified"}


def test_a_value_that_only_a_newer_server_knows_is_unknown() -> None:
    response = search_service_pb2.SearchEpisodesResponse()
    response.shortfalls.append(99)  # type: ignore[arg-type]
    assert _convert.search_result(response).shortfalls == (hivemem.Shortfall.UNKNOWN,)


def test_a_record_that_only_a_newer_server_knows_is_skipped() -> None:
    assert _convert.log_record(types_pb2.LogRecord(position=1)) is None


def test_a_search_result_is_the_sequence_of_its_hits() -> None:
    hits = [search_service_pb2.SearchHit(score=score) for score in (0.9, 0.5)]
    result = _convert.search_result(search_service_pb2.SearchEpisodesResponse(hits=hits, model="m"))
    assert [hit.score for hit in result] == [0.9, 0.5]
    assert (len(result), result[1].score, len(result[:1]), result.model) == (2, 0.5, 1, "m")
    assert not _convert.search_result(search_service_pb2.SearchEpisodesResponse())


def test_each_of_many_appended_episodes_says_whether_it_was_there() -> None:
    stored = [episode_service_pb2.AppendedEpisode(position=position) for position in (1, 2)]
    response = episode_service_pb2.AppendEpisodesResponse(episodes=stored, deduplicated=True)
    assert [(one.position, one.deduplicated) for one in _convert.appended(response)] == [(1, True), (2, True)]


def test_messages_are_dicts_for_chat_models() -> None:
    message = session_service_pb2.ResumeMessage(role=session_service_pb2.MESSAGE_ROLE_SYSTEM, content="go on")
    resumed = _convert.resumed(session_service_pb2.ResumeSessionResponse(messages=[message]))
    assert [one.as_dict() for one in resumed.messages] == [{"role": "system", "content": "go on"}]


def all_set(message: object) -> bool:
    descriptor, found = message.DESCRIPTOR, {field.name for field, _ in message.ListFields()}  # type: ignore[attr-defined]
    return {field.name for field in descriptor.fields} == found
