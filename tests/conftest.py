"""The fixtures, by where they are:

fix_postgres       a real PostgreSQL for the run, a fresh migrated database for a test
fix_cluster        a PostgreSQL of the test's own, to be stopped, killed, promoted
fix_server         servers: in this process for most tests, as processes of their own for those that kill them
fix_stubs          raw stubs, for what the client would not send
fix_log            the log on PostgreSQL without a server, in transactions that are held open
fix_proxy          a TCP proxy that cuts, pauses and refuses connections
fix_scripted       a gRPC server that plays a script
fix_openai_server  an HTTP server that speaks the OpenAI API, well or badly
fix_data           the data folder given by HIVEMEM_TEST_DATA
"""

from __future__ import annotations

import structlog

# What a server in this process logs, without the values of variables: to show them takes a tenth of a second each time.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["level", "event"]),
    ]
)

pytest_plugins = [
    "fix_postgres",
    "fix_cluster",
    "fix_server",
    "fix_stubs",
    "fix_log",
    "fix_proxy",
    "fix_scripted",
    "fix_openai_server",
    "fix_data",
]
