"""Redaction: what is secret goes, what is not stays, and no text takes long."""

from __future__ import annotations

import base64
import json
import random
import re
import string
import uuid
from typing import TYPE_CHECKING

import pytest
from hivemem.redaction import OPTIONAL_KINDS, Finding, Redactor, Rules, redact
from hivemem.redaction._entropy import is_random
from hivemem.redaction._words import long_words
from hypothesis import example, given, settings
from hypothesis import strategies as st
from unit.secret_corpus import EXAMPLES, SHAPES, Secret, corpus, drawn, private_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CORPUS = corpus()
MIB = 1 << 20
MADE = random.Random(11)
PERSONAL = Rules(kinds=tuple(sorted(OPTIONAL_KINDS)))

# Where a secret stands alone, so that its mark takes exactly its place.
NEUTRAL = (
    "{}", "The old one was {}, and it must go.", "It ends with {}", "first line\n{}\nlast line", "see ({}).", "`{}`",
    "**{}**", "[\"{}\", 1]", "- {}\n- other", "a;{};b", "<b>{}</b>", "{}!", "“{}”", "x={}", "key:{}", "a,{},b",
    "tail -f log | grep {} | wc", "https://api.example.org/v1/{}?page=2", "https://example.org/?q={}&page=2",
    "{{\"note\": \"line one\\n{}\\nline three\"}}", "é{}漢", "\x1b[32m{}\x1b[0m",
)  # fmt: skip
# Where a name says more: the mark may take in what belongs to it.
NAMED = (
    "API_KEY={}", "export TOKEN='{}'", '{{"token": "{}", "user": "bob"}}', "secret: {}\nuser: bob", "token = {}",
    "Authorization: Bearer {}", "curl -H \"X-Api-Key: {}\" https://example.org",
    "https://example.org/?access_token={}&a=1", "https://bob:{}@example.org/repo.git",
    "{{\\\"password\\\": \\\"{}\\\"}}", "<secret>{}</secret>", "--token {} --verbose", "my password is {} since May",
    "client = Client(api_key=\"{}\")", "password%3D{}",
)  # fmt: skip


def identity(secret: Secret) -> str:
    return f"{secret.kind}:{secret.text[:8]}"


# --- known formats ---


def test_the_corpus_has_many_formats() -> None:
    assert len({kind for kind, _ in SHAPES}) >= 60
    assert len(CORPUS) == EXAMPLES * len(SHAPES)


@pytest.mark.parametrize("template", NEUTRAL)
def test_the_mark_takes_exactly_the_place_of_the_secret(template: str) -> None:
    missed = [s for s in CORPUS if redact(template.format(s.text)) != template.format(f"[REDACTED:{s.kind}]")]
    assert not missed, (len(missed), missed[:3], [redact(template.format(s.text)) for s in missed[:3]])


@pytest.mark.parametrize("template", NAMED)
def test_no_secret_survives_behind_a_name(template: str) -> None:
    assert not [
        s
        for s in CORPUS
        if s.text in redact(template.format(s.text)) or "[REDACTED:" not in redact(template.format(s.text))
    ]


def test_several_secrets_in_one_text_all_go() -> None:
    redacted = redact(", ".join(s.text for s in CORPUS))
    assert redacted == ", ".join(f"[REDACTED:{s.kind}]" for s in CORPUS)


def test_findings_say_where_and_what() -> None:
    before = "İ 🙂 漢字 "
    for secret in CORPUS:
        text = f"{before}{secret.text} and so on"
        found = Redactor().finds(text)
        assert found == [Finding(kind=secret.kind, start=len(before), end=len(before) + len(secret.text))]


# --- private keys ---

LABELS = (
    "PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "DSA PRIVATE KEY", "OPENSSH PRIVATE KEY",
    "ENCRYPTED PRIVATE KEY", "PGP PRIVATE KEY BLOCK",
)  # fmt: skip
PUBLIC_LABELS = (
    "CERTIFICATE",
    "PUBLIC KEY",
    "RSA PUBLIC KEY",
    "PGP PUBLIC KEY BLOCK",
    "PGP SIGNATURE",
    "CERTIFICATE REQUEST",
)


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("joint", ["\n", "\r\n", "\\n", "\\\\n", "\n    ", "\n> "])
def test_a_private_key_goes_however_its_lines_are_broken(label: str, joint: str) -> None:
    block = joint.join(private_key(label, MADE))
    assert redact(f'before "{block}" after') == 'before "[REDACTED:private-key]" after'


