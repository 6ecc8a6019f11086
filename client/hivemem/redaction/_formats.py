"""Keys and tokens that their issuers made recognisable: a fixed prefix, an alphabet, a length.

A row is a kind, the literals that announce it, and what follows them. Literals are looked for all at once; only where
one stands is the row's own expression tried. Time stays linear because a row's expression either takes what it has
read, or has read no more than a bounded piece, or may begin only where a run of its own characters begins.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from hivemem.redaction._finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Where a token may begin: after anything but a letter or digit, or after what an encoding left there: the `n` of an
# escaped line break, the digits of `%3D` and `\\u003d`, the end of a terminal's colour.
_LEFT = (
    r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f][0-9A-Fa-f])|(?<=\\u00[0-9A-Fa-f][0-9A-Fa-f])"
    r"|(?<=[\[;][0-9]m)|(?<=[\[;][0-9][0-9]m))"
)
_LEFT_OF_RUN = _LEFT.replace("(?<![A-Za-z0-9])", "(?<![A-Za-z0-9_-])")
_RIGHT = r"(?![A-Za-z0-9])"
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"


@dataclass(frozen=True, slots=True)
class _Row:
    kind: str
    # Each announces the row; the expression takes in what follows it.
    literals: tuple[str, ...]
    body: str
    # For literals that are short or common: what must stand before them.
    left: str = ""
    # How many characters stand before the literal, and what they are.
    before: str = ""
    back: tuple[int, ...] = (0,)


def _row(kind: str, literals: str, body: str, left: str = "") -> _Row:
    return _Row(kind, tuple(literals.split()), body, left)


_ROWS = (
    # Clouds
    _row("aws-access-key", "AKIA ASIA ABIA ACCA", r"[A-Z0-9]{16}" + _RIGHT, _LEFT),
    _row("aws-bedrock-key", "ABSK", r"[A-Za-z0-9+/]{100,}={0,2}", _LEFT),
    _row("aws-bedrock-key", "bedrock-api-key-", r"[A-Za-z0-9+/]{40,}={0,2}"),
    _row("aws-mws-token", "amzn.mws.", _UUID),
    _row("google-api-key", "AIza", r"[\w-]{35,}", _LEFT),
    _row("google-api-key", "AQ.Ab", r"[\w-]{30,}", _LEFT),
    _row("google-oauth-token", "ya29.", r"[\w.-]{20,}", _LEFT),
    _row("google-oauth-token", "1//0", r"[\w-]{30,}", _LEFT),
    _row("google-oauth-secret", "GOCSPX-", r"[\w-]{20,}"),
    _Row("azure-client-secret", ("Q~",), r"[\w.~-]{31,}", _LEFT, r"[\w.~-]{3}\d", (4,)),
    _row("alibaba-access-key", "LTAI", r"[A-Za-z0-9]{16,24}" + _RIGHT, _LEFT),
    _row("tencent-secret-id", "AKID", r"[A-Za-z0-9]{32}" + _RIGHT, _LEFT),
    _row("yandex-api-key", "AQVN", r"[\w-]{35,}", _LEFT),
    _row("digitalocean-token", "dop_v1_ doo_v1_ dor_v1_", r"[0-9a-f]{64}"),
    _row("heroku-key", "HRKU-", r"[\w-]{36,}"),
    _row("fly-token", "fm1r_ fm1a_ fm2_", r"[A-Za-z0-9+/]{60,}={0,3}", _LEFT),
    _row("fly-token", "fo1_", r"[\w-]{43,}", _LEFT),
    _row("render-token", "rnd_", r"[A-Za-z0-9]{20,}", _LEFT),
    _row("netlify-token", "nfp_ nfo_ nfc_", r"[A-Za-z0-9]{36,}", _LEFT),
    _row("vercel-token", "vcp_ vci_ vca_ vcr_ vck_", r"[A-Za-z0-9]{24,}", _LEFT),
    _row("cloudflare-token", "cfut_ cfat_ cfk_", r"[\w-]{30,}", _LEFT),
    _row("cloudflare-ca-key", "v1.0-", r"[0-9a-f]{24}-[0-9a-f]{100,}", _LEFT),
    _row("scalingo-token", "tk-us-", r"[\w-]{48}"),
    # Code, packages, builds
    _row("github-token", "ghp_ gho_ ghu_ ghs_ ghr_", r"[A-Za-z0-9_]{36,}"),
    _row("github-token", "github_pat_", r"[A-Za-z0-9_]{22,}"),
    _row("gitlab-token", "glpat- gldt- glrt- glrtr- glptt- glcbt- glft- glimt- glagent- gloas- glsoat- glffct- glwt-",
         r"[\w.-]{20,}"),
    _row("gitlab-token", "GR1348941", r"[\w-]{20,}"),
    _row("bitbucket-token", "BBDC-", r"[A-Za-z0-9+/]{40,}={0,2}"),
    _row("atlassian-token", "ATATT3 ATCTT3 ATSTT3", r"[\w=-]{60,}"),
    _row("atlassian-token", "ATBB", r"[A-Za-z0-9]{32,}", _LEFT),
    _row("npm-token", "npm_", r"[A-Za-z0-9]{36,}"),
    _row("pypi-token", "pypi-", r"[\w-]{50,}"),
    _row("rubygems-key", "rubygems_", r"[0-9a-f]{48}"),
    _row("crates-token", "cio", r"[A-Za-z0-9]{32}" + _RIGHT, _LEFT),
    _row("nuget-key", "oy2", r"[a-z0-9]{43}" + _RIGHT, _LEFT),
    _row("docker-token", "dckr_pat_ dckr_oat_", r"[\w-]{20,}"),
    _row("jfrog-token", "AKCp", r"[A-Za-z0-9]{60,}", _LEFT),
    _row("jfrog-token", "cmVmdGtu", r"[A-Za-z0-9]{56}", _LEFT),
    _row("sourcegraph-token", "sgp_", r"(?:[0-9a-f]{16}_|local_)?[0-9a-f]{40}"),
    _row("circleci-token", "CCIPAT_ CCIPRJ_", r"[A-Za-z0-9]{20,24}_[0-9a-f]{40}"),
    _row("buildkite-token", "bkua_ bkpt_ bkaj_", r"[0-9a-f]{40}"),
    _row("sonar-token", "sqp_ squ_ sqa_", r"[0-9a-f]{40}", _LEFT),
    _row("octopus-key", "API-", r"[A-Z0-9]{25,}", _LEFT),
    _row("terraform-token", "ATLASV1.", r"[\w-]{60,}"),
    _Row("terraform-token", (".atlasv1.",), r"[\w-]{60,}", _LEFT, r"[A-Za-z0-9]{14}", (14,)),
    _row("pulumi-token", "pul-", r"[0-9a-f]{40}", _LEFT),
    _row("vault-token", "hvs. hvb. hvr.", r"[\w-]{24,}", _LEFT),
    _row("doppler-token", "dp.pt. dp.ct. dp.sa. dp.scim. dp.audit.", r"[A-Za-z0-9]{40,}", _LEFT),
    _row("doppler-token", "dp.st.", r"(?:[\w-]{2,35}\.)?[A-Za-z0-9]{40,}", _LEFT),
    _row("1password-token", "ops_eyJ", r"[\w-]{100,}={0,2}"),
    _row("1password-key", "A3-", r"[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}", _LEFT),
    _row("age-key", "AGE-SECRET-KEY-1 AGE-SECRET-KEY-PQ-1", r"[0-9A-Z]{58,}"),
    _row("tailscale-key", "tskey-", r"[a-z]{2,12}-[A-Za-z0-9]{8,}(?:-[A-Za-z0-9]{8,})?", _LEFT),
    # Models
    _row("anthropic-key", "sk-ant-", r"[\w-]{20,}"),
    _row("openrouter-key", "sk-or-", r"[\w-]{20,}"),
    _row("langfuse-key", "sk-lf-", _UUID),
    _row("openai-key", "sk-proj- sk-svcacct- sk-admin- sk-None-", r"[\w-]{20,}"),
    _row("openai-key", "sk-", r"(?:[A-Za-z0-9]{20}|(?=[\w-]{0,40}[0-9])[\w-]{20})[\w-]*", _LEFT),
    _row("huggingface-token", "hf_ api_org_", r"[A-Za-z0-9]{30,}", _LEFT),
    _row("replicate-token", "r8_", r"[A-Za-z0-9]{37,}", _LEFT),
    _row("groq-key", "gsk_", r"[A-Za-z0-9]{40,}", _LEFT),
    _row("xai-key", "xai-", r"[A-Za-z0-9]{60,}", _LEFT),
    _row("perplexity-key", "pplx-", r"[A-Za-z0-9]{40,}", _LEFT),
    _row("nvidia-key", "nvapi-", r"[\w-]{50,}", _LEFT),
    _row("together-key", "tgp_v1_", r"[\w-]{30,}", _LEFT),
    _row("cerebras-key", "csk-", r"[a-z0-9]{40,}", _LEFT),
    _row("fireworks-key", "fw_", r"(?=[A-Za-z]{0,30}[0-9])[A-Za-z0-9]{20,}", _LEFT),
    _row("tavily-key", "tvly-", r"(?:dev-|prod-)?[\w-]{20,}", _LEFT),
    _row("firecrawl-key", "fc-", r"[0-9a-f]{32}" + _RIGHT, _LEFT),
    _row("elevenlabs-key", "sk_", r"[0-9a-f]{48}" + _RIGHT, _LEFT),
    _row("e2b-key", "e2b_", r"[0-9a-f]{40}", _LEFT),
    _row("jina-key", "jina_", r"[\w-]{40,}", _LEFT),
    _row("voyage-key", "pa-", r"[\w-]{43}" + _RIGHT, _LEFT),
    _row("langsmith-key", "lsv2_pt_ lsv2_sk_", r"[0-9a-f]{32}_[0-9a-f]{10}"),
    _row("wandb-key", "wandb_v1_", r"[\w-]{40,}"),
    _row("pinecone-key", "pcsk_", r"[A-Za-z0-9_]{40,}", _LEFT),
    _row("modal-token", "ak- as-", r"(?=[A-Za-z]{0,20}[0-9])[A-Za-z0-9]{22}" + _RIGHT, _LEFT),
    # Messages
    _row("slack-token", "xoxb- xoxp- xoxa- xoxr- xoxs- xoxc- xoxd- xoxo- xoxe- xoxe.xoxb- xoxe.xoxp- xapp- xwfp-",
         r"[\w%-]{10,}"),
    _row("slack-webhook", "hooks.slack.com/", r"(?:services|workflows|triggers)/[A-Za-z0-9+/]{20,}"),
    _row("discord-webhook", "/api/webhooks/", r"\d{15,21}/[\w-]{50,}"),
    _row("discord-token", "MT Mj Mz ND NT Nj Nz OD OT", r"[\w-]{21,26}\.[\w-]{6}\.[\w-]{27,}", _LEFT),
    _row("discord-token", "mfa.", r"[\w-]{60,}", _LEFT),
    _row("teams-webhook", "/IncomingWebhook/", rf"[0-9a-f]{{32}}/{_UUID}(?:/[\w-]{{20,}})?"),
    _Row("telegram-token", (":AA",), r"[\w-]{32,33}" + _RIGHT, _LEFT[:-1] + "|(?<=bot))", r"\d{8,10}",
         (8, 9, 10)),
    _row("twilio-key", "SK", r"[0-9a-f]{32}" + _RIGHT, _LEFT),
    _row("sendgrid-key", "SG.", r"[\w-]{16,32}\.[\w-]{16,64}", _LEFT),
    _row("mailgun-key", "key-", r"[0-9a-zA-Z]{32}" + _RIGHT, _LEFT),
    _Row("mailchimp-key", ("-us",), r"\d{1,2}" + _RIGHT, _LEFT, r"[0-9a-f]{32}", (32,)),
    _row("mandrill-key", "md-", r"(?=[\w-]{0,21}[0-9])(?=[\w-]{0,21}[A-Z])[\w-]{22}" + _RIGHT, _LEFT),
    _row("brevo-key", "xkeysib- xsmtpsib-", r"[0-9a-f]{64}-[A-Za-z0-9]{16}"),
    _row("resend-key", "re_", r"[A-Za-z0-9]{8}_[A-Za-z0-9]{24}" + _RIGHT, _LEFT),
    # Money and shops
    _row("stripe-key", "sk_live_ sk_test_ rk_live_ rk_test_ sk_org_live_ sk_org_test_", r"[A-Za-z0-9]{10,}"),
    _row("stripe-key", "whsec_", r"[A-Za-z0-9+/]{24,}={0,2}"),
    _row("square-token", "sq0atp- sq0csp- sq0idp-", r"[\w-]{20,}"),
    _row("square-token", "EAAA", r"[\w-]{56,}", _LEFT),
    _row("shopify-token", "shpat_ shpca_ shppa_ shpss_ shpua_ shptka_", r"[0-9a-fA-F]{32}"),
    _row("braintree-token", "access_token$production$ access_token$sandbox$", r"[0-9a-z]{16}\$[0-9a-f]{32}"),
    _row("plaid-token", "access-sandbox- access-development- access-production-", _UUID),
    _row("flutterwave-key", "FLWSECK- FLWSECK_TEST-", r"[0-9a-zA-Z]{12,}(?:-X)?"),
    _row("shippo-token", "shippo_live_ shippo_test_", r"[0-9a-f]{40}"),
    _row("easypost-key", "EZAK EZTK", r"[A-Za-z0-9]{54}", _LEFT),
    _row("duffel-token", "duffel_live_ duffel_test_", r"[\w-]{40,}"),
    _row("lob-key", "live_ test_", r"[0-9a-f]{35}" + _RIGHT, _LEFT),
    # Work
    _row("notion-token", "ntn_", r"[A-Za-z0-9]{40,}", _LEFT),
    _row("notion-token", "secret_", r"[A-Za-z0-9]{43}" + _RIGHT, _LEFT),
    _row("linear-key", "lin_api_ lin_oauth_ lin_wh_", r"[A-Za-z0-9]{32,}"),
    _row("figma-token", "figd_ figo_ figu_", r"[\w-]{36,}"),
    _row("airtable-token", "pat", r"[A-Za-z0-9]{14}\.[0-9a-f]{64}", _LEFT),
    _row("postman-key", "PMAK-", r"[0-9a-f]{24}-[0-9a-f]{34}"),
    _row("hubspot-token", "pat-na1- pat-na2- pat-eu1- pat-ap1-", _UUID),
    _row("typeform-token", "tfp_", r"[\w-]{40,}", _LEFT),
    _row("contentful-token", "CFPAT-", r"[\w-]{43,}"),
    _row("readme-key", "rdme_", r"[a-z0-9]{60,}"),
    _row("prefect-key", "pnu_ pnb_", r"[A-Za-z0-9]{36,}", _LEFT),
    _row("stytch-secret", "secret-live- secret-test-", r"[\w-]{36}={0,2}"),
    _row("launchdarkly-key", "sdk- api- mob-", _UUID, _LEFT),
    # Data
    _row("databricks-token", "dapi dkea", r"[0-9a-f]{32}(?:-\d)?" + _RIGHT, _LEFT),
    _row("dropbox-token", "sl.", r"(?:u\.)?[\w-]{100,}", _LEFT),
    _row("facebook-token", "EAA", r"[A-Za-z0-9]{80,}", _LEFT),
    _row("newrelic-key", "NRAK- NRJS- NRII- NRRA-", r"[\w-]{19,}"),
    _row("grafana-token", "glsa_", r"[A-Za-z0-9]{32}_[0-9a-fA-F]{8}"),
    _row("grafana-token", "glc_", r"[A-Za-z0-9+/]{32,}={0,2}", _LEFT),
    _row("sentry-token", "sntrys_", r"[\w+/=-]{40,}"),
    _row("sentry-token", "sntryu_", r"[0-9a-f]{64}"),
    _row("dynatrace-token", "dt0c01. dt0s01. dt0s02. dt0s16.", r"[A-Z2-7]{8,24}\.[A-Z2-7]{64}"),
    _row("supabase-key", "sbp_", r"(?:v0_)?[0-9a-f]{40}", _LEFT),
    _row("supabase-key", "sb_secret_", r"[\w-]{20,}"),
    _row("planetscale-token", "pscale_tkn_ pscale_pw_ pscale_oauth_", r"[\w.=-]{32,}"),
    _row("neon-key", "napi_", r"[a-z0-9]{40,}", _LEFT),
    _row("mapbox-token", "sk.eyJ", r"[\w-]{20,}\.[\w-]{10,}", _LEFT),
    # Anyone's
    _row("jwt", "eyJ", r"[\w-]{5,}+\.[\w-]{5,}+(?:\.[\w-]*+){0,4}", _LEFT_OF_RUN),
    # Within a run the head is bounded, since it may be read again from the next place that looks like one.
    _row("jwt", "eyJ", r"[\w-]{5,250}+\.[\w-]{5,}+(?:\.[\w-]*+){0,4}", _LEFT),
    _row("private-key", "LS0tLS1CRUdJTi", r"(?!BDRVJUSUZJQ0FUR|BQVUJMSUMg)[A-Za-z0-9+/]{20,}={0,2}", _LEFT),
    _row("password-hash", "$2a$ $2b$ $2y$", r"\d\d\$[A-Za-z0-9./]{53}"),
    _row("password-hash", "$argon2", r"id?\$(?:v=\d+\$)?[mtp=,\d]{5,40}\$[A-Za-z0-9+/]{8,}\$[A-Za-z0-9+/]{16,}"),
    _row("password-hash", "$1$ $5$ $6$ $y$ $7$ $apr1$",
         r"(?:rounds=\d{1,9}\$)?[A-Za-z0-9./]{1,32}(?:\$[A-Za-z0-9./]{1,22})?\$[A-Za-z0-9./]{22,}"),
)  # fmt: skip


def _by_literal() -> dict[str, tuple[tuple[_Row, str], ...]]:
    """For each literal the rows to try where it stands: its own, then those of literals that it begins with."""
    pairs = sorted(((literal, row) for row in _ROWS for literal in row.literals), key=lambda pair: -len(pair[0]))
    return {
        announced: tuple((row, literal) for literal, row in pairs if announced.startswith(literal))
        for announced, _ in pairs
    }


def _any_of(literals: Iterable[str]) -> str:
    """One expression for all literals, longer ones first; that it branches on the first character makes it fast."""
    by_first: dict[str, list[str]] = defaultdict(list)
    for literal in sorted(literals, key=len, reverse=True):
        by_first[literal[0]].append(re.escape(literal[1:]))
    return "|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in by_first.items())


_BY_LITERAL = _by_literal()
_LITERALS = re.compile(_any_of(_BY_LITERAL))


def known_formats(text: str, start: int, end: int) -> Iterator[Finding]:
    """The keys and tokens that begin between start and end, in order; none overlaps another."""
    while literal := _LITERALS.search(text, start, end):
        found = _at(text, literal)
        if found is None:
            start = literal.start() + 1
        else:
            yield found
            start = found.end


def _at(text: str, announced: re.Match[str]) -> Finding | None:
    for kind, back, pattern in _expressions(announced.group()):
        at = announced.start() - back
        found = pattern.match(text, at) if at >= 0 else None
        if found is not None:
            return Finding(kind=kind, start=found.start(), end=found.end())
    return None


@cache
def _expressions(announced: str) -> tuple[tuple[str, int, re.Pattern[str]], ...]:
    # Compiled when first met: most processes meet a few.
    return tuple(
        (row.kind, back, re.compile(row.left + row.before + re.escape(literal) + row.body, re.ASCII))
        for row, literal in _BY_LITERAL[announced]
        for back in row.back
    )
