"""Plays recorded conversations of several agents into a session, one process for each agent."""

from __future__ import annotations