def test_an_encrypted_private_key_goes_with_its_headers() -> None:
    headers = ("Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-128-CBC," + drawn("cap", 32, MADE))
    block = private_key("RSA PRIVATE KEY", MADE, headers=headers)
    assert redact("\n".join(["a", *block, "b"])) == "a\n[REDACTED:private-key]\nb"
    assert redact("\n".join(block[:9])) == "[REDACTED:private-key]"


@pytest.mark.parametrize("label", LABELS)
def test_a_private_key_that_is_cut_off_goes(label: str) -> None:
    lines = private_key(label, MADE)[:7]
    assert redact("\n".join([*lines, "", "The rest is elsewhere."])).endswith(
        "[REDACTED:private-key]\n\nThe rest is elsewhere."
    )
    assert redact("\n".join(lines) + "\n" + drawn("let", 9, MADE)) == "[REDACTED:private-key]"
    assert redact("\\n".join(lines)) == "[REDACTED:private-key]"


def test_keys_beside_each_other_are_told_apart() -> None:
    first, second = ["\n".join(private_key(label, MADE)) for label in LABELS[:2]]
    assert redact(f"{first}\nand\n{second}") == "[REDACTED:private-key]\nand\n[REDACTED:private-key]"


def test_a_private_key_in_base64_goes() -> None:
    encoded = base64.b64encode("\n".join(private_key("RSA PRIVATE KEY", MADE)).encode()).decode()
    assert redact(f"client-key-data: {encoded}\n") == "client-key-data: [REDACTED:private-key]\n"


@pytest.mark.parametrize("label", PUBLIC_LABELS)
@pytest.mark.parametrize("joint", ["\n", "\\n"])
def test_certificates_and_public_keys_stay(label: str, joint: str) -> None:
    text = f"before {joint.join(private_key(label, MADE))} after"
    assert redact(text) is text


# --- names ---

HUNTER = "hunter" + "2"
STRONG = "aB3$kL9" + "!xQ7"
TOKEN = "zk4" + "Qm82Lx0vB7"

ASSIGNED = (
    "password={}", "password = {}", "password: {}", "Password: {}", "PASSWORD={}", "password := {}", "password => {}",
    "passwd={}", "pwd={}", "passphrase: {}", "passcode: {}", "DB_PASS={}", "dbPass={}", "PGPASSWORD={} psql",
    "secret: {}", "secret={}", "client_secret={}", "clientSecret: '{}'", "app.secret={}", "userPassword={}",
    "new_password1={}", "password_prod={}", "passwordHash: \"{}\"", "\"password\": \"{}\"", "'password': '{}'",
    "'password' => '{}'", "config['password'] = '{}'", "config[\"password\"] = \"{}\"",
    "{{\\\"password\\\":\\\"{}\\\"}}", "password=\"{}\";", "password: str = \"{}\"", "password: string = '{}'",
    "password string = \"{}\"", "char password[] = \"{}\";", "password = b'{}'", "if password == \"{}\":",
    "export DB_PASSWORD={}", "set DB_PASSWORD={}", "ENV DB_PASSWORD={}", "  - DB_PASSWORD={}\n  - OTHER=1",
    "- name: DB_PASSWORD\n  value: {}\n", "{{\"name\": \"DB_PASSWORD\", \"value\": \"{}\"}}", "<password>{}</password>",
    "<add key=\"Password\" value=\"{}\"/>", "<input type=\"password\" value=\"{}\">", "--password {}", "--password={}",
    "--db-password '{}'", "mysqldump --password={} db", "[\"--password\", \"{}\"]",
    "curl -u bob:{} https://example.org", "curl --user \"bob:{}\" https://example.org",
    "https://example.org/?a=1&password={}&b=2", "?password={}", "Server=db;User Id=sa;Password={};Encrypt=true",
    "host=db password={} user=bob", "machine example.org login bob password {}", "ALTER ROLE bob WITH PASSWORD '{}';",
    "CREATE USER bob IDENTIFIED BY '{}'", "the password is {}", "set the password to {}", "user: bob, pw: {}",
    "My password is {}.", "the password for the staging box is {}, by the way", "password (root): {}",
    "password for bob: {}", "password: >-\n  {}\n", "password: |\n    {}\nuser: bob", "password:\t{}", "password%3D{}",
    "&quot;password&quot;:&quot;{}&quot;", "%22password%22:%22{}%22", "log line password={}\\nnext line",
    "**Password:** x password: `{}`", "`password`: `{}`", "connect(user=bob, password='{}')",
    "User(name='bob', password='{}')", "{{password: '{}'}}", "ключ, password: {}", "密码 password={}。然后",
    "Passwort: {}",
    "spring.datasource.password={}", "$password = '{}';",
)  # fmt: skip


