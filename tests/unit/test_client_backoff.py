from __future__ import annotations

from hivemem._backoff import Backoff


def test_pauses_double_up_to_a_bound_and_are_shortened_by_half_at_most() -> None:
    backoff = Backoff(first=1.0, longest=5.0)
    for bound in (1.0, 2.0, 4.0, 5.0, 5.0):
        assert bound / 2 <= backoff.next() <= bound


def test_a_delay_that_the_server_asks_for_is_kept_and_spread() -> None:
    pauses = {Backoff(first=0.1).next(3.0) for _ in range(20)}
    assert len(pauses) > 1
    assert all(3.0 <= pause <= 3.75 for pause in pauses)


def test_after_a_success_it_starts_again() -> None:
    backoff = Backoff(first=1.0, longest=8.0)
    for _ in range(4):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 1.0
