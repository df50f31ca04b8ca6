"""Runs and usage telemetry recognise each format of the table in real examples, and no pattern can be slow."""

from __future__ import annotations

import random
import re
import string
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tachograph._base.secret_formats import FORMATS
from tachograph.records import MASK, mask_arguments, mask_text
from tachograph.usage._redact import is_private
from tests.tables import each

if sys.version_info >= (3, 11):
    from re import _constants as constants
    from re import _parser as parser
else:
    import sre_constants as constants
    import sre_parse as parser

LETTERS = string.ascii_letters + string.digits
URL_SAFE = LETTERS + "-_"
UPPER = string.ascii_uppercase + string.digits
LOWER = string.ascii_lowercase + string.digits
HEX = "0123456789abcdef"
BASE64 = LETTERS + "+/"


class Generator(random.Random):
    """Characters of secrets, the same in every run. No example in this file is a real secret."""

    def some(self, alphabet: str, num_chars: int) -> str:
        return "".join(self.choices(alphabet, k=num_chars))

    def letters(self, num_chars: int) -> str:
        return self.some(LETTERS, num_chars)

    def safe(self, num_chars: int) -> str:
        return self.some(URL_SAFE, num_chars - 1) + "x"

    def hex(self, num_chars: int) -> str:
        return self.some(HEX, num_chars)

    def uuid(self) -> str:
        return "-".join(map(self.hex, (8, 4, 4, 4, 12)))


