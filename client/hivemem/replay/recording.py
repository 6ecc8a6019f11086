"""What a recorded conversation is: turns in order, each by one agent."""

from __future__ import annotations

import math
import re
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hivemem import condense

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from hivemem._models import Attributes, AttributeValue

# Limits of the contract that a recording may go beyond.
SUMMARY_BYTES = 32 << 10
_TEXT_BYTES = 4 << 10
_LABEL_BYTES = 128
_ID_CHARACTERS = 128
_LIST_ENTRIES = 64
# What is kept of a recording's own attributes; the rest of the limit is for those that are added here.
_ATTRIBUTE_BYTES = 1 << 10
_ALL_ATTRIBUTES_BYTES = 14 << 10
_ATTRIBUTES = 56

_EPISODES = uuid.UUID("f2b3a5d4-5c51-5a0e-9d0b-6c0f2f2f4d1e")
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9\-_.:@/]+")
_NOT_STORABLE = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One thing that one agent said or did. `index` is its place in the recording, from 0."""

    index: int
    agent_id: str
    summary: str
    kind: str
    event_time: datetime | None = None
    to_agents: Sequence[str] = ()
    tags: Sequence[str] = ()
    decisions: Sequence[str] = ()
    open_threads: Sequence[str] = ()
    attributes: Attributes = field(default_factory=dict)

    @property
    def condensed(self) -> bool:
        """Whether its text was too long to be kept whole."""
        return "original_bytes" in self.attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One recorded conversation. `digest` is that of the file's bytes, `name` the file's name without its suffix."""

    name: str
    digest: str
    goal: str
    turns: Sequence[Turn]

    @property
    def agents(self) -> list[str]:
        """Its agents, in the order of their first turns."""
        return list(dict.fromkeys(turn.agent_id for turn in self.turns))

    @property
    def session_id(self) -> str:
        """The session that it goes to if none is given: the same one every time."""
        return f"{identifier(self.name)[:100] or 'recording'}-{self.digest[:8]}"

    def episode_id(self, session_id: str, index: int) -> str:
        """The id of a turn's episode in a session: the same one every time, so that nothing is stored twice."""
        return str(uuid.uuid5(_EPISODES, f"{self.digest}/{session_id}/{index}"))


class Recorder:
    """Gathers turns in order and makes their parts keep to the limits of the contract."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._ids: dict[str, str] = {}

    def add(self, agent: str, text: str, *, kind: str = "message", **parts: Any) -> None:
        """Adds a turn; `parts` are those of Turn. What had to give way is told by the attributes of the turn.

        `original_bytes`: the text was condensed, and this was its length. `empty`: there was no text.
        """
        summary, notes = _summary(text)
        self.turns.append(
            Turn(
                index=len(self.turns),
                agent_id=self.agent_id(agent),
                summary=summary,
                kind=identifier(kind) or "message",
                event_time=parts.get("event_time"),
                to_agents=[self.agent_id(name) for name in dict.fromkeys(parts.get("to_agents", ()))][:_LIST_ENTRIES],
                tags=_texts(dict.fromkeys(parts.get("tags", ())), _LABEL_BYTES),
                decisions=_texts(parts.get("decisions", ()), _TEXT_BYTES),
                open_threads=_texts(parts.get("open_threads", ()), _TEXT_BYTES),
                attributes={**_attributes(parts.get("attributes", {})), **notes, "index": len(self.turns)},
            )
        )

    def agent_id(self, name: str) -> str:
        """The id for a name: its own for every name, however much they look alike."""
        if name not in self._ids:
            wanted, taken = identifier(name)[: _ID_CHARACTERS - 4] or "agent", set(self._ids.values())
            others = (f"{wanted}-{number}" for number in range(2, len(taken) + 3))
            self._ids[name] = wanted if wanted not in taken else next(one for one in others if one not in taken)
        return self._ids[name]


def identifier(name: str) -> str:
    """A name in the characters of ids, `Orchestrator-thought` for `Orchestrator (thought)`; empty if none is left."""
    return _NOT_IN_AN_ID.sub("-", name.replace("->", " to ")).strip("-")[:_ID_CHARACTERS]


def storable(text: str) -> str:
    """Text without what no database stores: NUL characters and lone surrogates become `�`."""
    return _NOT_STORABLE.sub("�", text)


def _summary(text: str) -> tuple[str, dict[str, AttributeValue]]:
    """The text of a turn, and what was done to it."""
    whole = storable(text)
    if not whole.strip():
        return "(empty)", {"empty": True}
    size = len(whole.encode())
    if size <= SUMMARY_BYTES:
        return whole, {}
    return _condensed(whole), {"original_bytes": size}


def _condensed(text: str) -> str:
    """What a text too long says; of one that is not made of sentences, its beginning."""
    condensed = condense.summarise(text, most_bytes=SUMMARY_BYTES)
    return condensed if len(condensed) > SUMMARY_BYTES // 4 else condense.cut(text, SUMMARY_BYTES)


def _texts(values: Any, most_bytes: int) -> tuple[str, ...]:
    return tuple(condense.cut(storable(value), most_bytes) for value in values if value.strip())[:_LIST_ENTRIES]


def _attributes(given: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """As many of the attributes as fit."""
    kept: dict[str, AttributeValue] = {}
    room = _ALL_ATTRIBUTES_BYTES
    for key, value in list(given.items())[:_ATTRIBUTES]:
        name, short = condense.cut(storable(key), _LABEL_BYTES), _attribute(value)
        room -= len(name.encode()) + len(str(short).encode())
        if name.strip() and room >= 0:
            kept[name] = short
    return kept


def _attribute(value: AttributeValue) -> AttributeValue:
    """A value that the contract can hold; a number that is none there becomes text."""
    if isinstance(value, str):
        return condense.cut(storable(value), _ATTRIBUTE_BYTES)
    fits = math.isfinite(value) and (isinstance(value, float) or -(1 << 63) <= value < 1 << 63)
    return value if fits else str(value)
