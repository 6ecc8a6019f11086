"""What of an episode is searched: its words, and who wrote them when."""

from __future__ import annotations

from hivemem_server.domain.values import NewEpisode


def searchable_text(agent_id: str, episode: NewEpisode) -> str:
    """The text whose words find the episode."""
    parts = [agent_id, episode.summary]
    parts += [decision.text for decision in episode.decisions]
    parts += [thread.text for thread in episode.open_threads]
    parts += episode.tags
    return "\n".join(parts)


def passage(agent_id: str, episode: NewEpisode) -> str:
    """The text whose meaning finds the episode, as it is given to an embedder."""
    when = f"({episode.event_time:%d %B %Y}) " if episode.event_time else ""
    lines = [f"{when}{agent_id}: {episode.summary}"]
    lines += [f"Decided: {decision.text}" for decision in episode.decisions]
    lines += [f"Open: {thread.text}" for thread in episode.open_threads]
    return "\n".join(lines)
