"""Files that hold recorded conversations, and how they become turns.

`jsonl`: a JSON object on each line.

    {"goal": "Which plan fits a team of five?"}
    {"agent": "researcher", "text": "Two vendors changed prices.", "time": "2025-03-01T09:30:00Z"}
    {"agent": "writer", "text": "Noted.", "kind": "decision", "decisions": ["Quote the price of March."]}

`agent` and `text` are needed; `time` (ISO 8601, or seconds since 1970), `kind`, `to` (one agent or a list), `tags`,
`decisions`, `open_threads` and `attributes` (an object) are optional. Any other key with a text, a number or a truth
value is kept as an attribute. The first line may give the goal of the session instead of a turn.

`openai`: a list of chat messages, alone, in an object under `messages`, or one on each line: `role`, `content` (text
or parts), `name`, `tool_calls`, `tool_call_id`. An agent is called by the name of its messages, or else by their role;
the answer of a tool comes from an agent with the name of the tool.

`who-when`: logs of multi-agent runs, an object with a `history` of messages (`content`, and `role` or `name`) and the
`question` that the run was about. An agent is called by the name of its messages, or else by their role.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from hivemem.condense import cut
from hivemem.replay.recording import Recorder, Recording, storable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hivemem._models import AttributeValue

FORMATS = ("auto", "jsonl", "openai", "who-when")
# A recording is read as a whole.
_FILE_BYTES = 256 << 20
_GOAL_BYTES = 2 << 10
_MILLISECONDS = 100_000_000_000  # numbers from here on are milliseconds, not seconds
_ADDRESSEE = re.compile(r"\(\s*->\s*(.+?)\s*\)\s*$")

_Object: TypeAlias = dict[str, Any]


class BadRecording(ValueError):
    """A file that cannot be replayed; the message names the file, the place in it, and what is wrong."""


def read(path: Path, file_format: str = "auto") -> Recording:
    """The conversation in a file; `file_format` is one of FORMATS. Raises BadRecording."""
    content = _content(path)
    found = _found(path, _decoded(path, content))
    add = _READERS[found.guess if file_format == "auto" else file_format]
    recorder, calls = Recorder(), _Calls()
    for record in found.records:
        try:
            add(recorder, record, calls)
        except BadRecording as error:
            raise BadRecording(f"{path}: {record.place}: {error}") from None
    if not recorder.turns:
        raise BadRecording(f"{path}: there is no turn in it")
    goal = cut(storable(found.goal), _GOAL_BYTES)
    return Recording(name=path.stem, digest=hashlib.sha256(content).hexdigest(), goal=goal, turns=tuple(recorder.turns))


# ---- from the file to its records --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """One object of a file, and where it stands."""

    place: str
    value: _Object


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What a file holds: its records, what they are about, and the format that they look like."""

    records: Sequence[_Record]
    goal: str = ""
    guess: str


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > _FILE_BYTES:
            raise BadRecording(f"{path}: has more than {_FILE_BYTES >> 20} MiB: split it")
        return path.read_bytes()
    except OSError as error:
        raise BadRecording(f"{path}: {error.strerror or error}") from None


