"""What an endpoint's failures mean to the port. Messages are clauses, as long as the endpoint pleases."""

from __future__ import annotations

import datetime as dt
import email.utils
import math
from collections.abc import Mapping

import openai

from hivemem_server.domain.embedder import EmbedderRejected
from hivemem_server.domain.errors import EmbedderUnavailable

_TEXTS_REFUSED = (400, 413, 422)
_TRY_LATER = (408, 409, 425, 429)
_LONGEST_WAIT_SECONDS = 3_600.0


def may_pass_at_once(error: Exception) -> bool:
    """Whether the same request may well succeed right away: a broken connection, or a fault that asks for no pause."""
    if isinstance(error, openai.APIStatusError):
        return error.status_code >= 500 and _asked_wait(error.response.headers) is None
    return isinstance(error, openai.APIConnectionError) and not isinstance(error, openai.APITimeoutError)


def failure_of(error: Exception) -> EmbedderUnavailable | EmbedderRejected:
    """The port's error for one of the client library."""
    if isinstance(error, openai.APIStatusError):
        return _failure_of_status(error)
    if isinstance(error, openai.APITimeoutError):
        return EmbedderUnavailable("does not answer in time")
    if isinstance(error, openai.APIConnectionError):
        return EmbedderUnavailable(f"cannot be reached ({error.__cause__ or error})")
    return EmbedderRejected("answers with something else than JSON: is its address right?", texts_refused=False)


def _failure_of_status(error: openai.APIStatusError) -> EmbedderUnavailable | EmbedderRejected:
    said = f"answers {error.status_code}: {_said(error)}"
    if error.status_code >= 500 or error.status_code in _TRY_LATER:
        return EmbedderUnavailable(said, _asked_wait(error.response.headers))
    return EmbedderRejected(said, texts_refused=error.status_code in _TEXTS_REFUSED)


def _said(error: openai.APIStatusError) -> str:
    message = error.body.get("message") if isinstance(error.body, dict) else None
    return str(message or error.message)


def _asked_wait(headers: Mapping[str, str]) -> float | None:
    """The seconds of Retry-After, given as seconds or as a date; None if there is none to be understood."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        seconds = _seconds_until(value)
    return min(max(seconds, 0.0), _LONGEST_WAIT_SECONDS) if math.isfinite(seconds) else None


def _seconds_until(date: str) -> float:
    try:
        then = email.utils.parsedate_to_datetime(date)
    except ValueError:
        return math.nan
    now = dt.datetime.now(then.tzinfo or dt.UTC)
    return (then.replace(tzinfo=now.tzinfo) - now).total_seconds()
