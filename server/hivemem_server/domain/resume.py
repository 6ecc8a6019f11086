"""Resuming a session: what is needed, and the messages that put a model back to work.

The messages are built from what is stored, never from a farewell, so they are the same after a crash. They are, in
order: a system message with the last word, the decisions that stand and what earlier sessions left; the goal with the
plans and open threads; and the confirmation. The frame always fits; what is left of the budget goes to plans (a quarter
at most), open threads, decisions, recent episodes and earlier summaries, in that order, and what does not fit is
counted.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hivemem_server.domain.tokens import MESSAGE_OVERHEAD, cut_to_tokens, estimated_tokens
from hivemem_server.domain.values import Episode, Point, Session, StandingDecision, Thread

MARK = "[RESUMED_SESSION] Last active:"
CONFIRMATION = "Resuming from where we left off:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeTarget:
    """What to resume, a session or the user's latest, and how much of it to read."""

    session_id: str = ""
    user_id: str = ""
    max_episodes: int
    max_summaries: int
    since: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """The last word of another session of the same user."""

    session_id: str
    goal: str
    summary: str
    position: int
    time: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProgress:
    """How far an ordered plan has come; current_step 0: no step is left."""

    plan_id: str
    current_step: int
    total_steps: int
    resolved_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AwayReport:
    """What happened since a position."""

    since_position: int
    episode_counts: Mapping[str, int]
    opened_threads: int
    ended_threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSeen:
    """An agent that wrote to a session."""

    agent_id: str
    create_time: dt.datetime
    last_seen_time: dt.datetime
    last_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeMaterial:
    """What is stored about a session and those that it continues, in one snapshot. Episodes are oldest first.

    `left_out` counts what is stored beyond the lists' limits, by the list's name.
    """

    session: Session | None
    continued_sessions: Sequence[Session] = ()
    episodes: Sequence[Episode] = ()
    decisions: Sequence[StandingDecision] = ()
    open_threads: Sequence[Thread] = ()
    plans: Sequence[PlanProgress] = ()
    agents: Sequence[AgentSeen] = ()
    summaries: Sequence[SessionSummary] = ()
    away: AwayReport | None = None
    left_out: Mapping[str, int]
    head: Point


class Role(enum.IntEnum):
    """Who a message is from; the numbers are those of the contract."""

    SYSTEM = 1
    USER = 2
    ASSISTANT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message ready for a model."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeMessages:
    """The messages, what they take, and how many of what did not fit."""

    messages: Sequence[Message] = ()
    token_count: int = 0
    omitted: Mapping[str, int]


def build_messages(material: ResumeMaterial, *, max_tokens: int, injected: int, agent_id: str = "") -> ResumeMessages:
    """The messages within `max_tokens` estimated tokens; none if there is no session or nothing in it."""
    if material.session is None or not (material.episodes or material.session.goal):
        return ResumeMessages(omitted={})
    pack = _Pack(max_tokens, material)
    plans = pack.take("plans", (_plan_line(plan) for plan in material.plans if plan.current_step), share=4)
    threads = pack.take("open_threads", map(_thread_line, material.open_threads))
    decisions = pack.take("decisions", (f"- {d.decision.text}" for d in reversed(material.decisions)))
    episodes = pack.take("episodes", _episode_lines(material.episodes, agent_id))
    summaries = pack.take("summaries", map(_summary_line, material.summaries[:injected]))
    system = "\n".join(
        [
            f"{MARK} {pack.last_word}",
            *_section("Decisions that stand:", decisions[::-1]),
            *_section("Recent episodes, newest first:", episodes),
            *_section("From earlier sessions:", summaries),
        ]
    )
    goal = "\n".join([pack.goal, *plans, *_section("Open threads:", threads)]).strip()
    messages = [Message(role=Role.SYSTEM, content=system)]
    if goal:
        messages.append(Message(role=Role.USER, content=goal))
    messages.append(Message(role=Role.ASSISTANT, content=f"{CONFIRMATION} {pack.last_word}"))
    tokens = sum(estimated_tokens(message.content) + MESSAGE_OVERHEAD for message in messages)
    return ResumeMessages(messages=messages, token_count=tokens, omitted=pack.omitted)


class _Pack:
    """Hands out a budget of tokens, the frame of the messages first."""

    def __init__(self, max_tokens: int, material: ResumeMaterial) -> None:
        assert material.session is not None
        newest = material.episodes[-1].summary if material.episodes else "nothing was recorded yet"
        # The last word stands twice, the goal once; a third of the budget is theirs at most.
        self.last_word = cut_to_tokens(" ".join(newest.split()), max_tokens // 6)
        goal = cut_to_tokens(material.session.goal, max_tokens // 6)
        self.goal = f"Goal: {goal}" if goal else ""
        frame = 2 * estimated_tokens(self.last_word) + estimated_tokens(self.goal)
        headings = 3 * MESSAGE_OVERHEAD + estimated_tokens(MARK + CONFIRMATION) + 6
        self._left = max_tokens - frame - headings
        self._unread = material.left_out
        self.omitted: dict[str, int] = {}

    def take(self, what: str, lines: Iterable[str], *, share: int = 1) -> list[str]:
        """As many of the lines as fit into the share of what is left, in order; counts the rest."""
        taken: list[str] = []
        left = list(lines)
        cost = _SECTION_TOKENS
        for line in left:
            cost += estimated_tokens(line) + 1
            if cost > self._left // share:
                break
            taken.append(line)
        if taken:
            self._left -= _SECTION_TOKENS + sum(estimated_tokens(line) + 1 for line in taken)
        if omitted := len(left) - len(taken) + self._unread.get(what, 0):
            self.omitted[what] = omitted
        return taken


_SECTION_TOKENS = 14  # a heading with its blank line


def _section(heading: str, lines: Sequence[str]) -> list[str]:
    return ["", heading, *lines] if lines else []


def _thread_line(thread: Thread) -> str:
    opened = thread.opened
    step = f" (step {opened.step} of plan {opened.plan_id})" if opened.step else ""
    holder = f" (claimed by {thread.claim.agent_id})" if thread.claim else ""
    return f"- {opened.text}{step}{holder} [{opened.thread_id}]"


def _episode_lines(episodes: Sequence[Episode], agent_id: str) -> list[str]:
    """The newest first, those of the agent that resumes before the others; the last word itself is left out."""
    earlier = sorted(episodes[:-1], key=lambda episode: (episode.agent_id != agent_id, -episode.position))
    return [f"- {episode.agent_id}: {cut_to_tokens(' '.join(episode.summary.split()), 100)}" for episode in earlier]


def _summary_line(summary: SessionSummary) -> str:
    return f"- {summary.session_id} ({summary.time:%d %B %Y}): {cut_to_tokens(' '.join(summary.summary.split()), 100)}"


def _plan_line(plan: PlanProgress) -> str:
    return f"Plan {plan.plan_id}: at step {plan.current_step} of {plan.total_steps}"