# For each format, secrets as the service issues them: lengths and alphabets come from there, not from our patterns.
EXAMPLES: dict[str, list[Callable[[Generator], str]]] = {
    "Tachograph access key": [lambda g: f"tk_{g.hex(8)}_{g.safe(43)}"],
    "OpenAI": [
        lambda g: f"sk-proj-{g.safe(156)}",
        lambda g: f"sk-svcacct-{g.safe(120)}",
        lambda g: f"sk-admin-{g.safe(120)}",
        lambda g: f"sk-None-{g.letters(48)}",
    ],
    "Anthropic": [lambda g: f"sk-ant-api03-{g.safe(95)}", lambda g: f"sk-ant-oat01-{g.safe(95)}"],
    "OpenRouter": [lambda g: f"sk-or-v1-{g.hex(64)}"],
    "Langfuse": [lambda g: f"sk-lf-{g.uuid()}"],
    "OpenAI and compatible": [lambda g: f"sk-{g.letters(48)}", lambda g: f"sk-{g.hex(32)}"],
    "Hugging Face": [lambda g: f"hf_{g.letters(34)}", lambda g: f"api_org_{g.letters(34)}"],
    "NVIDIA": [lambda g: f"nvapi-{g.safe(64)}"],
    "xAI": [lambda g: f"xai-{g.letters(80)}"],
    "Perplexity": [lambda g: f"pplx-{g.letters(48)}"],
    "Groq": [lambda g: f"gsk_{g.letters(52)}"],
    "Replicate": [lambda g: f"r8_{g.letters(37)}"],
    "Fireworks": [lambda g: f"fw_{g.letters(24)}"],
    "Together": [lambda g: f"tgp_v1_{g.safe(43)}"],
    "Cerebras": [lambda g: f"csk-{g.some(LOWER, 48)}"],
    "LangSmith": [lambda g: f"lsv2_pt_{g.hex(32)}_{g.hex(10)}", lambda g: f"lsv2_sk_{g.hex(32)}_{g.hex(10)}"],
    "Pinecone": [lambda g: f"pcsk_{g.letters(6)}_{g.letters(63)}"],
    "Weights & Biases": [lambda g: f"wandb_v1_{g.letters(40)}_{g.letters(30)}"],
    "Neptune": [lambda g: f"eyJhcGlfYWRkcmVzcyI6{g.letters(120)}"],
    "Kaggle": [lambda g: f"KGAT_{g.hex(32)}"],
    "Databricks": [lambda g: f"dapi{g.hex(32)}", lambda g: f"dapi{g.hex(32)}-2"],
    "ModelScope": [lambda g: f"ms-{g.uuid()}"],
    "RunPod": [lambda g: f"rpa_{g.letters(46)}"],
    "Modal": [lambda g: f"ak-{g.letters(22)}", lambda g: f"as-{g.letters(22)}"],
    "Jina": [lambda g: f"jina_{g.letters(60)}"],
    "Voyage": [lambda g: f"pa-{g.safe(43)}"],
    "Nomic": [lambda g: f"nk-{g.safe(43)}"],
    "Tavily": [lambda g: f"tvly-{g.letters(32)}", lambda g: f"tvly-dev-{g.letters(32)}"],
    "LlamaCloud": [lambda g: f"llx-{g.letters(48)}"],
    "Firecrawl": [lambda g: f"fc-{g.hex(32)}"],
    "E2B": [lambda g: f"e2b_{g.hex(40)}"],
    "ElevenLabs": [lambda g: f"sk_{g.hex(48)}"],
    "Anyscale": [lambda g: f"esecret_{g.letters(25)}"],
    "GitHub": [lambda g, kind=kind: f"gh{kind}_{g.letters(36)}" for kind in "pousr"],  # type: ignore[misc]
    "GitHub fine-grained": [lambda g: f"github_pat_{g.letters(22)}_{g.letters(59)}"],
    "GitLab": [
        *(lambda g, kind=kind: f"gl{kind}-{g.safe(20)}"  # type: ignore[misc]
          for kind in "pat rt dt cbt ptt ft imt agent oas soat ffct wt".split()),
        lambda g: f"glpat-{g.safe(40)}.01.{g.some(LOWER, 9)}",
    ],
    "GitLab runner registration": [lambda g: f"GR1348941{g.safe(20)}"],
    "npm": [lambda g: f"npm_{g.letters(36)}"],
    "PyPI": [lambda g: f"pypi-AgEIcHlwaS5vcmc{g.safe(120)}"],
    "RubyGems": [lambda g: f"rubygems_{g.hex(48)}"],
    "Clojars": [lambda g: f"CLOJARS_{g.hex(60)}"],
    "Docker Hub": [lambda g: f"dckr_pat_{g.safe(27)}", lambda g: f"dckr_oat_{g.safe(32)}"],
    "JFrog Artifactory": [lambda g: f"AKCp{g.letters(69)}", lambda g: f"cmVmdGtu{g.letters(56)}"],
    "CircleCI": [lambda g: f"CCIPAT_{g.letters(22)}_{g.hex(40)}"],
    "Buildkite": [lambda g: f"bkua_{g.hex(40)}"],
    "SonarQube": [lambda g: f"squ_{g.hex(40)}", lambda g: f"sqp_{g.hex(40)}"],
    "Sourcegraph": [lambda g: f"sgp_{g.hex(40)}", lambda g: f"sgp_{g.hex(16)}_{g.hex(40)}"],
    "Postman": [lambda g: f"PMAK-{g.hex(24)}-{g.hex(34)}"],
    "AWS access key": [lambda g: f"AKIA{g.some(UPPER, 16)}", lambda g: f"ASIA{g.some(UPPER, 16)}"],
    "AWS Bedrock": [lambda g: f"ABSK{g.some(BASE64, 128)}", lambda g: f"bedrock-api-key-{g.letters(200)}"],
    "Google API key": [lambda g: f"AIza{g.safe(35)}"],
    "Google API key, bound to an account": [lambda g: f"AQ.Ab8{g.safe(47)}"],
    "Google OAuth token": [lambda g: f"ya29.{g.safe(180)}"],
    "Google refresh token": [lambda g: f"1//0{g.safe(60)}"],
    "Google client secret": [lambda g: f"GOCSPX-{g.safe(28)}"],
    "Azure client secret": [lambda g: f"{g.letters(3)}8Q~{g.letters(34)}"],
    "Alibaba Cloud": [lambda g: f"LTAI{g.letters(20)}", lambda g: f"LTAI{g.letters(12)}"],
    "Tencent Cloud": [lambda g: f"AKID{g.letters(32)}"],
    "Yandex Cloud": [lambda g: f"AQVN{g.safe(36)}", lambda g: f"y0_{g.safe(55)}"],
    "DigitalOcean": [lambda g, kind=kind: f"do{kind}_v1_{g.hex(64)}" for kind in "por"],  # type: ignore[misc]
    "Heroku": [lambda g: f"HRKU-{g.uuid()}", lambda g: f"HRKU-AA{g.safe(58)}"],
    "Fly.io": [lambda g: f"fo1_{g.safe(43)}", lambda g: f"fm2_{g.some(BASE64, 200)}"],
    "Netlify": [lambda g: f"nfp_{g.letters(36)}"],
    "Vercel": [lambda g: f"vck_{g.letters(56)}"],
    "Render": [lambda g: f"rnd_{g.letters(28)}"],
    "Cloudflare origin": [lambda g: f"v1.0-{g.hex(24)}-{g.hex(146)}"],
    "Tailscale": [lambda g: f"tskey-auth-{g.letters(12)}11CNTRL-{g.letters(32)}"],
    "Pulumi": [lambda g: f"pul-{g.hex(40)}"],
    "HashiCorp Vault": [
        lambda g: f"hvs.{g.safe(95)}",
        lambda g: f"hvb.{g.safe(140)}",
        lambda g: f"hvs.{g.letters(24)}",
    ],
    "HashiCorp Vault, before 1.10": [lambda g: f"s.{g.letters(24)}"],
    "Terraform Cloud": [lambda g: f"{g.letters(14)}.atlasv1.{g.safe(67)}"],
    "Doppler": [lambda g: f"dp.pt.{g.letters(43)}", lambda g: f"dp.ct.{g.letters(43)}"],
    "Doppler service token": [lambda g: f"dp.st.{g.letters(43)}", lambda g: f"dp.st.prod_eu.{g.letters(43)}"],
    "1Password service account": [lambda g: f"ops_eyJ{g.letters(250)}"],
    "1Password secret key": [
        lambda g: "A3-" + "-".join(g.some(UPPER, size) for size in (6, 6, 5, 5, 5, 5)),
        lambda g: "A3-" + "-".join(g.some(UPPER, size) for size in (6, 11, 5, 5, 5)),
    ],
    "age": [lambda g: f"AGE-SECRET-KEY-1{g.some('QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L', 58)}"],
    "Supabase": [lambda g: f"sbp_{g.hex(40)}", lambda g: f"sb_secret_{g.safe(31)}"],
    "PlanetScale": [lambda g: f"pscale_tkn_{g.safe(43)}", lambda g: f"pscale_pw_{g.safe(43)}"],
    "Neon": [lambda g: f"napi_{g.some(LOWER, 64)}"],
    "MongoDB Atlas": [lambda g: f"mdb_sa_sk_{g.safe(40)}"],
    "Aiven": [lambda g: f"AVNS_{g.safe(19)}"],
    "Airtable": [lambda g: f"pat{g.letters(14)}.{g.hex(64)}"],
    "dbt": [lambda g: f"dbtc_{g.safe(40)}", lambda g: f"dbtu_{g.safe(40)}"],
    "Prefect": [lambda g: f"pnu_{g.letters(36)}"],
    "Sentry": [lambda g: f"sntrys_eyJ{g.some(BASE64, 100)}=_{g.letters(43)}", lambda g: f"sntryu_{g.hex(64)}"],
    "Grafana": [lambda g: f"glsa_{g.letters(32)}_{g.hex(8)}"],
    "Grafana Cloud": [lambda g: f"glc_eyJ{g.some(BASE64, 110)}="],
    "Grafana API key": [lambda g: f"eyJrIjoi{g.letters(70)}=="],
    "New Relic": [lambda g: f"NRAK-{g.some(UPPER, 27)}", lambda g: f"NRJS-{g.hex(19)}"],
    "PostHog": [lambda g: f"phc_{g.letters(43)}", lambda g: f"phx_{g.letters(43)}"],
    "Dynatrace": [lambda g: f"dt0c01.{g.some(UPPER, 24)}.{g.some(UPPER, 64)}"],
    "Honeycomb": [lambda g: f"hcaik_{g.some(LOWER, 58)}"],
    "LaunchDarkly": [lambda g: f"sdk-{g.uuid()}", lambda g: f"api-{g.uuid()}"],
    "Slack": [
        lambda g: f"xoxb-{g.some(string.digits, 12)}-{g.some(string.digits, 12)}-{g.letters(24)}",
        lambda g: f"xoxp-{g.some(string.digits, 12)}-{g.some(string.digits, 12)}-{g.hex(32)}",
        lambda g: f"xoxe.xoxp-1-{g.letters(146)}",
        lambda g: f"xoxs-{g.some(string.digits, 12)}-{g.hex(32)}",
    ],
    "Slack app": [lambda g: f"xapp-1-A{g.some(UPPER, 10)}-{g.some(string.digits, 13)}-{g.hex(64)}"],
    "Telegram bot": [
        lambda g: f"{g.some('123456789', 10)}:AA{g.safe(33)}",
        lambda g: f"{g.some('123456789', 6)}:A{g.safe(34)}",
    ],
    "Discord bot": [
        lambda g: f"M{g.letters(23)}.{g.safe(6)}.{g.safe(38)}",
        lambda g: f"O{g.letters(25)}.{g.safe(6)}.{g.safe(27)}",
    ],
    "SendGrid": [lambda g: f"SG.{g.safe(22)}.{g.safe(43)}"],
    "Mailgun": [lambda g: f"key-{g.hex(32)}"],
    "Mailchimp": [lambda g: f"{g.hex(32)}-us12"],
    "Mandrill": [lambda g: f"md-{g.letters(22)}"],
    "Brevo": [lambda g: f"xkeysib-{g.hex(64)}-{g.letters(16)}"],
    "Resend": [lambda g: f"re_{g.letters(8)}_{g.letters(24)}"],
    "MailerSend": [lambda g: f"mlsn.{g.hex(64)}"],
    "Twilio": [lambda g: f"SK{g.hex(32)}"],
    "Stripe": [
        lambda g: f"sk_live_{g.letters(24)}",
        lambda g: f"rk_live_{g.letters(99)}",
        lambda g: f"sk_test_{g.letters(24)}",
    ],
    "Stripe webhook": [lambda g: f"whsec_{g.letters(32)}"],
    "Square": [lambda g: f"sq0atp-{g.safe(22)}", lambda g: f"sq0csp-{g.safe(43)}"],
    "Square and Facebook": [lambda g: f"EAAA{g.safe(60)}", lambda g: f"EAAC{g.letters(180)}"],
    "Braintree": [lambda g: f"access_token$production${g.some(LOWER, 16)}${g.hex(32)}"],
    "Razorpay": [lambda g: f"rzp_live_{g.letters(14)}"],
    "Flutterwave": [lambda g: f"FLWSECK-{g.hex(32)}-X", lambda g: f"FLWSECK_TEST-{g.hex(32)}-X"],
    "Plaid": [lambda g: f"access-production-{g.uuid()}"],
    "EasyPost": [lambda g: f"EZAK{g.letters(54)}"],
    "Shippo": [lambda g: f"shippo_live_{g.hex(40)}"],
    "Shopify": [lambda g, kind=kind: f"shp{kind}_{g.hex(32)}" for kind in ("at", "ca", "pa", "ss")],  # type: ignore[misc]
    "Atlassian": [lambda g: f"ATATT3xFfGF0{g.safe(170)}=1A2B3C4D", lambda g: f"ATCTT3xFfGN0{g.safe(170)}=1A2B3C4D"],
    "Bitbucket": [lambda g: f"ATBB{g.letters(32)}"],
    "Trello": [lambda g: f"ATTA{g.hex(64)}"],
    "Linear": [lambda g: f"lin_api_{g.letters(40)}"],
    "Lambda": [
        lambda g: f"secret_{g.letters(8)}_{g.hex(32)}.{g.letters(32)}",
        lambda g: f"secret_my-key_2_{g.hex(32)}",
    ],
    "Notion": [lambda g: f"secret_{g.letters(43)}"],
    "Notion, since 2024": [lambda g: f"ntn_{g.letters(46)}"],
    "Figma": [lambda g: f"figd_{g.safe(40)}"],
    "HubSpot": [lambda g: f"pat-na1-{g.uuid()}"],
    "Typeform": [lambda g: f"tfp_{g.safe(44)}_{g.letters(14)}"],
    "ClickUp": [lambda g: f"pk_{g.some('123456789', 8)}_{g.some(UPPER, 32)}"],
    "Contentful": [lambda g: f"CFPAT-{g.safe(43)}"],
    "Mapbox": [lambda g: f"sk.eyJ1Ijoi{g.letters(60)}.{g.safe(22)}"],
    "Dropbox": [lambda g: f"sl.{g.safe(136)}"],
    "ReadMe": [lambda g: f"rdme_{g.some(LOWER, 70)}"],
    "JSON Web Token": [
        lambda g: f"eyJhbGciOiJIUzI1NiIs{g.letters(16)}.eyJ{g.letters(120)}.{g.safe(43)}",
        lambda g: f"eyJhbGciOiJSUzI1NiIs{g.letters(200)}.eyJ{g.letters(900)}.{g.safe(342)}",
    ],
}  # fmt: skip


