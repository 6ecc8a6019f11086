"""How files with recorded conversations become turns, and what is said of those that do not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hivemem.replay import formats
from hivemem.replay.formats import BadRecording
from hivemem.replay.recording import SUMMARY_BYTES, Recorder, Recording, identifier


def recording(folder: Path, content: Any, file_format: str = "auto", *, name: str = "talk.json") -> Recording:
    file = folder / name
    if isinstance(content, list) and name.endswith(".jsonl"):
        content = "\n".join(json.dumps(line) for line in content)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return formats.read(file, file_format)


def test_lines_become_turns_with_all_their_parts(tmp_path: Path) -> None:
    found = recording(
        tmp_path,
        [
            {"goal": "Which plan fits?"},
            {
                "agent": "researcher", "text": "Two vendors changed prices.", "time": "2025-03-01T09:30:00Z",
                "kind": "finding", "to": "writer", "tags": ["pricing"], "decisions": ["Quote March."],
                "open_threads": ["Ask the third."], "attributes": {"source": "web"}, "cost": 0.5, "nested": {"a": 1},
            },
            {"agent": "writer", "text": "Noted.", "time": 1740821460},
        ],
        name="talk.jsonl",
    )  # fmt: skip

    first, second = found.turns
    assert (found.goal, found.agents, [turn.index for turn in found.turns]) == (
        "Which plan fits?", ["researcher", "writer"], [0, 1],
    )  # fmt: skip
    assert (first.kind, first.to_agents, first.tags) == ("finding", ["writer"], ("pricing",))
    assert (first.decisions, first.open_threads) == (("Quote March.",), ("Ask the third.",))
    assert first.attributes == {"source": "web", "cost": 0.5, "index": 0}
    assert first.event_time == datetime(2025, 3, 1, 9, 30, tzinfo=UTC)
    assert second.event_time == datetime(2025, 3, 1, 9, 31, tzinfo=UTC)


def test_chat_messages_become_turns_of_their_roles_names_and_tools(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"q": "x"}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "See this."}, {"type": "image_url", "image_url": {}}]},
        {"role": "assistant", "name": "planner", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Found."},
        {"role": "assistant", "name": "planner", "content": "Done.", "timestamp": "2025-01-01T00:00:00+02:00"},
    ]

    as_list = recording(tmp_path, messages)
    in_object = recording(tmp_path, {"model": "some", "messages": messages})
    on_lines = recording(tmp_path, messages, name="talk.jsonl")

    assert as_list.turns == in_object.turns == on_lines.turns
    assert [turn.agent_id for turn in as_list.turns] == ["system", "user", "planner", "look_up", "planner"]
    assert [turn.summary for turn in as_list.turns] == [
        "Be brief.", "See this.\n[image_url]", 'calls look_up({"q": "x"})', "Found.", "Done.",
    ]  # fmt: skip
    assert [turn.kind for turn in as_list.turns] == ["message", "message", "tool_call", "tool_result", "message"]
    assert as_list.turns[3].attributes == {"role": "tool", "tool_call_id": "c1", "index": 3}
    assert as_list.turns[4].event_time == datetime(2024, 12, 31, 22, tzinfo=UTC)


def test_run_logs_become_turns_of_their_names_or_roles(tmp_path: Path) -> None:
    found = recording(
        tmp_path,
        {
            "question": "How many?",
            "ground_truth": "7",
            "history": [
                {"content": "How many?", "role": "human"},
                {"content": "Plan it.", "role": "Lead (thought)"},
                {"content": "Look it up.", "role": "Lead (-> Surfer)"},
                {"content": "", "role": "Surfer"},
                {"content": "exit 0", "role": "user", "name": "Terminal"},
            ],
        },
    )

    assert found.goal == "How many?"
    assert found.agents == ["human", "Lead-thought", "Lead-to-Surfer", "Surfer", "Terminal"]
    assert found.turns[1].attributes == {"role": "Lead (thought)", "index": 1}
    assert found.turns[2].to_agents == ["Surfer"]
    assert (found.turns[3].summary, found.turns[3].attributes["empty"]) == ("(empty)", True)
    assert found.turns[4].attributes == {"role": "user", "name": "Terminal", "index": 4}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "is empty"),
        ("{", "line 1: is not JSON"),
        ('{"agent": "a", "text": "b"}\n\n{"agent": "a", ', "line 3: is not JSON"),
        ('{"agent": "a", "text": "b"}\n[]', "line 2: is not an object"),
        ('{"agent": "a"}', "line 1: needs `text`"),
        ('{"agent": " ", "text": "b"}', "line 1: needs `agent`"),
        ('{"agent": "a", "text": "b", "time": "noon"}', "line 1: `time` is 'noon'"),
        ('{"agent": "a", "text": "b", "tags": [1]}', "line 1: `tags` is not a list of texts"),
        ('{"goal": "nothing more"}', "there is no turn in it"),
        ('{\n "history": [{"content": "x"}]\n}', "history[0]: has neither `name` nor `role`"),
        ('{\n "history": [{"role": "x"}]\n}', "history[0]: has no `content`"),
        ('{\n "history": [7]\n}', "history[0]: is not an object"),
        ('{\n "messages": [{"content": "x"}]\n}', "messages[0]: needs `role`"),
        ('[\n {"role": "user",\n  "content" "x"}\n]', "line 3: is not JSON"),
        ('{\n "other": 1\n}', "has neither `history` nor `messages`"),
        ("[" * 100_000, "is not JSON that can be read"),
        ("12", "is neither an object nor a list"),
    ],
)
def test_a_bad_file_is_named_with_the_place_and_the_reason(tmp_path: Path, content: str, complaint: str) -> None:
    with pytest.raises(BadRecording) as raised:
        recording(tmp_path, content)

    assert str(raised.value).startswith(f"{tmp_path / 'talk.json'}: ")
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_no_text_or_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b'{"agent": "a",\n "text": "\xff"}')

    with pytest.raises(BadRecording, match="line 2: is not UTF-8 text"):
        formats.read(tmp_path / "binary")
    with pytest.raises(BadRecording, match="missing: No such file or directory"):
        formats.read(tmp_path / "missing")


def test_what_cannot_be_stored_gives_way_and_is_told() -> None:
    recorder = Recorder()
    recorder.add("a", "A sentence that is said once more and again. " * 2 + "word " * SUMMARY_BYTES)
    recorder.add("a", "nul \0 and half a character \ud83d", attributes={"big": 1 << 70, "long": "x" * 5_000, "": 1})
    recorder.add("a", "many", attributes={f"key{number}": "x" * 1_000 for number in range(60)})

    long, odd, many = recorder.turns
    assert long.condensed
    assert len(long.summary.encode()) <= SUMMARY_BYTES < long.attributes["original_bytes"]  # type: ignore[operator]
    assert odd.summary == "nul � and half a character �"
    assert odd.attributes["big"] == str(1 << 70)
    assert len(str(odd.attributes["long"]).encode()) <= 1_024
    assert "" not in odd.attributes
    assert sum(len(key) + len(str(value)) for key, value in many.attributes.items()) < 15_000


def test_names_that_look_alike_stay_apart_and_an_agent_keeps_its_id() -> None:
    recorder = Recorder()

    ids = [recorder.agent_id(name) for name in ("Lead (A)", "Lead-A", "研究", "作家", "x" * 300, "Lead (A)")]

    assert ids == ["Lead-A", "Lead-A-2", "agent", "agent-2", "x" * 124, "Lead-A"]
    assert identifier("Lead (-> Web Surfer)") == "Lead-to-Web-Surfer"


def test_ids_of_episodes_depend_on_the_file_the_session_and_the_place(tmp_path: Path) -> None:
    first = recording(tmp_path, [{"agent": "a", "text": "x"}], name="a.jsonl")
    again = recording(tmp_path, [{"agent": "a", "text": "x"}], name="b.jsonl")
    other = recording(tmp_path, [{"agent": "a", "text": "y"}], name="c.jsonl")

    assert first.episode_id("s", 0) == again.episode_id("s", 0)
    assert len({first.episode_id("s", 0), first.episode_id("s", 1), first.episode_id("t", 0)}) == 3
    assert other.episode_id("s", 0) != first.episode_id("s", 0)
    assert first.session_id.startswith("a-")
