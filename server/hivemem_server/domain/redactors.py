"""The redactor of each namespace. Making one compiles patterns, so those in use are kept."""

from __future__ import annotations

from functools import lru_cache

from hivemem.redaction import Redactor, Rules

from hivemem_server.domain.errors import InvalidField
from hivemem_server.domain.values import Namespace

KEPT = 256


@lru_cache(maxsize=KEPT)
def redactor(rules: Rules) -> Redactor:
    """The redactor of these rules. Raises InvalidField for kinds or patterns that cannot be used."""
    try:
        return Redactor(rules)
    except ValueError as error:
        raise InvalidField.at("settings.redaction", str(error)) from error


def redactor_of(namespace: Namespace) -> Redactor:
    """The redactor of a namespace."""
    return redactor(namespace.settings.redaction)