def secrets_of(name: str) -> Iterator[str]:
    for number, generate in enumerate(EXAMPLES[name]):
        for seed in range(8):
            yield generate(Generator(f"{name} {number} {seed}"))


def longest_left(secret: str, text: str) -> int:
    """Return the length of the longest part of a secret that a text contains."""
    longest = 0
    for start in range(len(secret)):
        while secret[start : start + longest + 1] in text and start + longest < len(secret):
            longest += 1
    return longest


def test_every_format_has_examples():
    assert [one.name for one in FORMATS] == list(EXAMPLES)


SURROUNDINGS = [
    ("", " is the key"), ("the call with ", ", which failed."), ("x-", ""), ("model ", " 7B"), ("(", ")"), ("org/", ""),
    ('"', '"'), ("'", "'"), ("`", "`"), ('{"value": "', '", "x": 1}'), ('{\\"value\\": \\"', '\\"}'), ("['", "']"),
    ("X=", ""), ("export X=", "; train"), ("--x=", " --lr=1e-4"), ("x: ", "\n"), ("Bearer ", ""), ("Basic ", ""),
    ("https://host.example/v1?x=", "&y=1"), ("https://host.example/", "/send"), ("/home/alice/", "/x"),
    ("https://", "@host.example/"), ("first line\\n", "\\nlast line"), ("first line\n", "\nlast line"), ("<x>", "</x>"),
    ("%3D", "%26"), ("密钥", "。"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("num_secrets", [200, pytest.param(2_000, marks=pytest.mark.long)])
def test_no_secret_leaks_into_a_run_or_usage_telemetry(num_secrets):
    """A generated text may lack a digit, or look like a word; thousands of examples contain such cases."""
    leaks = []
    for name, generators in EXAMPLES.items():
        generator = Generator(name)
        for number in range(num_secrets):
            secret = generator.choice(generators)(generator)
            before, after = SURROUNDINGS[number // 2 % len(SURROUNDINGS)] if number % 2 else ("", "")
            text = f"{before}{secret}{after}"
            masked = mask_text(text)
            if masked != MASK and any(secret[start : start + 10] in masked for start in range(len(secret) - 9)):
                leaks.append(("run", name, text))
            if not is_private(text, ["org"]):
                leaks.append(("usage", name, text))
    assert leaks == []


@each("name", EXAMPLES)
def test_format_is_masked_without_a_name_beside_it(name):
    for secret in secrets_of(name):
        for before, after in [
            ("", ""),
            ("before ", " after"),
            ("the call with ", ", which failed."),
            ('{"value": "', '", "x": 1}'),
            ("['", "']"),
            ("first line\\n", "\\nlast line"),
            ("x=", "&y=1"),
            ("(", ")"),
            ("密钥", "。"),
        ]:
            masked = mask_text(f"{before}{secret}{after}")
            assert masked.startswith(before), masked
            assert masked.endswith(after), masked
            rest = masked[len(before) : len(masked) - len(after)]
            assert MASK in rest, masked
            assert longest_left(secret, rest) < 10, (secret, masked)


@each("name", EXAMPLES)
def test_format_is_masked_on_a_command_line(name):
    for secret in secrets_of(name):
        masked = mask_arguments(
            ["train.py", secret, f"--value={secret}", "--other", secret, f"X={secret}", "--lr=1e-4"]
        )
        assert secret not in " ".join(masked)
        assert masked[0] == "train.py"
        assert masked[-1] == "--lr=1e-4"


def test_contexts_in_the_documentation_are_masked():
    page = Path(__file__).parents[2] / "docs" / "masking.md"
    examples = re.findall(r"`([^`]*hunter2[^`]*)`", page.read_text(encoding="utf-8"))
    assert len(examples) > 25
    assert {example: masked for example in examples if "hunter2" in (masked := mask_text(example))} == {}


def repeats_of(pattern: str) -> Iterator[tuple[int, int, bool, bool]]:
    """Return the bounds of each repeat in a pattern, whether it repeats one class, and whether it ends the pattern."""

    def walk(items: list, is_end: bool) -> Iterator[tuple[int, int, bool, bool]]:
        for index, (kind, value) in enumerate(items):
            ends = is_end and index == len(items) - 1
            if kind in {constants.MAX_REPEAT, constants.MIN_REPEAT}:
                low, high, inner = value
                is_class = len(inner) == 1 and inner[0][0] in {constants.IN, constants.LITERAL, constants.NOT_LITERAL}
                yield low, high, is_class, ends
                yield from walk(list(inner), is_end=False)
            elif kind is constants.SUBPATTERN:
                yield from walk(list(value[3]), ends)
            elif kind is constants.BRANCH:
                for branch in value[1]:
                    yield from walk(list(branch), ends)
            elif kind in {constants.ASSERT, constants.ASSERT_NOT}:
                yield from walk(list(value[1]), is_end=False)

    yield from walk(list(parser.parse(pattern)), is_end=True)


@each("one", FORMATS)
def test_patterns_read_a_bounded_number_of_characters(one):
    """Only a repeat of one class at the end may be unbounded: by then, the text is known to be a secret."""
    pattern = one.whole or one.body
    re.compile(pattern)
    if one.part:
        re.compile(one.part)
        assert all(high <= 512 and is_class for _, high, is_class, _ in repeats_of(one.part))
    for low, high, is_class, ends in repeats_of(pattern):
        if high is constants.MAXREPEAT:
            assert is_class and ends, pattern
            assert low >= 5, pattern
        else:
            assert is_class or high == 1, f"nested repeat in {pattern}"
            # The parts of a JSON Web Token are long; its pattern starts only once in a word.
            assert high <= 512 or one.name == "JSON Web Token", pattern


@each("one", FORMATS)
def test_part_is_in_every_example(one):
    """The part of a format that `usage` searches for is no longer than the secret."""
    if one.part is None:
        return
    patterns = [re.compile(re.escape(prefix) + one.part) for prefix in one.prefixes] or [re.compile(one.part)]
    for secret in secrets_of(one.name):
        if not any(character.isdigit() for character in secret[:60]):
            continue  # some parts require a digit
        assert any(pattern.search(secret) for pattern in patterns), secret


@each("one", FORMATS)
def test_hint_is_in_every_example(one):
    assert bool(one.prefixes) != bool(one.whole), "either prefixes or a whole pattern"
    for secret in secrets_of(one.name):
        assert any(prefix in secret for prefix in one.prefixes) or one.whole
        assert one.hint in secret
