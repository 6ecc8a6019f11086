"""The digest of an episode never changes under one version: stored ones are compared with it for ever."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from uuid import UUID

import pytest
from hivemem_server.domain.appends import episode_digest
from hivemem_server.domain.values import Decision, NewEpisode, OpenThread, ThreadReference

KEY = b"k" * 32
SMALL = NewEpisode(episode_id=UUID("01977420-dc01-7000-97b4-3a0965330001"), summary="s")
FULL = NewEpisode(
    episode_id=SMALL.episode_id,
    summary="Grüße ✓ \ud800",
    kind="note",
    turn=7,
    tags=("b", "a"),
    attributes={"z": 1.5, "a": True, "s": "x", "n": 2**60},
    event_time=dt.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=dt.UTC),
    decisions=(Decision(decision_id="d", text="t", supersedes=("x", "y")),),
    open_threads=(OpenThread(thread_id="t", text="u", priority=-3, tags=("q",), plan_id="p", step=4),),
    resolves=(ThreadReference(thread_id="r", fence=9),),
    drops=(ThreadReference(thread_id="dr"),),
    supersedes_threads=(ThreadReference(thread_id="su", fence=1),),
    to_agents=("w",),
)


@pytest.mark.parametrize(
    ("episode", "digest"),
    [
        (SMALL, "01b2b4b0b5e3c96972ec1cef453596c1a645ef170deea7a7c1a767254e2ba57023"),
        (FULL, "01979fc4776217b50671998ca78906da95bcbca3459f17cb900a0e1523bd75205e"),
    ],
    ids=["small", "full"],
)
def test_the_digest_is_what_it_always_was(episode: NewEpisode, digest: str) -> None:
    assert episode_digest(KEY, "session", "agent", episode).hex() == digest


@pytest.mark.parametrize("field", [name for name in NewEpisode.__dataclass_fields__ if name != "episode_id"])
def test_each_part_of_an_episode_changes_its_digest(field: str) -> None:
    other = {"kind": "other"}.get(field, getattr(SMALL, field))
    changed = replace(FULL, **{field: other})
    assert episode_digest(KEY, "s", "a", changed) != episode_digest(KEY, "s", "a", FULL)


def test_key_session_agent_and_id_change_a_digest() -> None:
    digests = {
        episode_digest(KEY, "s", "a", SMALL),
        episode_digest(b"x" * 32, "s", "a", SMALL),
        episode_digest(KEY, "t", "a", SMALL),
        episode_digest(KEY, "s", "b", SMALL),
        episode_digest(KEY, "s", "a", replace(SMALL, episode_id=UUID(int=1))),
    }
    assert len(digests) == 5
