"""Settings of the server: from HIVEMEM_… variables of the environment, and from options of `hivemem serve`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from platformdirs import user_data_path
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

DEFAULT_PORT = 7400


class EmbedderKind(StrEnum):
    """Where vectors come from."""

    LOCAL = "local"
    OPENAI = "openai"
    NONE = "none"


class Settings(BaseSettings):
    """Everything that can be set. A field `x` is HIVEMEM_X in the environment."""

    model_config = SettingsConfigDict(env_prefix="HIVEMEM_", extra="ignore", frozen=True)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = DEFAULT_PORT
    data_dir: Path = user_data_path("hivemem")
    database_url: SecretStr | None = None
    database_connections: Annotated[int, Field(ge=3, le=500)] = 16
    poll_seconds: Annotated[float, Field(ge=0.01, le=10)] = 0.1
    embedder: EmbedderKind = EmbedderKind.LOCAL
    embedding_url: str | None = None
    embedding_key: SecretStr | None = None
    embedding_model: str = "text-embedding-3-small"
    embedding_dimensions: Annotated[int | None, Field(ge=1, le=4_000)] = None
    drain_seconds: Annotated[float, Field(ge=0, le=60)] = 1.5