@pytest.mark.parametrize("template", ASSIGNED)
@pytest.mark.parametrize("secret", [HUNTER, STRONG])
def test_a_password_behind_a_name_goes_and_the_rest_stays(template: str, secret: str) -> None:
    kinds = "password|secret"
    expected = re.escape(template.format("\0")).replace("\0", rf"\[REDACTED:(?:{kinds})\]")
    assert re.fullmatch(expected, redact(template.format(secret))), redact(template.format(secret))


@pytest.mark.parametrize(
    "text",
    [
        "DB_PASSWORD=letmein", "password=letmein", "password: letmein\nuser: bob", '"password": "letmein"',
        "password: 'a b c d'", "POSTGRES_PASSWORD: mysecretpassword", "passphrase: correct-horse-battery-staple",
        '{"password": 12345678, "a": 1}', "--password letmein", '"passphrase": "correct horse battery staple"',
        "password=" + "x" * 600, "PASSWORD=çédille9",
    ],
)  # fmt: skip
def test_weak_and_strange_passwords_go_too(text: str) -> None:
    redacted = redact(text)
    assert "[REDACTED:password]" in redacted
    assert len(re.sub(r"\[.*?\]", "", redacted)) < len(text) - 5


TOKENS = (
    "token = {}", "token: {}", "TOKEN={}", "secret_key_base: {}", "access_token={}", "accessToken: '{}'",
    "refresh_token: {}", "api_key={}", "apiKey: \"{}\"", "api-key: {}", "API key: {}", "X-Api-Key: {}",
    "x-goog-api-key: {}", "X-Auth-Token: {}", "PRIVATE-TOKEN: {}", "Ocp-Apim-Subscription-Key: {}",
    "aws_secret_access_key = {}", "AccountKey={};EndpointSuffix=core", "signing_key: {}", "encryption.key={}",
    "private_key={}", "--api-key {}", "--auth-token={}", "//packages.example/:_authToken={}", "{{\"auth\": \"{}\"}}",
    "https://example.org/?api_key={}", "https://example.org/#access_token={}&state=1", "the API key is {}",
    "webhook_secret: {}", "SLACK_SIGNING_SECRET={}", "token%3D{}", "os.environ['API_KEY'] = '{}'", "credentials: {}",
)  # fmt: skip


@pytest.mark.parametrize("template", TOKENS)
def test_a_token_behind_a_name_goes(template: str) -> None:
    expected = re.escape(template.format("\0")).replace("\0", r"\[REDACTED:[a-z-]+\]")
    assert re.fullmatch(expected, redact(template.format(TOKEN))), redact(template.format(TOKEN))


# --- headers and addresses ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Bearer {}", "Authorization: Bearer [REDACTED:authorization-header]"),
        ("authorization: bearer {}", "authorization: bearer [REDACTED:authorization-header]"),
        ('-H "Authorization: Basic {}" -d x', '-H "Authorization: Basic [REDACTED:authorization-header]" -d x'),
        ('{{"Authorization": "Bearer {}"}}', '{{"Authorization": "Bearer [REDACTED:authorization-header]"}}'),
        ("{{'Authorization': 'token {}'}}", "{{'Authorization': 'token [REDACTED:authorization-header]'}}"),
        ("Authorization: {}\nHost: x", "Authorization: [REDACTED:authorization-header]\nHost: x"),
        ("Proxy-Authorization: Basic {}\r\n", "Proxy-Authorization: Basic [REDACTED:authorization-header]\r\n"),
        ('Authorization: Digest username="bob", response="{}"\nA: b',
         "Authorization: Digest [REDACTED:authorization-header]\nA: b"),
        ("'Authorization: AWS4-HMAC-SHA256 Credential=x, Signature={}' x",
         "'Authorization: AWS4-HMAC-SHA256 [REDACTED:authorization-header]' x"),
        ("sent with Bearer {}xyz987 today", "sent with Bearer [REDACTED:authorization-header] today"),
        ("Cookie: sid={}; theme=dark\nHost: x", "Cookie: [REDACTED:cookie]\nHost: x"),
        ("Set-Cookie: sid={}; Path=/; HttpOnly", "Set-Cookie: [REDACTED:cookie]"),
        ("curl -H 'Cookie: sid={}' https://x.org", "curl -H 'Cookie: [REDACTED:cookie]' https://x.org"),
        ('{{"set-cookie": "sid={}; Secure"}}', '{{"set-cookie": "[REDACTED:cookie]"}}'),
    ],
)  # fmt: skip
def test_headers_lose_their_credentials(text: str, expected: str) -> None:
    assert redact(text.format(TOKEN)) == expected.format()


