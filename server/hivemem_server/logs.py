"""How the server logs: structlog on stderr, for people on a terminal, as JSON lines elsewhere."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(level: str = "INFO") -> None:
    """Sets up logging for the process; libraries speak up from WARNING on."""
    pretty = sys.stderr.isatty()
    # Tracebacks without the values of variables, which may hold what agents wrote.
    console = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    as_json = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([console] if pretty else as_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    for noisy in ("psycopg.pool", "grpc", "httpx", "openai"):  # what matters of theirs, the server says itself
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
