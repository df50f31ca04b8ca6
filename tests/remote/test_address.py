"""Addresses of servers: one normal form, and errors that name the remedy but no secret."""

from __future__ import annotations

import pytest

from tachograph.exceptions import ConfigError
from tachograph.remote import parse_server


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://tacho.example.org", "https://tacho.example.org"),
        (" https://tacho.example.org/ \n", "https://tacho.example.org"),
        ("HTTPS://Tacho.Example.ORG:443", "https://tacho.example.org"),
        ("https://tacho.example.org:8443", "https://tacho.example.org:8443"),
        ("https://example.org/tools/tacho//", "https://example.org/tools/tacho"),
        ("https://gpu_box-1", "https://gpu_box-1"),
        ("https://10.0.0.7:8501", "https://10.0.0.7:8501"),
        ("https://[2001:DB8:0::1]:8501/x", "https://[2001:db8::1]:8501/x"),
        ("https://xn--bcher-kva.example", "https://xn--bcher-kva.example"),
        ("http://localhost:8501", "http://localhost:8501"),
        ("http://LOCALHOST:80", "http://localhost"),
        ("http://127.0.0.1:8501", "http://127.0.0.1:8501"),
        ("http://127.1.2.3", "http://127.1.2.3"),
        ("http://[::1]:8501", "http://[::1]:8501"),
    ],
)
def test_address_has_one_normal_form(text, url):
    address = parse_server(text)
    assert (address.url, str(address)) == (url, url)
    assert parse_server(url) == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("https://" + "x" * 3_000, "too long"),
        ("tacho.example.org", "not complete; expected one like https://"),
        ("//tacho.example.org", "not complete"),
        ("https:tacho.example.org", "not complete"),
        ("ftp://tacho.example.org", "starts with ftp://; expected https://"),
        ("file:///etc/passwd", "starts with file://"),
        ("javascript://x", "starts with javascript://"),
        ("https://", "invalid host name"),
        ("https:///path", "invalid host name"),
        ("https://.example.org", "invalid host name"),
        ("https://a..b", "invalid host name"),
        ("https://-x", "invalid host name"),
        ("https://a,b", "invalid host name"),
        ("https://a:b:c", "invalid port"),
        ("https://a:", "invalid port"),
        ("https://a:0", "invalid port"),
        ("https://a:65536", "invalid port"),
        ("https://a:+80", "invalid port"),
        ("https://[::g]", "invalid IPv6"),
        ("https://[::1", "invalid"),
        ("https://[fe80::1%eth0]", "invalid IPv6"),
        ("https://2001:db8::1", "invalid port"),
        ("https://a/../b", "invalid path"),
        ("https://a/./b", "invalid path"),
        ("https://a/%2e%2e", "invalid path"),
        ("https://a//b", "invalid path"),
        ("https://a/b;c", "invalid path"),
        ("https://a\\b", "backslash"),
        ("https://a b", "space"),
        ("https://a\r\nX: y", "control character"),
        ("https://a\x00", "control character"),
        ("https://bücher.example", "xn--"),
        ("https://a?x=1", r"query \(the part after \?\)"),
        ("https://a#x", "fragment"),
        ("https://user@a", "user name or a password"),
    ],
)
def test_invalid_address_is_refused_with_a_reason(text, reason):
    with pytest.raises(ConfigError, match=reason):
        parse_server(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://tacho.example.org",
        "http://10.0.0.7:8501",
        "http://0.0.0.0",
        "http://localhost.example.org",
        "http://127.0.0.1.example.org",
        "http://2130706433",
        "http://0x7f000001",
        "http://[::ffff:10.0.0.7]",
    ],
)
def test_plain_http_is_only_for_this_machine(text):
    with pytest.raises(ConfigError, match=r"not encrypted.*https://.*TACHO_ALLOW_PLAIN_HTTP=1 accepts it"):
        parse_server(text)
    assert parse_server(text, allow_plain_http=True).scheme == "http"
    assert not parse_server(text, allow_plain_http=True).is_loopback


@pytest.mark.parametrize(
    "text",
    [
        "https://me:{secret}@tacho.example.org",
        "https://{secret}@tacho.example.org",
        "https://tacho.example.org?write_token={secret}",
        "https://tacho.example.org#{secret}",
        "{secret}",
        "ftp://{secret}",
        "https://tacho.example.org:{secret}",
        "https://tacho.example.org/{secret}/../x",
        "https://tacho.example.org/ {secret}",
    ],
)
def test_errors_contain_no_secret(text):
    secret = f"tk_{'0123abcd'}_{'aB3-_' * 8}xyz"
    with pytest.raises(ConfigError) as caught:
        parse_server(text.format(secret=secret))
    assert "aB3-_aB3" not in str(caught.value)