@pytest.mark.parametrize(
    "template",
    [
        "postgres://app:{}@db.internal:5432/main", "https://bob:{}@example.org/x", "redis://:{}@cache:6379/0",
        "amqp://a:{}@h", "mongodb+srv://app:{}@cluster0.example.net/?w=majority", "see <ftp://bob:{}@h.org/f>.",
        "'mysql://root:{}@localhost/x'", "git clone https://oauth2:{}@git.example.org/a/b.git",
        "http://bob:{}@[::1]:80/", "postgres://bob:{}@${{HOST}}/x",
    ],
)  # fmt: skip
@pytest.mark.parametrize("password", [HUNTER, "p@ss", "a:b:c", "pass" + "word", "50%25off", "x/y+z9"])
def test_addresses_keep_user_and_host_and_lose_the_password(template: str, password: str) -> None:
    assert redact(template.format(password)) == template.format("[REDACTED:url-credentials]")


def test_a_token_alone_before_the_host_goes() -> None:
    assert (
        redact(f"https://{TOKEN}abcdef12@git.example.org/x") == "https://[REDACTED:url-credentials]@git.example.org/x"
    )


# --- what stays ---

PLAIN = (
    "the password to the server", "change the password to something long", "upw: x1234567",
    "the password is required", "The password is wrong.", "a password was set", "Password: required",
    "password must be long", "token count: 128", "token: 128", "max_tokens=4096, temperature=0.2", "tokens: 4096",
    "total_tokens: 123456", "token_type=bearer", "secret: I love him", "The secret: patience",
    "Cabinet Secretary for Education: Kirsty", "tokenizer: bert-base-uncased-v2", "password: ${PASSWORD}",
    "password=$PASSWORD", "password: $(cat /run/secrets/x)", "password: {{ vault.password }}", "password=%s",
    "password: <password>", "password=<your-password>", "password=****", "password: xxxxxxxx", "password: ...",
    "password: None", "password=null", "token = true", "token: false", "password: \"\"", "password=''", "password:",
    "password=", "api_key: YOUR_API_KEY", "api_key='your-api-key-here'", "password: %(password)s", "password=:password",
    "password = @Password", "token: <REDACTED>", "password: [REDACTED]", "password: str", "password: str | None = None",
    "def login(user: str, password: str) -> None:", "login(user=user, password=password)", "password = get_password()",
    "password=os.environ[\"DB_PASSWORD\"]", "token = self.token", "password: process.env.DB_PASSWORD",
    "token = await client.fetch_token(code)", "const { password } = req.body;", "password=args.password,",
    "password = getpass.getpass(\"Password: \")", "secretName: my-tls", "secretKeyRef: db",
    "password_file: /run/secrets/db_password", "password: /run/secrets/db_password", "--password-file pw.txt",
    "use the --password option", "--password PASSWORD  the password", "\"password\": \"This field is required.\"",
    "key: value", "primary_key: id12345", "foreign key: user42id", "cache_key=user:1234:profile",
    "public_key: abc123def456", "page_token=abc123def456", "next_page_token: abc123def456", "compass: 4711abc",
    "PWD=/home/bob/src", "author: Jane Doe 2nd", "authority: example.org", "auth: oauth2", "auth=basic",
    "Authorization: required", "bearer of good news: 2024", "Bearer authentication is used here", "cookie: chocolate",
    "cookies: yes", "pass: 12, fail: 3", "bypass=1234abcd", "signature: f(x) -> y", "http://localhost:3000/@scope/pkg",
    "https://example.org:8080/a@b", "ssh://git@github.com/a/b.git", "mailto:bob@example.org", "a://b",
    "PASS: ld-elf/linkinfo1a", "--- PASS: TestThing2 (0.01s)", "def f(entry: pwd.struct_passwd) -> Account2:",
    'Finding(kind="cookie", start=cookies.start())', "see issue?key=6254792024915968", "Signature: 8a477f597d28d172",
    "docker run -u 1000:1000 image", "git log -u master:topic", "C:\\Program Files\\passwords\\x",
    "password strength: high", "secret santa: Bob", "password: str = Field(..., min_length=8)",
    "token: Optional[str] = None", "arn:aws:secretsmanager:eu-west-1:123456789012:secret:db", "we passed: 10 of 12",
    "keyboard: qwerty123", "tokens per second: 1234", "it has a secret: a door", "Passwords are stored as hashes.",
)  # fmt: skip


@pytest.mark.parametrize("text", PLAIN)
def test_prose_code_and_placeholders_stay(text: str) -> None:
    assert redact(text) is text


