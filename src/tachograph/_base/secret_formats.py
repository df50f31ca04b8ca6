"""The table of secret formats that are recognised without a name beside them.

Two packages use it: `records` masks secrets in everything that a run writes, and the last check of `usage` redacts any
value that contains one or a part of one.

A row gives the prefixes of a secret and a pattern of the text after the prefix. Where the telling part is not at the
start, as in a bot token `123456789:AA…`, `whole` is a pattern of the entire secret, and `hint` a short text that
every such secret contains.

Patterns must not make masking slow for any text, so each one follows two rules, which a test checks: a repeat is
bounded and not nested, except that the pattern may end in one unbounded repeat of a character class. What follows a
prefix is then accepted or rejected after a bounded number of steps, and only an accepted secret is read to its end.

Where a prefix could begin an ordinary name, as in `sk-learn`, the pattern also requires a digit, capitals or an exact
length.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FORMATS", "SecretFormat"]


class SecretFormat(NamedTuple):
    """One kind of secret."""

    name: str
    prefixes: tuple[str, ...] = ()
    body: str = ""
    """Pattern of the text after the prefix."""
    part: str | None = None
    """Pattern of a shorter text after the prefix that no ordinary name contains, even with the prefix inside a word.
    Only `usage` searches for it: it must not send even a part of a secret. If it is empty, the prefix is enough."""
    whole: str = ""
    """Pattern of the entire secret, for a format without a prefix. If it has a group, the group is the secret. The
    `part` of such a format is not preceded by a prefix either."""
    hint: str = ""
    """Text that every such secret contains; by default the prefix. A dot is one before 27 characters of a word."""
    shape: str = ""
    """How the documentation shows a format without a prefix."""

    @property
    def shapes(self) -> list[str]:
        """The format as a reader recognises it: each prefix with an ellipsis."""
        return [self.shape] if self.shape else [f"{prefix}…" for prefix in self.prefixes]


_WORD = "[A-Za-z0-9]"
_URL_SAFE = "[A-Za-z0-9_-]"
_HEX = "[0-9a-f]"
_DIGIT = "(?=[A-Za-z0-9_-]{0,40}[0-9])"
# One in a thousand generated texts has no digit among its first 40 characters, but then capitals as no name has them.
_LOOKS_GENERATED = "(?=[A-Za-z0-9_-]{0,40}(?:[0-9]|[A-Z][a-z]?[A-Z]))"
_CAPITAL = "(?=[A-Za-z0-9_-]{0,40}[A-Z])"
_END = "(?![A-Za-z0-9_-])"
_PART = "[A-Za-z0-9]{16}"
_URL_SAFE_PART = "[A-Za-z0-9_-]{16}"
_PART_WITH_DIGIT = f"{_DIGIT}{_URL_SAFE_PART}"
_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"


def _words(at_least: int) -> str:
    return f"{_WORD}{{{at_least},}}"


def _url_safe(at_least: int) -> str:
    return f"{_URL_SAFE}{{{at_least},}}"


def _hex(at_least: int) -> str:
    return f"{_HEX}{{{at_least},}}"


FORMATS = (
    SecretFormat("Tachograph access key", ("tk_",), f"{_HEX}{{8}}_{_url_safe(43)}"),
    # Models and training
    SecretFormat("OpenAI", ("sk-proj-", "sk-svcacct-", "sk-admin-", "sk-None-"), _url_safe(20), ""),
    SecretFormat("Anthropic", ("sk-ant-",), _url_safe(20), ""),
    SecretFormat("OpenRouter", ("sk-or-v1-", "sk-or-"), _hex(32), ""),
    SecretFormat("Langfuse", ("sk-lf-",), _UUID, ""),
    # Also of DeepSeek, Moonshot, LiteLLM and others. A name such as sk-learn-contrib-v2 has no long part.
    SecretFormat(
        "OpenAI and compatible",
        ("sk-",),
        f"{_LOOKS_GENERATED}(?={_URL_SAFE}{{0,40}}{_WORD}{{16}}){_url_safe(20)}",
        f"(?<![A-Za-z0-9]sk-){_PART_WITH_DIGIT}",
    ),
    SecretFormat("Hugging Face", ("hf_", "api_org_"), _words(20), _PART),
    SecretFormat("NVIDIA", ("nvapi-",), _url_safe(40), _PART_WITH_DIGIT),
    SecretFormat("xAI", ("xai-",), _words(40), _PART_WITH_DIGIT),
    SecretFormat("Perplexity", ("pplx-",), _words(30), _PART_WITH_DIGIT),
    SecretFormat("Groq", ("gsk_",), _words(20), _PART),
    SecretFormat("Replicate", ("r8_",), _words(20), _PART),
    SecretFormat("Fireworks", ("fw_", "fpk_"), f"{_CAPITAL}{_words(20)}"),
    SecretFormat("Together", ("tgp_v1_",), _url_safe(30)),
    SecretFormat("Cerebras", ("csk-",), _words(40)),
    SecretFormat("LangSmith", ("lsv2_pt_", "lsv2_sk_", "ls__"), "[0-9a-f_]{30,}"),
    SecretFormat("Pinecone", ("pcsk_",), f"{_LOOKS_GENERATED}{_url_safe(40)}"),
    SecretFormat("Weights & Biases", ("wandb_v1_",), _url_safe(20), _PART),
    SecretFormat("Neptune", ("eyJhcGlf",), _words(60), hint="eyJ"),
    SecretFormat("Kaggle", ("KGAT_",), _hex(30)),
    SecretFormat("Databricks", ("dapi",), f"{_HEX}{{32}}(?:-[0-9])?{_END}"),
    SecretFormat("ModelScope", ("ms-",), _UUID),
    SecretFormat("RunPod", ("rpa_",), _words(40)),
    SecretFormat("Modal", ("ak-", "as-"), f"{_CAPITAL}{_WORD}{{22}}{_END}"),
    SecretFormat("Jina", ("jina_",), _words(40)),
    SecretFormat("Voyage", ("pa-",), f"{_LOOKS_GENERATED}{_CAPITAL}{_url_safe(40)}"),
    SecretFormat("Nomic", ("nk-",), f"{_LOOKS_GENERATED}{_CAPITAL}{_url_safe(40)}"),
    SecretFormat("Tavily", ("tvly-", "tvly-dev-", "tvly-prod-"), _words(28)),
    SecretFormat("LlamaCloud", ("llx-",), _words(40)),
    SecretFormat("Firecrawl", ("fc-",), f"{_HEX}{{32}}{_END}"),
    SecretFormat("E2B", ("e2b_",), _hex(32)),
    SecretFormat("ElevenLabs", ("sk_",), _hex(40)),
    SecretFormat("Anyscale", ("esecret_",), _words(20)),
    # Code and packages
    SecretFormat("GitHub", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), _words(30), _PART),
    SecretFormat("GitHub fine-grained", ("github_pat_",), "[A-Za-z0-9_]{30,}", _URL_SAFE_PART),
    SecretFormat(
        "GitLab",
        ("glpat-", "glrt-", "gldt-", "glcbt-", "glptt-", "glft-", "glimt-", "glagent-", "gloas-", "glsoat-", "glffct-",
         "glwt-"),
        f"{_URL_SAFE}{{20,300}}(?:\\.[0-9a-z]{{2}}\\.[0-9a-z]{{7,9}})?",
        _PART_WITH_DIGIT,
    ),
    SecretFormat("GitLab runner registration", ("GR1348941",), _url_safe(20)),
    SecretFormat("npm", ("npm_",), _words(36), _PART),
    SecretFormat("PyPI", ("pypi-",), f"{_CAPITAL}{_url_safe(40)}", _PART_WITH_DIGIT),
    SecretFormat("RubyGems", ("rubygems_",), _hex(48)),
    SecretFormat("Clojars", ("CLOJARS_",), _words(50)),
    SecretFormat("Docker Hub", ("dckr_pat_", "dckr_oat_"), _url_safe(20), _URL_SAFE_PART),
    SecretFormat("JFrog Artifactory", ("AKCp", "cmVmdGtu"), _words(50)),
    SecretFormat("CircleCI", ("CCIPAT_", "CCIPRJ_"), f"{_LOOKS_GENERATED}[A-Za-z0-9_]{{30,}}"),
    SecretFormat("Buildkite", ("bkua_",), _hex(40)),
    SecretFormat("SonarQube", ("squ_", "sqp_", "sqa_"), _hex(40)),
    SecretFormat("Sourcegraph", ("sgp_",), f"{_LOOKS_GENERATED}[A-Za-z0-9_]{{40,}}"),
    SecretFormat("Postman", ("PMAK-",), f"{_HEX}{{24}}-{_hex(30)}"),
    # Clouds
    SecretFormat("AWS access key", ("AKIA", "ASIA", "ABIA", "ACCA"), f"[0-9A-Z]{{16}}{_END}", "[0-9A-Z]{12}"),
    SecretFormat("AWS Bedrock", ("ABSK", "bedrock-api-key-"), "[A-Za-z0-9+/=]{60,}"),
    SecretFormat("Google API key", ("AIza",), _url_safe(35), f"{_URL_SAFE}{{20}}"),
    SecretFormat("Google API key, bound to an account", ("AQ.",), f"Ab{_url_safe(40)}"),
    SecretFormat("Google OAuth token", ("ya29.",), "[A-Za-z0-9_.-]{20,}", _URL_SAFE_PART),
    SecretFormat("Google refresh token", ("1//0",), _url_safe(30)),
    SecretFormat("Google client secret", ("GOCSPX-",), _url_safe(20)),
    SecretFormat(
        "Azure client secret",
        hint="Q~",
        whole="[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,}",
        shape="abc8Q~…",
    ),
    SecretFormat("Alibaba Cloud", ("LTAI",), f"{_WORD}{{12,20}}{_END}", f"{_WORD}{{12}}"),
    SecretFormat("Tencent Cloud", ("AKID",), f"{_WORD}{{32}}{_END}"),
    SecretFormat("Yandex Cloud", ("AQVN", "y0_"), f"{_LOOKS_GENERATED}{_url_safe(35)}"),
    SecretFormat("DigitalOcean", ("dop_v1_", "doo_v1_", "dor_v1_"), _hex(60), _PART),
    SecretFormat("Heroku", ("HRKU-",), f"{_LOOKS_GENERATED}{_url_safe(30)}"),
    SecretFormat("Fly.io", ("fo1_", "fm1r_", "fm1a_", "fm2_"), "[A-Za-z0-9+/_=-]{40,}"),
    SecretFormat("Netlify", ("nfp_",), _words(36)),
    SecretFormat("Vercel", ("vck_", "vcp_"), f"{_CAPITAL}{_words(24)}"),
    SecretFormat("Render", ("rnd_",), f"{_CAPITAL}{_words(24)}"),
    SecretFormat("Cloudflare origin", ("v1.0-",), f"{_HEX}{{24}}-{_hex(100)}"),
    SecretFormat("Tailscale", ("tskey-",), f"{_LOOKS_GENERATED}{_url_safe(20)}", _PART_WITH_DIGIT),
    SecretFormat("Pulumi", ("pul-",), f"{_HEX}{{40}}{_END}"),
    # Secret stores
    SecretFormat("HashiCorp Vault", ("hvs.", "hvb.", "hvr."), f"{_CAPITAL}{_url_safe(20)}", _URL_SAFE_PART),
    SecretFormat("HashiCorp Vault, before 1.10", ("s.",), f"{_CAPITAL}{_WORD}{{24}}(?![A-Za-z0-9_.(-])"),
    SecretFormat(
        "Terraform Cloud",
        hint=".",
        whole=f"{_WORD}{{14}}\\.atlasv1\\.{_url_safe(50)}",
        shape="….atlasv1.…",
    ),
    SecretFormat("Doppler", ("dp.pt.", "dp.ct.", "dp.sa.", "dp.scim.", "dp.audit."), _words(30)),
    SecretFormat("Doppler service token", ("dp.st.",), "(?:[a-z0-9_-]{2,40}\\.)?[A-Za-z0-9]{30,}"),
    SecretFormat("1Password service account", ("ops_",), f"eyJ{_url_safe(40)}"),
    SecretFormat(
        "1Password secret key",
        ("A3-",),
        "[A-Z0-9]{6}-[A-Z0-9]{5,6}-?[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}",
    ),
    SecretFormat("age", ("AGE-SECRET-KEY-",), "1[A-Z0-9]{50,}", ""),
    # Databases and data platforms
    SecretFormat("Supabase", ("sbp_", "sb_secret_"), _url_safe(24)),
    SecretFormat("PlanetScale", ("pscale_tkn_", "pscale_pw_", "pscale_oauth_"), _url_safe(30)),
    SecretFormat("Neon", ("napi_",), _words(40)),
    SecretFormat("MongoDB Atlas", ("mdb_sa_sk_",), _url_safe(30)),
    SecretFormat("Aiven", ("AVNS_",), _url_safe(15)),
    SecretFormat(
        "Airtable",
        hint=".",
        whole=f"pat{_WORD}{{14}}\\.{_HEX}{{64}}",
        shape="pat….…",
    ),
    SecretFormat("dbt", ("dbtc_", "dbtu_"), f"{_LOOKS_GENERATED}{_url_safe(30)}"),
    SecretFormat("Prefect", ("pnu_", "pnb_"), _words(30)),
    # Observability
    SecretFormat("Sentry", ("sntrys_", "sntryu_", "sntrya_"), "[A-Za-z0-9+/=_-]{40,}"),
    SecretFormat("Grafana", ("glsa_",), f"{_WORD}{{32}}_{_hex(8)}", _PART),
    SecretFormat("Grafana Cloud", ("glc_",), "eyJ[A-Za-z0-9+/=]{40,}"),
    SecretFormat("Grafana API key", ("eyJrIjoi",), "[A-Za-z0-9+/=_-]{40,}", hint="eyJ"),
    SecretFormat("New Relic", ("NRAK-", "NRJS-", "NRII-", "NRAA-"), f"{_LOOKS_GENERATED}{_words(19)}"),
    SecretFormat("PostHog", ("phc_", "phx_", "phs_"), _words(30), _PART),
    SecretFormat("Dynatrace", ("dt0c01.", "dt0s01.", "dt0s16."), "[A-Z0-9]{8,24}\\.[A-Z0-9]{64}"),
    SecretFormat("Honeycomb", ("hcaik_", "hcxik_", "hcamk_"), _words(40)),
    SecretFormat("LaunchDarkly", ("sdk-", "api-"), _UUID),
    # Chat and e-mail
    SecretFormat("Slack", tuple(f"xox{kind}-" for kind in "abceoprs"), "[A-Za-z0-9-]{10,}", "[A-Za-z0-9-]{8}"),
    SecretFormat("Slack app", ("xapp-",), f"{_LOOKS_GENERATED}[A-Za-z0-9-]{{20,}}", _PART_WITH_DIGIT),
    SecretFormat(
        "Telegram bot",
        hint=":A",
        whole=f"[0-9]{{5,16}}:A{_LOOKS_GENERATED}{_url_safe(32)}",
        shape="123456789:A…",
    ),
    SecretFormat(
        "Discord bot",
        hint=".",
        whole=f"[MNO]{_URL_SAFE}{{23,27}}\\.{_URL_SAFE}{{6,7}}\\.{_URL_SAFE}{{27,}}",
        shape="M….….…",
    ),
    SecretFormat("SendGrid", ("SG.",), f"{_URL_SAFE}{{16,32}}\\.{_url_safe(16)}", _URL_SAFE_PART),
    SecretFormat("Mailgun", ("key-",), f"{_HEX}{{32}}{_END}"),
    SecretFormat("Mailchimp", hint="-us", whole=f"{_HEX}{{32}}-us[0-9]{{1,2}}{_END}", shape="…-us12"),
    SecretFormat("Mandrill", ("md-",), f"{_CAPITAL}{_URL_SAFE}{{22}}{_END}"),
    SecretFormat("Brevo", ("xkeysib-", "xsmtpsib-"), "[A-Za-z0-9-]{60,}"),
    SecretFormat("Resend", ("re_",), f"{_CAPITAL}{_WORD}{{8}}_{_WORD}{{24}}{_END}"),
    SecretFormat("MailerSend", ("mlsn.",), _hex(60)),
    SecretFormat("Twilio", ("SK",), f"{_HEX}{{32}}{_END}"),
    # Payments, work and other services
    SecretFormat(
        "Stripe",
        ("sk_live_", "sk_test_", "rk_live_", "rk_test_", "pk_live_", "pk_test_"),
        _words(10),
        f"{_WORD}{{10}}",
    ),
    SecretFormat("Stripe webhook", ("whsec_",), "[A-Za-z0-9+/=]{24,}"),
    SecretFormat("Square", ("sq0atp-", "sq0csp-", "sq0idp-"), _url_safe(20)),
    SecretFormat("Square and Facebook", ("EAA",), f"{_LOOKS_GENERATED}{_url_safe(60)}"),
    SecretFormat(
        "Braintree",
        ("access_token$production$", "access_token$sandbox$"),
        f"[0-9a-z]{{16}}\\${_hex(32)}",
        hint="access_token$",
    ),
    SecretFormat("Razorpay", ("rzp_live_", "rzp_test_"), _words(14)),
    SecretFormat("Flutterwave", ("FLWSECK-", "FLWSECK_TEST-"), f"{_LOOKS_GENERATED}{_url_safe(20)}"),
    SecretFormat("Plaid", ("access-production-", "access-development-", "access-sandbox-"), _UUID),
    SecretFormat("EasyPost", ("EZAK", "EZTK"), _words(54)),
    SecretFormat("Shippo", ("shippo_live_", "shippo_test_"), _hex(40)),
    SecretFormat("Shopify", ("shpat_", "shpca_", "shppa_", "shpss_", "shptka_"), f"{_HEX}{{32}}", _PART),
    SecretFormat("Atlassian", ("ATATT3", "ATCTT3"), "[A-Za-z0-9_=-]{40,}"),
    SecretFormat("Bitbucket", ("ATBB",), _words(28)),
    SecretFormat("Trello", ("ATTA",), _hex(60)),
    SecretFormat("Linear", ("lin_api_", "lin_oauth_"), _words(30), _PART),
    SecretFormat("Lambda", ("secret_",), f"{_URL_SAFE}{{1,64}}_(?={_HEX}{{32}})[A-Za-z0-9.]{{32,}}"),
    SecretFormat("Notion", ("secret_",), _words(40)),
    SecretFormat("Notion, since 2024", ("ntn_",), _words(40)),
    SecretFormat("Figma", ("figd_",), f"{_LOOKS_GENERATED}{_url_safe(36)}"),
    SecretFormat("HubSpot", ("pat-na1-", "pat-na2-", "pat-eu1-"), _UUID),
    SecretFormat("Typeform", ("tfp_",), f"{_LOOKS_GENERATED}{_url_safe(40)}"),
    SecretFormat("ClickUp", ("pk_",), "[0-9]{6,10}_[A-Z0-9]{32}"),
    SecretFormat("Contentful", ("CFPAT-",), f"{_LOOKS_GENERATED}{_url_safe(40)}"),
    SecretFormat("Mapbox", ("sk.",), f"eyJ{_URL_SAFE}{{20,512}}\\.{_url_safe(20)}"),
    SecretFormat("Dropbox", ("sl.",), f"{_LOOKS_GENERATED}{_url_safe(100)}"),
    SecretFormat("ReadMe", ("rdme_",), f"{_LOOKS_GENERATED}[a-z0-9]{{60,}}"),
    # A header may be preceded by other text of the same word; only the first 64 characters are searched for it.
    SecretFormat(
        "JSON Web Token",
        hint="eyJ",
        whole=f"(?<!{_URL_SAFE}){_URL_SAFE}{{0,64}}?(eyJ{_URL_SAFE}{{8,4096}}"
        f"\\.{_URL_SAFE}{{8,16384}}\\.[A-Za-z0-9_.-]{{5,}})",
        part=f"eyJ{_URL_SAFE}{{10,512}}\\.{_URL_SAFE}{{10}}",
        shape="eyJ….….…",
    ),
)  # fmt: skip
