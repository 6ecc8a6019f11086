"""`hivemem demo`: two researchers and a writer, each a process of its own, work through one shared memory."""

from __future__ import annotations
