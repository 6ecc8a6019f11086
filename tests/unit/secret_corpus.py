"""Secrets made for the tests, in the shapes that their issuers document. None was ever issued.

They are put together from a prefix and random characters when the tests run, so that no file here holds anything that
looks like a secret.
"""

from __future__ import annotations

import base64
import json
import random
import string
from dataclasses import dataclass

_LETTERS = string.ascii_letters + string.digits
_ALPHABETS = {
    "hex": "0123456789abcdef",
    "num": string.digits,
    "b32": string.ascii_uppercase + "234567",
    "cap": string.ascii_uppercase + string.digits,
    "low": string.ascii_lowercase + string.digits,
    "let": _LETTERS,
    "url": _LETTERS + "-_",
    "b64": _LETTERS + "+/",
}
EXAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """One secret, and the kind that its mark has to name."""

    kind: str
    text: str


# A shape is literals and, in braces, an alphabet with a length; `uuid`, `jwt` and `discord` speak for themselves.
SHAPES: tuple[tuple[str, str], ...] = (
    ("aws-access-key", "AKIA{cap16}"), ("aws-access-key", "ASIA{b32:16}"), ("aws-mws-token", "amzn.mws.{uuid}"),
    ("aws-bedrock-key", "ABSK{b64:128}="), ("google-api-key", "AIza{url35}"), ("google-oauth-token", "ya29.{url68}"),
    ("google-oauth-secret", "GOCSPX-{url28}"), ("google-oauth-token", "1//0{url60}"),
    ("azure-client-secret", "{let3}8Q~{let34}"), ("alibaba-access-key", "LTAI{let20}"),
    ("digitalocean-token", "dop_v1_{hex64}"), ("heroku-key", "HRKU-{url60}"), ("fly-token", "fm2_{b64:100}"),
    ("github-token", "ghp_{let36}"), ("github-token", "gho_{let36}"), ("github-token", "ghs_{let36}"),
    ("github-token", "github_pat_{let22}_{let59}"), ("gitlab-token", "glpat-{url20}"), ("gitlab-token", "gldt-{url20}"),
    ("bitbucket-token", "BBDC-{b64:40}"), ("atlassian-token", "ATATT3{url180}={hex8}"),
    ("npm-token", "npm_{let36}"), ("pypi-token", "pypi-AgEIcHlwaS5vcmc{url100}"), ("rubygems-key", "rubygems_{hex48}"),
    ("crates-token", "cio{let32}"), ("nuget-key", "oy2{low43}"), ("docker-token", "dckr_pat_{url27}"),
    ("jfrog-token", "AKCp{let69}"), ("circleci-token", "CCIPAT_{let22}_{hex40}"), ("sonar-token", "squ_{hex40}"),
    ("terraform-token", "{let14}.atlasv1.{url67}"), ("pulumi-token", "pul-{hex40}"), ("vault-token", "hvs.{url92}"),
    ("doppler-token", "dp.pt.{let43}"), ("1password-token", "ops_eyJ{url250}"), ("age-key", "AGE-SECRET-KEY-1{cap58}"),
    ("tailscale-key", "tskey-auth-{let12}-{let32}"), ("anthropic-key", "sk-ant-api03-{url93}AA"),
    ("openrouter-key", "sk-or-v1-{hex64}"), ("openai-key", "sk-proj-{url120}"), ("openai-key", "sk-{let48}"),
    ("openai-key", "sk-{hex32}"), ("huggingface-token", "hf_{let34}"), ("replicate-token", "r8_{let37}"),
    ("groq-key", "gsk_{let52}"), ("xai-key", "xai-{let80}"), ("perplexity-key", "pplx-{let48}"),
    ("nvidia-key", "nvapi-{url64}"), ("langsmith-key", "lsv2_pt_{hex32}_{hex10}"), ("tavily-key", "tvly-dev-{let32}"),
    ("pinecone-key", "pcsk_{let60}"), ("slack-token", "xoxb-{num12}-{num13}-{let24}"),
    ("slack-token", "xoxp-{num11}-{num11}-{num12}-{hex32}"), ("slack-token", "xapp-1-{cap11}-{num13}-{hex64}"),
    ("discord-token", "M{discord}"), ("telegram-token", "{num10}:AA{url33}"), ("twilio-key", "SK{hex32}"),
    ("sendgrid-key", "SG.{url22}.{url43}"), ("mailgun-key", "key-{hex32}"), ("mailchimp-key", "{hex32}-us{num2}"),
    ("brevo-key", "xkeysib-{hex64}-{let16}"), ("resend-key", "re_{let8}_{let24}"), ("stripe-key", "sk_live_{let24}"),
    ("stripe-key", "rk_test_{let99}"), ("stripe-key", "whsec_{let32}"), ("square-token", "sq0csp-{url43}"),
    ("shopify-token", "shpat_{hex32}"), ("plaid-token", "access-production-{uuid}"),
    ("braintree-token", "access_token$production${low16}${hex32}"), ("shippo-token", "shippo_live_{hex40}"),
    ("easypost-key", "EZAK{let54}"), ("notion-token", "ntn_{let46}"), ("notion-token", "secret_{let43}"),
    ("linear-key", "lin_api_{let40}"), ("figma-token", "figd_{url40}"), ("airtable-token", "pat{let14}.{hex64}"),
    ("postman-key", "PMAK-{hex24}-{hex34}"), ("hubspot-token", "pat-na1-{uuid}"), ("contentful-token", "CFPAT-{url43}"),
    ("databricks-token", "dapi{hex32}"), ("facebook-token", "EAA{let160}"), ("newrelic-key", "NRAK-{cap27}"),
    ("grafana-token", "glsa_{let32}_{hex8}"), ("sentry-token", "sntryu_{hex64}"),
    ("dynatrace-token", "dt0c01.{b32:24}.{b32:64}"), ("supabase-key", "sbp_{hex40}"),
    ("planetscale-token", "pscale_tkn_{url43}"), ("mapbox-token", "sk.eyJ{let60}.{url22}"), ("jwt", "{jwt}"),
    ("password-hash", "$2b$12${let53}"), ("password-hash", "$6${let16}${let86}"),
)  # fmt: skip


