from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING

import hivemem

if TYPE_CHECKING:
    import pytest


def test_an_id_is_a_version_7_uuid_of_now() -> None:
    before = time.time_ns() // 1_000_000
    made = hivemem.uuid7()
    after = time.time_ns() // 1_000_000
    assert made.variant == uuid.RFC_4122
    assert made.version == 7
    assert before <= made.int >> 80 <= after + 1


def test_ids_grow_also_within_a_millisecond_and_when_the_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = hivemem.uuid7()
    monkeypatch.setattr(time, "time_ns", lambda: 1_600_000_000_000_000_000)
    made = [first, *(hivemem.uuid7() for _ in range(10_000))]
    assert made == sorted(set(made))
    assert all(one.version == 7 and one.variant == uuid.RFC_4122 for one in made)


def test_threads_never_make_the_same_id() -> None:
    made: list[uuid.UUID] = []
    threads = [threading.Thread(target=lambda: made.extend(hivemem.uuid7() for _ in range(2_000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8_000


def test_a_new_episode_carries_an_id_of_its_own() -> None:
    episodes = [hivemem.NewEpisode(summary="same") for _ in range(2)]
    assert episodes[0].episode_id < episodes[1].episode_id
    assert str(uuid.UUID(episodes[0].episode_id)) == episodes[0].episode_id
