"""Each channel with a real server that checks signatures, drops connections, or responds late or wrongly."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
import subprocess
import threading
import time

import pytest

from tachograph.sinks.notify import DeliveryError, open_channels, resolve_notify
from tachograph.sinks.notify.lark import signature
from tests.conftest import HANG_S
from tests.receiver import Reply
from tests.sinks.notify.conftest import WebhookReceiver, message

NASTY = '<b>&amp;</b> *x* _y_ `z` [a](http://evil) <@U1> <!here> @everyone @here <at user_id="all">all</at>\n# head'


def channel(**settings):
    return open_channels(resolve_notify(settings))[0]


def sent(receiver, *, to=None, **settings):
    to.send(message(**settings), HANG_S)
    return receiver.requests[-1]


# Lark ----------------------------------------------------------------------------------------------------------------

ACCEPTED = Reply(body=b'{"code": 0, "msg": "success", "data": {}}')


def test_lark_signature_matches_its_documentation():
    assert signature(1794703920, "sec") == "kRtv2u+2PURJfqmBZmpE3kxKr3gLJr4h188Cdgkek80="


def test_lark_text_is_signed(receiver):
    receiver.reply(ACCEPTED)
    lark = channel(lark={"url": f"{receiver.address}/hook", "secret": "sec", "style": "text"})
    payload = sent(receiver, to=lark).json()
    key = f"{payload['timestamp']}\nsec".encode()
    assert payload["sign"] == base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()
    assert abs(payload["timestamp"] - time.time()) < HANG_S
    assert payload["msg_type"] == "text"
    for part in (
        "Loss spike",
        "greyjacket",
        "jackets",
        "120 of 500",
        "4.2",
        "NaN",
        "12 min 34 s",
        "Lower the learning",
    ):
        assert part in payload["content"]["text"]
    assert "http://runs/#/run/greyjacket" in payload["content"]["text"]


def test_lark_card_without_secret_is_not_signed(receiver):
    receiver.reply(ACCEPTED)
    payload = sent(receiver, to=channel(lark=f"{receiver.address}/hook")).json()
    assert set(payload) == {"msg_type", "card"}
    assert payload["msg_type"] == "interactive"
    assert payload["card"]["header"]["template"] == "orange"
    assert payload["card"]["header"]["title"]["content"] == "[jackets/greyjacket] Loss spike"
    assert payload["card"]["elements"][-1]["actions"][0]["url"] == "http://runs/#/run/greyjacket"


@pytest.mark.parametrize("style", ["text", "card"])
def test_lark_escapes_mentions_and_markup(receiver, style):
    receiver.reply(ACCEPTED)
    lark = channel(lark={"url": receiver.address, "style": style})
    request = sent(receiver, to=lark, title=NASTY[:100], reason=NASTY, run=NASTY[:50])
    assert b"<at" not in request.body
    assert b"lark_md" not in request.body


@pytest.mark.parametrize(
    ("reply", "reason", "may_retry"),
    [
        (Reply(body=b'{"code": 19021, "msg": "sign match fail"}'), "Lark returned code 19021: sign match fail", False),
        (Reply(body=b'{"code": 11232, "msg": "frequency limited"}'), "Lark returned code 11232", True),
        (Reply(body=b"<html>hello</html>"), "not a response from Lark", False),
        (Reply(body=b'["code", 0]'), "not a response from Lark", False),
        (Reply(500, b"oops"), "HTTP 500: oops", True),
    ],
)
def test_lark_rejection_with_http_200_is_an_error(receiver, reply, reason, may_retry):
    receiver.reply(reply)
    with pytest.raises(DeliveryError) as failure:
        sent(receiver, to=channel(lark=receiver.address))
    assert reason in str(failure.value)
    assert failure.value.may_retry is may_retry


# Slack ---------------------------------------------------------------------------------------------------------------


def test_slack_texts_are_escaped(receiver):
    payload = sent(receiver, to=channel(slack=receiver.address), reason=NASTY).json()
    texts = [block["text"]["text"] for block in payload["blocks"] if "text" in block]
    assert texts[0] == "*[jackets/greyjacket] Loss spike*"
    assert texts[-1] == "<http://runs/#/run/greyjacket|Open the run>"
    assert "&lt;!here&gt;" in texts[1]
    for text in [payload["text"], *texts[:-1]]:
        assert "<" not in text
        assert ">" not in text
    assert {"type": "mrkdwn", "text": "*train_loss*\n4.2", "verbatim": True} in payload["blocks"][1]["fields"]


@pytest.mark.parametrize("body", [b"invalid_token", b"", b"<html>", b"okay"])
def test_slack_response_other_than_ok_is_an_error(receiver, body):
    receiver.reply(Reply(body=body))
    with pytest.raises(DeliveryError, match="instead of 'ok'"):
        sent(receiver, to=channel(slack=receiver.address))


# Discord -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 204])
def test_discord_escapes_mentions_and_markup(receiver, status):
    receiver.reply(Reply(status, b""))
    payload = sent(receiver, to=channel(discord=receiver.address), reason=NASTY).json()
    assert payload["allowed_mentions"] == {"parse": []}
    embed = payload["embeds"][0]
    assert "\\*x\\*" in embed["description"]
    assert "\\<\\@U1\\>" in embed["description"]
    assert "@everyone" not in embed["description"].replace("\\@", "")
    assert embed["url"] == "http://runs/#/run/greyjacket"
    assert {"name": "train\\_loss", "value": "4.2", "inline": True} in embed["fields"]


def test_discord_retry_after_is_parsed(receiver):
    receiver.reply(Reply(429, b'{"message": "slow down", "retry_after": 0.75, "global": false}', {"Retry-After": "1"}))
    with pytest.raises(DeliveryError, match="HTTP 429") as failure:
        sent(receiver, to=channel(discord=receiver.address))
    assert (failure.value.may_retry, failure.value.wait_s) == (True, 0.75)


# Any webhook ---------------------------------------------------------------------------------------------------------


def test_webhook_sends_all_values_signed(receiver):
    hook = channel(webhook={"url": f"{receiver.address}/in?x=1", "secret": "sec", "authorization": "Bearer abc"})
    request = sent(receiver, to=hook)
    headers = request.headers
    wanted = hmac.new(b"sec", headers["X-Tachograph-Timestamp"].encode() + b"." + request.body, hashlib.sha256)
    assert headers["X-Tachograph-Signature"] == f"sha256={wanted.hexdigest()}"
    assert abs(int(headers["X-Tachograph-Timestamp"]) - time.time()) < HANG_S
    assert headers["Authorization"] == "Bearer abc"
    assert headers["X-Tachograph-Event"] == "alert"
    assert request.path == "/in?x=1"
    payload = request.json()
    assert payload["id"] == headers["X-Tachograph-Id"]
    assert payload["metrics"] == {"train_loss": 4.2, "lr": "NaN"}
    assert payload["advice"] == ["Lower the learning rate."]
    assert payload["step"] == 120


def test_template_is_filled_but_not_executed(receiver):
    template = {
        "routing_key": "r", "n": 3, "text": "{title} of {run} at {step}: {reason}", "step": "{step}",
        "values": "{metrics}", "list": ["{advice}", "{{literal}}"], "inline": "{metrics}; {advice}",
    }  # fmt: skip
    run = '{reason} {0.__class__} %s ${x} "}],'
    payload = sent(receiver, to=channel(webhook={"url": receiver.address, "template": template}), run=run).json()
    assert payload == {
        "routing_key": "r", "n": 3, "text": f"Loss spike of {run} at 120: train_loss rose to 4.2", "step": 120,
        "values": {"train_loss": 4.2, "lr": "NaN"}, "list": [["Lower the learning rate."], "{literal}"],
        "inline": "train_loss 4.2, lr NaN; Lower the learning rate.",
    }  # fmt: skip


def test_webhook_without_secret_is_not_signed(receiver):
    headers = sent(receiver, to=channel(webhook=receiver.address)).headers
    assert not [name for name in headers if "Signature" in name or "Timestamp" in name or name == "Authorization"]


# HTTP, for every channel ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_not_followed(receiver, make_receiver, status):
    other = make_receiver()
    receiver.reply(Reply(status, b"", {"Location": f"{other.address}/elsewhere"}))
    with pytest.raises(DeliveryError, match=f"HTTP {status}: redirected to another address") as failure:
        sent(receiver, to=channel(webhook={"url": receiver.address, "secret": "sec"}))
    assert not failure.value.may_retry
    assert other.requests == []
    assert other.address not in str(failure.value)


@pytest.mark.parametrize(
    ("reply", "may_retry", "wait_s"),
    [
        (Reply(500), True, None),
        (Reply(503, headers={"Retry-After": "7"}), True, 7.0),
        (Reply(429, headers={"Retry-After": "99999999"}), True, 3600.0),
        (Reply(429, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}), True, 0.0),
        (Reply(429, headers={"Retry-After": "soon"}), True, None),
        (Reply(400), False, None),
        (Reply(401), False, None),
        (Reply(404, headers={"Retry-After": "7"}), False, 7.0),
        (Reply(is_dropped=True), True, None),
    ],
)
def test_which_failures_may_be_retried(receiver, reply, may_retry, wait_s):
    receiver.reply(reply)
    with pytest.raises(DeliveryError) as failure:
        sent(receiver, to=channel(webhook=receiver.address))
    assert (failure.value.may_retry, failure.value.wait_s) == (may_retry, wait_s)


def test_unreachable_receiver(receiver):
    receiver.close()
    with pytest.raises(DeliveryError, match="cannot connect: Connection refused") as failure:
        channel(webhook=receiver.address).send(message(), 1.0)
    assert failure.value.may_retry
    with pytest.raises(DeliveryError, match="cannot connect") as failure:
        channel(webhook="http://no-such-host.invalid/x").send(message(), 1.0)
    assert "no-such-host" not in str(failure.value)


def test_response_timeout(receiver):
    receiver.reply(Reply(delay_s=HANG_S))
    with pytest.raises(DeliveryError, match="no response within 0.3 s") as failure:
        channel(slack=receiver.address).send(message(), 0.3)
    assert failure.value.may_retry


def test_endless_response_is_not_read_to_the_end(receiver):
    receiver.reply(Reply(is_endless=True))
    with pytest.raises(DeliveryError, match="instead of 'ok'") as failure:
        channel(slack=receiver.address).send(message(), HANG_S)
    assert len(str(failure.value)) < 200


def test_untrusted_certificate_is_rejected(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = WebhookReceiver()
    server.socket = context.wrap_socket(server.socket, server_side=True)
    try:
        with pytest.raises(DeliveryError, match="certificate is not trusted") as failure:
            channel(slack=server.address.replace("http", "https")).send(message(), HANG_S)
        assert not failure.value.may_retry
        assert server.requests == []
    finally:
        server.close()


def test_proxy_from_environment_is_used(receiver, monkeypatch):
    monkeypatch.setenv("http_proxy", receiver.address)
    channel(slack="http://hooks.example.org/services/x").send(message(), HANG_S)
    assert receiver.requests[0].path == "http://hooks.example.org/services/x"


# Lengths -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["x", "&", "*", "好", "\N{FIRE}", '"'])
def test_messages_respect_size_limits_of_channels(receiver, text):
    long = {
        "title": text * 200, "run": text * 200, "project": text * 200, "reason": text * 2_000, "meaning": text * 500,
        "advice": (text * 300,) * 5, "host": text * 200, "metrics": {f"{text * 190}{n}": 1.0 for n in range(10)},
    }  # fmt: skip
    receiver.reply(ACCEPTED)
    for style in ("card", "text"):
        assert len(sent(receiver, to=channel(lark={"url": receiver.address, "style": style}), **long).body) <= 20_000
    receiver.reply(Reply())
    payload = sent(receiver, to=channel(slack=receiver.address), **long).json()
    assert len(payload["blocks"]) <= 50
    assert all(len(block["text"]["text"]) <= 3_000 for block in payload["blocks"] if "text" in block)
    assert all(len(field["text"]) <= 2_000 for block in payload["blocks"] for field in block.get("fields", []))
    assert all(len(block.get("fields", [])) <= 10 for block in payload["blocks"])
    embed = sent(receiver, to=channel(discord=receiver.address), **long).json()["embeds"][0]
    fields = embed["fields"]
    assert len(embed["title"]) <= 256
    assert len(embed["description"]) <= 4_096
    assert len(fields) <= 25
    assert sum(len(field["name"]) + len(field["value"]) for field in fields) <= 6_000 - 256 - 3_000
    if text == "&":
        assert payload["blocks"][0]["text"]["text"].endswith(("&amp;*", "…*"))  # no escape is cut in half


def test_sending_leaves_no_threads(receiver):
    before = threading.active_count()
    sent(receiver, to=channel(slack=receiver.address))
    assert threading.active_count() <= before + 1  # of the server