SHA512 = base64.b64encode(bytes(MADE.randrange(256) for _ in range(64))).decode()
SHA256 = base64.b64encode(bytes(MADE.randrange(256) for _ in range(32))).decode()
HARMLESS = (
    drawn("hex", 40, MADE), drawn("hex", 64, MADE), drawn("hex", 32, MADE), drawn("hex", 7, MADE),
    drawn("hex", 128, MADE), drawn("hex", 40, MADE).upper(), f"0x{drawn('hex', 40, MADE)}",
    f"commit {drawn('hex', 40, MADE)}\nAuthor: Jane",
    str(uuid.UUID(int=MADE.getrandbits(128), version=4)),
    f"sha256:{drawn('hex', 64, MADE)}", f"image@sha256:{drawn('hex', 64, MADE)}", f"integrity sha512-{SHA512}",
    f'integrity="sha384-{SHA512[:64]}"', f'"integrity": "sha512-{SHA512}"',
    f"resolution: {{integrity: sha512-{SHA512}}}", f"github.com/a/b v1.2.3 h1:{SHA256}",
    f"a/b.py,sha256={SHA256.replace('+', '-').replace('/', '_').rstrip('=')},123", f"SHA256:{SHA256.rstrip('=')}",
    f'--hash=sha256:{drawn("hex", 64, MADE)}', f'checksum = "{drawn("hex", 64, MADE)}"',
    "/usr/local/lib/python3.11/site-packages/hivemem/redaction/__init__.py",
    "~/Library/Application Support/Some-Long-Name/Cache/data_0.bin",
    "C:/Users/Administrator/Documents/Projects/2024/quarterly-report-final-v2.docx",
    f"/nix/store/{drawn('low', 32, MADE)}-glibc-2.39/lib", f"/var/lib/docker/overlay2/{drawn('hex', 64, MADE)}/merged",
    f"objects/{drawn('hex', 2, MADE)}/{drawn('hex', 38, MADE)}",
    "https://example.org/blog/2024/05/17/how-we-moved-our-whole-database-to-another-continent-in-a-week",
    "https://files.example.org/packages/ab/cd/" + drawn("hex", 60, MADE) + "/hivemem-0.1.0-py3-none-any.whl",
    "https://example.org/documents/AnnualReportOfTheDepartmentForTransport2023Final.pdf",
    "org/en-US/docs/Web/JavaScript/Data_structures", f"https://cdn.example.org/images/{drawn('url', 40, MADE)}.jpg",
    "refs/remotes/origin/feature/JIRA-1234-add-some-very-long-name",
    "AbstractSingletonProxyFactoryBeanConfigurationManager",
    "getUserAuthenticationProviderConfigurationFromEnvironment",
    "test_that_a_very_long_function_name_is_not_taken_for_a_secret",
    "MAXIMUM_NUMBER_OF_CONCURRENT_DATABASE_CONNECTIONS", "ossl_check_SRTP_PROTECTION_PROFILE_sk_type",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384_AND_MORE", "kebab-case-names-can-also-be-rather-long-2",
    "Donaudampfschifffahrtselektrizitaetenhauptbetriebswerkbauunterbeamtengesellschaft",
    "pneumonoultramicroscopicsilicovolcanoconiosis", "a" * 64, "-" * 80, "=" * 80, "_" * 40, "0123456789" * 5,
    "ab" * 40, "A" * 100, string.ascii_letters + string.digits, "xX" * 30, "1234-" * 12,
    "1700000000000000000000000000000000001", "2024-05-17T12:34:56.789012345+00:00/2024-05-18T00:00:00",
    "3.14159265358979323846264338327950288", "data:image/png;base64,iVBORw0KGgo" + drawn("b64", 200, MADE),
    f"data:image/svg+xml;base64,{drawn('b64', 100, MADE)}", "data:font/woff2;base64," + drawn("b64", 120, MADE),
    "/9j/" + drawn("b64", 300, MADE), "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5" + drawn("b64", 48, MADE),
    "ssh-rsa AAAAB3NzaC1yc2E" + drawn("b64", 348, MADE) + " bob@host",
    "sk-learn-compatible-estimators-are-welcome-here", "risk-based-approach-to-key-management",
)  # fmt: skip


@pytest.mark.parametrize("text", HARMLESS)
@pytest.mark.parametrize("template", ["{}", "see {} for more", '"{}"', "x\n{}\ny"])
def test_digests_paths_and_names_stay(text: str, template: str) -> None:
    whole = template.format(text)
    assert redact(whole) is whole


# --- high entropy ---


@pytest.mark.parametrize("alphabet", ["let", "url", "b64", "low", "cap", "b32"])
@pytest.mark.parametrize("length", [32, 40, 64, 128])
def test_nearly_all_random_strings_go(alphabet: str, length: int) -> None:
    made = random.Random(length)
    texts = [f"the value {drawn(alphabet, length, made)} was drawn" for _ in range(500)]
    kept = sum(redact(text) == text for text in texts)
    assert kept <= 5, f"{kept} of {len(texts)} stayed"


