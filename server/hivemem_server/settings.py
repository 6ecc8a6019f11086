"""Settings of the server: from HIVEMEM_… variables of the environment, and from options of `hivemem serve`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from platformdirs import user_data_path
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

DEFAULT_PORT = 7400
WORKERS_MOST = 64
EMBEDDED_CONNECTIONS = 190  # what workers may have together of the 200 of the embedded database


class EmbedderKind(StrEnum):
    """Where vectors come from."""

    LOCAL = "local"
    OPENAI = "openai"
    NONE = "none"


class Settings(BaseSettings):
    """Everything that can be set. A field `x` is HIVEMEM_X in the environment.

    With several `workers`, each is a whole server with an embedder of its own, and has up to `database_connections` to
    itself: so many times as many workers, and 190 together with the embedded database.

    Servers that share a database tell each other of their commits (`listen`): by NOTIFY on a connection of its own,
    heard by LISTEN on another one, to `listen_url` or else to `database_url`. LISTEN does not pass a pooler that shares
    connections between transactions, as PgBouncer does in transaction mode: `listen_url` is then the direct way to the
    same database. With `listen` off, for a database without LISTEN, or one that is reached through such a pooler only,
    each server asks every `poll_seconds` for what the others have stored. All servers of a database are set alike.

    Subscriptions are asked to come again, and connections to be made anew, after about `subscription_age_seconds`, so
    that servers which were added or restarted get their share.
    """

    model_config = SettingsConfigDict(env_prefix="HIVEMEM_", extra="ignore", frozen=True)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = DEFAULT_PORT
    workers: Annotated[int, Field(ge=1, le=WORKERS_MOST)] = 1
    data_dir: Path = user_data_path("hivemem")
    database_url: SecretStr | None = None
    database_connections: Annotated[int, Field(ge=3, le=500)] = 16
    listen: bool = True
    listen_url: SecretStr | None = None
    poll_seconds: Annotated[float, Field(ge=0.01, le=10)] = 0.1
    embedder: EmbedderKind = EmbedderKind.LOCAL
    embedding_url: str | None = None
    embedding_key: SecretStr | None = None
    embedding_model: str = "text-embedding-3-small"
    embedding_dimensions: Annotated[int | None, Field(ge=1, le=4_000)] = None
    subscription_age_seconds: Annotated[float, Field(ge=1, le=86_400)] = 1_800.0
    drain_seconds: Annotated[float, Field(ge=0, le=60)] = 1.5