def corpus(seed: int = 7) -> list[Secret]:
    """Some examples of each shape; the same ones for the same seed."""
    made = random.Random(seed)
    return [Secret(kind=kind, text=_made(shape, made)) for kind, shape in SHAPES for _ in range(EXAMPLES)]


def drawn(alphabet: str, length: int, made: random.Random) -> str:
    """So many characters of one of the alphabets, drawn at random."""
    return "".join(made.choices(_ALPHABETS[alphabet], k=length))


def private_key(label: str, made: random.Random, *, lines: int = 12, headers: tuple[str, ...] = ()) -> list[str]:
    """The lines of a key block that no key is in."""
    body = [drawn("b64", 64, made) for _ in range(lines)] + [drawn("b64", 22, made) + "=="]
    dashes = "-" * 5
    head = [*headers, ""] if headers else []
    return [f"{dashes}BEGIN {label}{dashes}", *head, *body, f"{dashes}END {label}{dashes}"]


def _made(shape: str, made: random.Random) -> str:
    literal, *pieces = shape.split("{")
    return literal + "".join(_filled(piece, made) for piece in pieces)


def _filled(piece: str, made: random.Random) -> str:
    blank, literal = piece.split("}")
    if blank == "uuid":
        return "-".join(drawn("hex", length, made) for length in (8, 4, 4, 4, 12)) + literal
    if blank == "jwt":
        return _jwt(made) + literal
    if blank == "discord":
        return f"{made.choice('Tjz')}{drawn('let', 22, made)}.{drawn('url', 6, made)}.{drawn('let', 38, made)}{literal}"
    return drawn(blank[:3], int(blank[3:].lstrip(":")), made) + literal


def _jwt(made: random.Random) -> str:
    parts = ({"alg": "HS256", "typ": "JWT"}, {"sub": drawn("num", 10, made), "iat": made.randrange(10**9)})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, drawn("url", 43, made)])
