"""What the command line says about an answer."""

from __future__ import annotations

import pytest
from hivemem import Omission, PlanProgress, Shortfall
from hivemem.cli.resume import _note, _progress
from hivemem.cli.search import _SHORTFALLS


def test_every_shortfall_of_a_search_is_said_but_that_there_is_no_more() -> None:
    assert set(Shortfall) - set(_SHORTFALLS) <= {Shortfall.NO_MORE_MATCHES, Shortfall.UNKNOWN}


@pytest.mark.parametrize(("current", "said"), [(4, "step 4 of 6"), (0, "no step is left, 3 of 6 are done")])
def test_a_plan_without_a_step_left_does_not_say_that_it_is_at_its_last(current: int, said: str) -> None:
    assert _progress(PlanProgress(plan_id="p", current_step=current, total_steps=6, resolved_steps=3)) == said


def test_what_was_left_out_is_said_with_the_place_it_is_missing_from() -> None:
    assert _note(Omission(what="open_threads", count=3)) == "3 open threads did not fit into the messages"
    assert _note(Omission(what="listed_decisions", count=88)) == "88 decisions did not fit into the list"