def test_a_random_part_of_a_path_goes_alone() -> None:
    part = drawn("let", 44, random.Random(3))
    assert redact(f"https://example.org/reset/{part}/now") == "https://example.org/reset/[REDACTED:high-entropy]/now"
    assert redact(f"/srv/files/{part}/now") == "/srv/files/[REDACTED:high-entropy]/now"


def test_words_are_not_random_and_keys_are() -> None:
    assert not is_random("configuration_of_the_environment_and_its_services")
    assert is_random(drawn("let", 40, random.Random(5)))


# --- marks, offsets, rules ---


@pytest.mark.parametrize(
    "text",
    [
        "password=[REDACTED:password] for the board", "[REDACTED:api-key]: value1234567",
        "Authorization: Bearer [REDACTED:jwt]", "postgres://app:[REDACTED:url-credentials]@db/x",
        '"token": "[REDACTED:token]"', "[REDACTED:private-key][REDACTED:high-entropy]", "Cookie: [REDACTED:cookie]",
    ],
)  # fmt: skip
def test_marks_are_left_alone(text: str) -> None:
    assert redact(text) is text
    assert redact(text, Rules(kinds=PERSONAL.kinds, patterns=(r"REDACTED", r"\[[A-Z]{1,9}:[a-z-]{1,30}"))) == text


def test_rules_that_are_off_replace_nothing() -> None:
    text = f"password={HUNTER}"
    assert redact(text, Rules(enabled=False)) is text
    assert Redactor(Rules(enabled=False)).finds(text) == []


def test_an_empty_text_stays_empty() -> None:
    assert redact("") == ""
    assert Redactor().finds("") == []


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="`passport` is no kind of personal data; known are card, email, phone"):
        Redactor(Rules(kinds=("email", "passport")))


# --- personal data ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("write to jane.doe+x@mail.example.org.", "write to [REDACTED:email]."),
        ("<jürgen@exämple.de>, (a_b@c-d.co.uk)", "<[REDACTED:email]>, ([REDACTED:email])"),
        ("call +49 30 1234567 or +1 (415) 555-2671.", "call [REDACTED:phone] or [REDACTED:phone]."),
        ("(415) 555-2671, 415.555.2671, 415-555-2671", "[REDACTED:phone], [REDACTED:phone], [REDACTED:phone]"),
        ("+4915112345678; 0044 20 7946 0958; 030 1234 567", "[REDACTED:phone]; [REDACTED:phone]; [REDACTED:phone]"),
        ("card 4111 1111 1111 1111 exp 12/27", "card [REDACTED:card] exp 12/27"),
        ("5500-0000-0000-0004, 378282246310005", "[REDACTED:card], [REDACTED:card]"),
    ],
)  # fmt: skip
def test_personal_data_goes_where_asked_for(text: str, expected: str) -> None:
    assert redact(text, PERSONAL) == expected
    assert redact(text) is text


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112", "order 1234567890123456", "2024-05-17 12:34:56", "192.168.100.200", "v1.2.3-rc.4", "a@b",
        "@decorator", "git@github.com:a/b.git"[3:], "pip install x==1.2.3", "978-3-16-148410-0", "1,234,567,890",
        "3.141592653589793", "10.1016/j.x.2024.123456", drawn("num", 30, MADE), f"x{drawn('num', 16, MADE)}",
        "07:45 - 08:30", "2019-1035(22)00489-4",
    ],
)  # fmt: skip
def test_other_numbers_are_not_personal(text: str) -> None:
    assert redact(text, PERSONAL) is text


def test_an_address_with_a_password_keeps_its_host_when_mail_is_redacted() -> None:
    text = f"https://bob:{HUNTER}@example.org/x"
    assert redact(text, PERSONAL) == "https://bob:[REDACTED:url-credentials]@example.org/x"


# --- users' patterns ---

ACCEPTED = (
    (r"EMP-\d{6}", "EMP-123456"), (r"\bEMP-\d+\b", "EMP-1"), (r"(?i)project (?:red|blue) fox", "Project Blue Fox"),
    (r"CUST[-_]?[0-9A-F]{4,12}", "CUST_00FF"), (r"internal-[a-z]+-\d+", "internal-abc-12"),
    (r"\b[\w]+@corp\.example\b", "bob@corp.example"), (r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}", "00:1a:2b:3c:4d:5e"),
    (r"\d{1,3}(?:\.\d{1,3}){3}", "10.0.0.1"), (r"ID:\s*\S+", "ID: 42x"), (r"(?P<name>a|b)c{2,3}", "acc"),
    (r"Straße \d+", "Straße 5"), (r"^Subject: .*$", "Subject: x"), (r"[^\W\d_]{3}-\d{3}", "äbc-123"),
    (r"(?:alpha|beta|gamma)-site", "beta-site"), (r"<<[^<>]*>>", "<<x>>"), (r"acct_[A-Za-z0-9]+", "acct_1aB"),
)  # fmt: skip