def _decoded(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadRecording(f"{path}: line {line}: is not UTF-8 text") from None


def _found(path: Path, text: str) -> _Found:
    """The records of a document, or else of lines."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        return _in_lines(path, text, whole=error)
    if isinstance(document, list):
        return _Found(records=_listed(path, document, "message"), guess="openai")
    if not isinstance(document, dict):
        raise BadRecording(f"{path}: line 1: is neither an object nor a list")
    if isinstance(document.get("history"), list):
        records = _listed(path, document["history"], "history")
        return _Found(records=records, goal=_string(document.get("question")), guess="who-when")
    if isinstance(document.get("messages"), list):
        return _Found(records=_listed(path, document["messages"], "messages"), guess="openai")
    if "\n" in text.strip():
        raise BadRecording(f"{path}: line 1: the object has neither `history` nor `messages`")
    return _in_lines(path, text, whole=None)


def _listed(path: Path, values: list[Any], name: str) -> list[_Record]:
    for index, value in enumerate(values):
        if not isinstance(value, dict):
            raise BadRecording(f"{path}: {name}[{index}]: is not an object")
    return [_Record(place=f"{name}[{index}]", value=value) for index, value in enumerate(values)]


def _in_lines(path: Path, text: str, *, whole: Exception | None) -> _Found:
    """The records of a file with one on each line; `whole` is why it is not one document."""
    numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not numbered:
        raise BadRecording(f"{path}: is empty")
    records: list[_Record] = []
    for number, line in numbered:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _not_json(path, number, error if records else whole or error, first=not records) from None
        if not isinstance(value, dict):
            raise BadRecording(f"{path}: line {number}: is not an object")
        records.append(_Record(place=f"line {number}", value=value))
    goal = ""
    if "goal" in records[0].value and not {"agent", "role"} & records[0].value.keys():
        goal = _string(records.pop(0).value["goal"])
    spoken = records and "role" in records[0].value and "agent" not in records[0].value
    return _Found(records=records, goal=goal, guess="openai" if spoken else "jsonl")


def _not_json(path: Path, number: int, error: Exception, *, first: bool) -> BadRecording:
    """Why a line is no JSON; if it is the first one the file was meant to be one document."""
    if isinstance(error, json.JSONDecodeError):
        line = error.lineno if first else number
        return BadRecording(f"{path}: line {line}: is not JSON ({error.msg} at column {error.colno})")
    return BadRecording(f"{path}: line {number}: is not JSON that can be read ({type(error).__name__})")


# ---- from records to turns ---------------------------------------------------------------------------------------


class _Calls(dict[str, str]):
    """Names of the tools that were called, by the id of the call."""


_KNOWN = {"agent", "text", "time", "kind", "to", "tags", "decisions", "open_threads", "attributes"}


def _add_line(recorder: Recorder, record: _Record, _calls: _Calls) -> None:
    """Adds a turn of the format `jsonl`."""
    value = record.value
    own = value.get("attributes", {})
    if not isinstance(own, dict):
        raise BadRecording("`attributes` is not an object")
    recorder.add(
        _needed(value, "agent"),
        _needed(value, "text", empty=True),
        kind=_string(value.get("kind")) or "message",
        event_time=_time(value.get("time")),
        to_agents=_strings(value, "to"),
        tags=_strings(value, "tags"),
        decisions=_strings(value, "decisions"),
        open_threads=_strings(value, "open_threads"),
        attributes=_scalars({**{key: value[key] for key in value.keys() - _KNOWN}, **own}),
    )


def _add_message(recorder: Recorder, record: _Record, calls: _Calls) -> None:
    """Adds a turn of the format `openai`."""
    value = record.value
    role = _needed(value, "role")
    called = _tool_calls(value)
    calls.update({_string(call.get("id")): function for call, function, _ in called})
    name, tool = _string(value.get("name")), _string(value.get("tool_call_id"))
    lines = [_text_of(value.get("content")), _string(value.get("refusal"))]
    lines += [f"calls {function}({arguments})" for _, function, arguments in called]
    recorder.add(
        name or calls.get(tool) or role,
        "\n".join(line for line in lines if line),
        kind="tool_result" if role in ("tool", "function") else "tool_call" if called else "message",
        event_time=_time_if_any(value),
        attributes=_present(role=role, name=name, tool_call_id=tool),
    )


def _add_step(recorder: Recorder, record: _Record, _calls: _Calls) -> None:
    """Adds a turn of the format `who-when`."""
    value = record.value
    role = _string(value.get("role"))
    name = _string(value.get("name")) or role
    if not name:
        raise BadRecording("has neither `name` nor `role`")
    if "content" not in value:
        raise BadRecording("has no `content`")
    addressee = _ADDRESSEE.search(name)
    recorder.add(
        name,
        _text_of(value["content"]),
        event_time=_time_if_any(value),
        to_agents=[addressee[1]] if addressee else [],
        attributes=_present(role=role or name, name=_string(value.get("name"))),
    )


_READERS: Mapping[str, Callable[[Recorder, _Record, _Calls], None]] = {
    "jsonl": _add_line,
    "openai": _add_message,
    "who-when": _add_step,
}


def _tool_calls(message: _Object) -> list[tuple[_Object, str, str]]:
    """The calls of a message, each with the name of the tool and its arguments."""
    calls = message.get("tool_calls") or []
    if isinstance(message.get("function_call"), dict):
        calls = [*calls, {"function": message["function_call"]}]
    found = []
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise BadRecording("`tool_calls` holds something that is no call")
        arguments = function.get("arguments", function.get("input", ""))
        found.append((call, _string(function.get("name")) or "tool", _string(arguments) or json.dumps(arguments)))
    return found


def _text_of(content: Any) -> str:
    """The text of a message, given as such or in parts; a part that is no text is named."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    parts = content if isinstance(content, list) else [content]
    return "\n".join(_text_of_part(part) for part in parts)


def _text_of_part(part: Any) -> str:
    if isinstance(part, dict):
        text = part.get("text", part.get("refusal"))
        return text if isinstance(text, str) else f"[{_string(part.get('type')) or 'object'}]"
    return part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)


# ---- values ------------------------------------------------------------------------------------------------------


def _string(value: Any) -> str:
    """The value if it is text, else nothing."""
    return value if isinstance(value, str) else ""


def _needed(value: _Object, key: str, *, empty: bool = False) -> str:
    found = value.get(key)
    if not isinstance(found, str) or not (found.strip() or empty):
        raise BadRecording(f"needs `{key}`, a text" + ("" if empty else " that is not empty"))
    return found


def _strings(value: _Object, key: str) -> list[str]:
    """A list of texts; one text alone is a list of one."""
    found = value.get(key) or []
    if isinstance(found, str):
        return [found]
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise BadRecording(f"`{key}` is not a list of texts")
    return found


def _present(**values: str) -> dict[str, AttributeValue]:
    return {key: value for key, value in values.items() if value}


def _scalars(values: _Object) -> dict[str, AttributeValue]:
    return {key: values[key] for key in sorted(values) if isinstance(values[key], str | int | float)}


def _time(value: Any) -> datetime | None:
    """A time as ISO 8601 or seconds since 1970; without a zone it is UTC."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return datetime.fromtimestamp(value / 1000 if value >= _MILLISECONDS else value, UTC)
    except (ValueError, TypeError, OverflowError, OSError):
        raise BadRecording(f"`time` is {value!r}: give ISO 8601, or seconds since 1970") from None


def _time_if_any(value: _Object) -> datetime | None:
    """The time of a message, if it has one that can be read."""
    for key in ("timestamp", "created_at", "created", "time"):
        try:
            if moment := _time(value.get(key)):
                return moment
        except BadRecording:
            continue
    return None
