"""The model that speaks for the agents, if the environment names one.

OPENAI_API_KEY or OPENAI_BASE_URL switches it on; HIVEMEM_DEMO_MODEL is its name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

DEFAULT_MODEL = "gpt-4o-mini"
_NO_KEY = "none"  # local servers want none, the library insists
_SECONDS = 30.0
_MOST_TOKENS = 500
_LONGEST_REASON = 200


class ModelFailed(Exception):
    """The model gave no answer; the message says why, without the key."""


def name(environment: Mapping[str, str] = os.environ) -> str | None:
    """The model that the environment asks for; None if it asks for none."""
    if not (environment.get("OPENAI_API_KEY") or environment.get("OPENAI_BASE_URL")):
        return None
    return environment.get("HIVEMEM_DEMO_MODEL") or DEFAULT_MODEL


class Model:
    """A model behind any endpoint that speaks OpenAI's chat completions API."""

    def __init__(self, model: str) -> None:
        import openai  # it takes a second, which only those wait for who use it

        self._name = model
        self._failures = (openai.OpenAIError, ValueError)
        self._key = os.environ.get("OPENAI_API_KEY") or _NO_KEY
        self._client = openai.AsyncOpenAI(api_key=self._key, timeout=_SECONDS, max_retries=1)

    async def answer(self, instruction: str, text: str) -> str:
        """What the model says to a text. Raises ModelFailed."""
        try:
            completion = await self._client.chat.completions.create(
                model=self._name,
                messages=[{"role": "system", "content": instruction}, {"role": "user", "content": text}],
                max_completion_tokens=_MOST_TOKENS,
            )
            said = completion.choices[0].message.content
        except self._failures as error:
            raise ModelFailed(f"the model {self._name} does not answer ({self._reason(error)})") from None
        except (AttributeError, IndexError, TypeError):
            raise ModelFailed(f"the model {self._name} answers what is no completion") from None
        if not said or not said.strip():
            raise ModelFailed(f"the model {self._name} answers nothing")
        return said

    def _reason(self, error: Exception) -> str:
        return " ".join(str(error).replace(self._key, "…").split())[:_LONGEST_REASON]