@pytest.mark.parametrize(("pattern", "match"), ACCEPTED)
def test_a_pattern_of_the_user_is_replaced(pattern: str, match: str) -> None:
    assert redact(match, Rules(patterns=(pattern,))) == "[REDACTED:custom]"


@pytest.mark.parametrize(("pattern", "match"), ACCEPTED)
@pytest.mark.timeout(30)
def test_an_accepted_pattern_is_fast_on_hostile_text(pattern: str, match: str) -> None:
    redactor = Redactor(Rules(patterns=(pattern,)))
    for unit in (match, match[:-1], match[0], match[-1], "a", "1", "a.", "a@", "a-", " ", "\n"):
        redactor.redact((unit * (MIB // 16))[: MIB // 16])


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(a+)+b", "repeats a group that itself repeats"),
        (r"(a|aa)+b", "repeats a group that itself repeats or chooses"), (r"(\w+\s?)*x", "repeats a group"),
        (r"\w+@corp", "long repeat that can begin at any place"), (r".*x", "begin at any place"),
        (r"a.*b", "begin at any place"), (r"x\d+\d+y", "several long repeats"), (r"(?:a?){20}b", "repeats a group"),
        (r"a{0,60}a{0,60}a{0,60}b", "share a text in too many ways"), (r"(a)\1", "a reference to a group"),
        (r"(?=x)y", "a lookaround"), (r"(?<!x)y", "a lookaround"), (r"(?>x)y", "an atomic group"),
        (r"x++y", "a possessive repeat"), (r"(x)?(?(1)y|z)", "a condition on a group"),
        (r"[", "is no regular expression"), (r"(", "is no regular expression"), (r"\p{Lu}", "is no regular expression"),
        (r"x*", "matches where there is nothing"), (r"", "matches where there is nothing"),
        (r"\b", "matches where there is nothing"), (r"[[:alpha:]]x", "POSIX class"),
        ("x" * 1025, "has 1025 bytes; at most 1024"), ("ä" * 513, "has 1026 bytes"),
        (r"\b[\w.]+@x", "begin at any place"), (r"(?m)^[^x]*y", "begin at any place"),
        (r"(?s)x.*y", "begin at any place"), ("(?:a|b|c|d){9}e|" + "(?:ab|cd|ef|gh)" * 6, "combinations"),
        (r"a(?:bc|d){1,40}e", "repeats a group"), (r"[a-z]+[0-9]", "begin at any place"),
        ("(" * 90 + "a" + ")" * 90 + "{99999999999}", "is no regular expression|too often|repeats"),
    ],
)  # fmt: skip
def test_a_pattern_that_cannot_be_taken_is_refused_with_a_reason(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        Redactor(Rules(patterns=("fine", pattern)))
    assert str(refused.value).startswith(f"Pattern 2 (`{pattern[:20]}")
    assert str(refused.value).endswith(".")
    assert len(str(refused.value)) < 500


def test_too_many_patterns_are_refused() -> None:
    Redactor(Rules(patterns=tuple(f"x{n}" for n in range(64))))
    with pytest.raises(ValueError, match="65 patterns are given; at most 64 may be"):
        Redactor(Rules(patterns=tuple(f"x{n}" for n in range(65))))


# --- time ---

LONGER = ("a", "password=", "-----BEGIN ", "eyJ", "AKIA", "://", "@")
HOSTILE = (
    "a", "password=", "-----BEGIN ", "-----BEGIN RSA PRIVATE KEY-----", "eyJ", "eyJaaaaa.", "-eyJa", "AKIA", "://", "@",
    "://a:b@", "a@a.", "password=\"", "password=(", "password=a;", "password is ", "Authorization: Digest ",
    "Cookie: a=b;", "curl -u a:", "sk-", "hooks.slack.com/", "[REDACTED:", "\\\"", "aZ9", "aB3/", "1 ", "+1", "4111 ",
    "a/", "name: password\n", "İ", " ",
)  # fmt: skip


@pytest.mark.parametrize(("unit", "size"), [(unit, MIB if unit in LONGER else MIB // 4) for unit in HOSTILE])
@pytest.mark.timeout(30)
def test_hostile_text_is_redacted_in_time(unit: str, size: int) -> None:
    """What grew with the square of the length would take minutes here."""
    Redactor(PERSONAL).finds((unit * (size // len(unit) + 1))[:size])


# --- real text ---

FALSE_ALARMS = 0.005


def texts(folder: Path) -> dict[str, list[str]]:
    def strings(value: object) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from strings(inner)

    def of_json(pattern: str) -> list[str]:
        return [text for file in sorted(folder.glob(pattern)) for text in strings(json.loads(file.read_text("utf-8")))]

    irc = [file.read_text("utf-8", errors="replace") for file in sorted(folder.glob("irc/dev/*.ascii.txt"))]
    return {
        "locomo": of_json("locomo/*.json"),
        "qmsum": of_json("qmsum/val/*.json"),
        "who_when": of_json("who_when/*/*.json"),
        "irc": irc,
    }


@pytest.mark.parametrize("source", ["locomo", "qmsum", "who_when", "irc"])
def test_real_text_stays_nearly_whole(data_folder: Path, source: str) -> None:
    redactor = Redactor()
    words = alarms = 0
    for text in texts(data_folder)[source]:
        words += len(text.split())
        alarms += sum(len(text[found.start : found.end].split()) for found in redactor.finds(text))
    assert words > 100_000
    assert alarms / words < FALSE_ALARMS, f"{alarms} of {words} words"


# --- properties ---

FRAGMENTS = [
    *(s.text for s in CORPUS[::7]), "password", "=", ": ", "\"", "'", "\\n", "\n", " is ", "token", "api_key", "://",
    "bob:", "@", "host", "/", "-----BEGIN ", "PRIVATE KEY-----", "-----END ", HUNTER, TOKEN, "Bearer ",
    "Authorization: ", "Cookie: ", "a=b; ", "${X}", "(", ")", "[REDACTED:token]", "<", ">", ",", ";", "&", "...", "the",
    " ", "sha256:", "eyJ", "sk-", drawn("let", 40, MADE), drawn("hex", 40, MADE), "f(", "must", "+1 415 555 2671",
    "a@b.org", "\0", "curl -u a:",
]  # fmt: skip
HOSTILE_TEXT = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=14).map("".join)


@settings(max_examples=400, deadline=None)
@given(HOSTILE_TEXT)
@example(f'password="x ghp_{drawn("let", 36, random.Random(1))} must be y"')
def test_redacting_twice_changes_nothing(text: str) -> None:
    once = redact(text, PERSONAL)
    assert redact(once, PERSONAL) == once
    assert Redactor(PERSONAL).finds(once) == []


@settings(max_examples=200, deadline=None)
@given(HOSTILE_TEXT, st.lists(st.sampled_from([r"\w{3,9}", r"[a-z]=", "b+", r"\bo"]), max_size=2, unique=True))
def test_redacting_twice_changes_nothing_with_patterns_of_the_user(text: str, patterns: list[str]) -> None:
    redactor = Redactor(Rules(patterns=tuple(patterns)))
    once = redactor.redact(text)
    assert redactor.redact(once) == once


@settings(max_examples=400, deadline=None)
@given(
    st.text(max_size=40),
    st.sampled_from(CORPUS),
    st.text(max_size=40),
    st.sampled_from(" \n\t'\"`([{<>|,;:"),
    st.sampled_from(" \n\t'\"`)]}<>|,;!"),
)
def test_no_secret_survives_in_random_text(before: str, secret: Secret, after: str, left: str, right: str) -> None:
    redacted = redact(f"{before}{left}{secret.text}{right}{after}")
    assert secret.text not in redacted
    assert "[REDACTED:" in redacted


@settings(max_examples=200, deadline=None)
@given(HOSTILE_TEXT)
def test_findings_are_apart_in_order_and_inside_the_text(text: str) -> None:
    end = 0
    for found in Redactor(PERSONAL).finds(text):
        assert end <= found.start < found.end <= len(text)
        end = found.end


HARBOUR = """
we will meet again near the old harbour on Monday 14 and bring 3 boats (or more), won't we? 🙂 漢字 a/b i.e. 7.5 x-y
"""


@given(st.lists(st.sampled_from(HARBOUR.split()), max_size=60))
def test_text_without_candidates_is_the_same_object(words: list[str]) -> None:
    text = " ".join(words)
    assert redact(text) is text


@given(st.text(alphabet="aZ09._:/ \n-é"), st.integers(15, 25))
def test_long_words_are_those_of_the_plain_expression(text: str, length: int) -> None:
    text = text + " " + "a" * length + text
    plain = re.compile(r"[A-Za-z0-9_.:/+=~%$@-]{20,}")
    assert list(long_words(text)) == [found.span() for found in plain.finditer(text)]
