"""How the server logs: structlog on stderr, for people on a terminal, as JSON lines elsewhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog
from hivemem.redaction import Redactor

_redactor = Redactor()


def configure(level: str = "INFO", **always: object) -> None:
    """Sets up logging for the process; libraries speak up from WARNING on. Each line says `always` too."""
    console, lines = structlog.dev.ConsoleRenderer(), structlog.processors.JSONRenderer(ensure_ascii=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            lambda _logger, _method, event: {**event, **always},
            structlog.processors.add_log_level,
            # As text, without the values of variables, which may hold what agents wrote.
            structlog.processors.format_exc_info,
            _redacted,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            console if sys.stderr.isatty() else lines,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, force=True)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_RedactingFormatter(logging.BASIC_FORMAT))
    for noisy in ("psycopg", "grpc", "httpx", "openai"):  # what matters of theirs, the server says itself
        logging.getLogger(noisy).setLevel(logging.CRITICAL)


class _RedactingFormatter(logging.Formatter):
    """For lines of libraries, which do not come by way of structlog."""

    def format(self, record: logging.LogRecord) -> str:
        return _redactor.redact(super().format(record))


def _redacted(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Takes secrets out of every text of a line, whatever brought them there."""
    return {name: _redactor.redact(value) if isinstance(value, str) else value for name, value in event.items()}
