"""Secrets are taken out before anything is stored, and a resend is known all the same."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from fix_stubs import Stubs, new_episode, refusal
from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import namespace_service_pb2 as namespaces
from hivemem.v1 import session_service_pb2 as sessions
from hivemem.v1 import types_pb2 as types
from hivemem_server.domain.appends import prepared
from psycopg import sql

SECRET = "ghp_" + "A1b2C3d4E5" * 3 + "f6G7h8"
MARK = "[REDACTED:"


async def rows_with(database_url: str, text: str) -> list[str]:
    """Tables of which any row, as text, has it."""
    found = []
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        names = await (await connection.execute("SELECT relname FROM pg_stat_user_tables")).fetchall()
        for (name,) in names:
            query = sql.SQL("SELECT count(*) FROM {} t WHERE t::text LIKE %s").format(sql.Identifier(name))
            row = await (await connection.execute(query, [f"%{text}%"])).fetchone()
            if row and row[0]:
                found.append(name)
    return found


def episode_full_of(secret: str) -> types.NewEpisode:
    return new_episode(
        f"the key is {secret}, use it",
        tags=[f"key:{secret}"],
        attributes={"key": types.AttributeValue(string_value=secret), secret: types.AttributeValue(int_value=1)},
        decisions=[types.NewDecision(text=f"keep {secret}")],
        open_threads=[types.NewThread(text=f"rotate {secret}", tags=[secret])],
    )


async def test_no_table_holds_a_secret_that_was_sent(stubs: Stubs, database_url: str) -> None:
    await stubs.session("s", goal=f"use {SECRET}", labels={"key": SECRET})
    await stubs.sessions.UpdateSession(sessions.UpdateSessionRequest(session_id="s", goal=f"still {SECRET}"))
    new = episode_full_of(SECRET)
    await stubs.append(new)
    assert await rows_with(database_url, SECRET) == []
    stored = (await stubs.episodes.GetEpisode(pb.GetEpisodeRequest(position=1))).episode
    texts = [stored.summary, *stored.tags, stored.decisions[0].text, stored.open_threads[0].text]
    assert all(MARK in text for text in texts)
    assert stored.summary.startswith("the key is [REDACTED:")
    assert stored.summary.endswith(", use it")


async def test_no_value_is_lost_when_the_keys_of_two_are_secrets(stubs: Stubs) -> None:
    await stubs.session()
    keys = [SECRET, SECRET.replace("A1", "Z9"), "plain"]
    values = {key: types.AttributeValue(int_value=number) for number, key in enumerate(keys)}
    await stubs.append(new_episode("s", attributes=values))
    stored = (await stubs.episodes.GetEpisode(pb.GetEpisodeRequest(position=1))).episode
    assert sorted(value.int_value for value in stored.attributes.values()) == [0, 1, 2]
    assert "[REDACTED:github-token]#2" in stored.attributes


async def test_neither_descriptions_of_namespaces_nor_errors_hold_a_secret(stubs: Stubs, database_url: str) -> None:
    settings = namespaces.NamespaceSettings(description=f"use {SECRET}", labels={"key": SECRET})
    await stubs.namespaces.CreateNamespace(namespaces.CreateNamespaceRequest(namespace="n", settings=settings))
    assert await rows_with(database_url, SECRET) == []
    refused = await refusal(stubs.append(new_episode("s"), session_id=SECRET))
    assert refused.reason == "SESSION_NOT_FOUND"
    assert SECRET not in refused.message + str(refused.metadata)
    bad = new_episode("s", attributes={SECRET: types.AttributeValue()})
    refused = await refusal(stubs.append(bad))
    assert SECRET not in refused.message + str(refused.fields)


async def test_a_large_append_is_prepared_beside_the_event_loop(stubs: Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared_by: list[int] = []

    def seen(*arguments: Any) -> Any:
        prepared_by.append(threading.get_ident())
        return prepared(*arguments)

    monkeypatch.setattr("hivemem_server.rpc.episodes.prepared", seen)
    await stubs.session()
    await stubs.append(new_episode("small"))
    await stubs.append(*(new_episode("words " * 4_000) for _ in range(4)))
    small, large = prepared_by
    assert small == threading.get_ident()
    assert large != threading.get_ident()


async def test_a_resend_is_known_though_its_secret_is_not_stored(stubs: Stubs) -> None:
    await stubs.session()
    new = episode_full_of(SECRET)
    await stubs.append(new)
    assert (await stubs.append(new)).deduplicated
    other = episode_full_of(SECRET.replace("A1", "Z9"))
    other.episode_id = new.episode_id
    assert (await refusal(stubs.append(other))).reason == "EPISODE_ID_REUSED"


async def test_a_resend_is_known_after_the_rules_have_changed(stubs: Stubs) -> None:
    update = namespaces.UpdateNamespaceRequest()
    await stubs.session()
    new = new_episode(f"mail ann@example.org about project-17 and {SECRET}")
    await stubs.append(new)
    update.settings.redaction.kinds.append("email")
    update.settings.redaction.patterns.append("project-[0-9]+")
    await stubs.namespaces.UpdateNamespace(update)
    assert (await stubs.append(new)).deduplicated
    again = types.NewEpisode(episode_id=new_episode().episode_id, summary=new.summary)
    await stubs.append(again)
    stored = (await stubs.episodes.GetEpisode(pb.GetEpisodeRequest(position=2))).episode
    assert "ann@example.org" not in stored.summary
    assert "project-17" not in stored.summary


async def test_a_namespace_may_switch_it_off(stubs: Stubs, database_url: str) -> None:
    off = namespaces.NamespaceSettings(redaction=namespaces.RedactionSettings(enabled=False))
    await stubs.namespaces.CreateNamespace(namespaces.CreateNamespaceRequest(namespace="open", settings=off))
    await stubs.session("s", namespace="open")
    await stubs.append(new_episode(SECRET), namespace="open")
    assert await rows_with(database_url, SECRET) == ["log"]


async def test_rules_that_cannot_be_used_are_refused(stubs: Stubs) -> None:
    for rules in (
        namespaces.RedactionSettings(kinds=["unheard-of"]),
        namespaces.RedactionSettings(patterns=["("]),
        namespaces.RedactionSettings(patterns=["(a+)+b"]),
        namespaces.RedactionSettings(patterns=["x"] * 65),
    ):
        request = namespaces.CreateNamespaceRequest(
            namespace="n", settings=namespaces.NamespaceSettings(redaction=rules)
        )
        refused = await refusal(stubs.namespaces.CreateNamespace(request))
        assert (refused.reason, refused.fields) == ("INVALID_FIELD", ["settings.redaction"])
