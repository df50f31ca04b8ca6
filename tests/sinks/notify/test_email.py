"""E-mail with a real mail server."""

from __future__ import annotations

import email
import email.policy
import ssl
import subprocess

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from tachograph.sinks.notify import DeliveryError, open_channels, resolve_notify
from tests.conftest import HANG_S, reserve_port
from tests.sinks.notify.conftest import message

PASSWORD = "canary-hunter-2"


class Mailbox:
    """Stores the mails it receives, or rejects them with a given code."""

    def __init__(self):
        self.mails = []
        self.refusal = {}

    async def handle_RCPT(self, server, session, envelope, address, options):
        if address in self.refusal:
            return self.refusal[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        if "DATA" in self.refusal:
            return self.refusal["DATA"]
        self.mails.append((envelope, session.ssl is not None, session.authenticated))
        return "250 OK"


def authenticate(server, session, envelope, mechanism, given):
    good = isinstance(given, LoginPassword) and given.password == PASSWORD.encode()
    return AuthResult(success=good, handled=False, message=None if good else f"535 no, not {PASSWORD}")


@pytest.fixture
def mail_server():
    started = []

    def start(**options):
        controller = Controller(Mailbox(), hostname="127.0.0.1", port=reserve_port(), **options)
        controller.start()
        started.append(controller)
        return controller

    yield start
    for controller in started:
        controller.stop()


def settings(controller, **more):
    given = {
        "host": "127.0.0.1",
        "port": controller.port,
        "security": "plain",
        "to": ["a@x.org", "b@x.org"],
        "sender": "t@x.org",
    }
    return resolve_notify({"email": {**given, **more}})


def send(controller, mail=None, *, timeout_s=HANG_S, **more):
    open_channels(settings(controller, **more))[0].send(mail or message(), timeout_s)


def parse_mail(controller):
    envelope, _, _ = controller.handler.mails[-1]
    return email.message_from_bytes(envelope.content, policy=email.policy.default)


def test_mail_contains_all_fields(mail_server):
    server = mail_server()
    send(server)
    mail = parse_mail(server)
    assert mail["Subject"] == "[jackets/greyjacket] Loss spike"
    assert (mail["From"], mail["To"]) == ("t@x.org", "a@x.org, b@x.org")
    assert mail["Auto-Submitted"] == "auto-generated"
    for part in (
        "Loss spike",
        "train_loss: 4.2",
        "lr: NaN",
        "- Lower the learning rate.",
        "http://runs/#/run/greyjacket",
    ):
        assert part in mail.get_content()
    assert server.handler.mails[0][0].rcpt_tos == ["a@x.org", "b@x.org"]


def test_text_cannot_inject_mail_headers(mail_server):
    server = mail_server()
    nasty = "x\r\nBcc: evil@x.org\r\n\r\n.\r\nMAIL FROM:<evil@x.org>\n.\n läuft 好"
    send(server, message(title=nasty, run=nasty, reason=nasty, project=nasty))
    mail = parse_mail(server)
    assert mail["Bcc"] is None
    assert "\n" not in mail["Subject"]
    assert "Bcc: evil@x.org" in mail["Subject"]
    assert "läuft 好" in mail.get_content()
    assert len(server.handler.mails) == 1


def test_login(mail_server):
    server = mail_server(authenticator=authenticate, auth_require_tls=False)
    send(server, user="me", password=PASSWORD)
    assert server.handler.mails[0][2] is True


def test_rejected_password_is_not_quoted(mail_server):
    server = mail_server(authenticator=authenticate, auth_require_tls=False)
    with pytest.raises(DeliveryError, match="rejected the user name or the password") as failure:
        send(server, user="me", password="canary-wrong-3")
    assert "canary" not in str(failure.value)
    assert failure.value.__context__ is None
    assert not failure.value.may_retry


@pytest.mark.parametrize(
    ("refusal", "reason", "may_retry"),
    [
        ({"DATA": "451 try again"}, "SMTP 451: try again", True),
        ({"DATA": "554 spam"}, "SMTP 554: spam", False),
        ({"a@x.org": "550 who"}, "rejected 1 of 2 recipients", False),
        ({"a@x.org": "550 who", "b@x.org": "550 who"}, r"rejected every recipient \(SMTP 550\)", False),
        ({"a@x.org": "450 later", "b@x.org": "450 later"}, r"rejected every recipient \(SMTP 450\)", True),
    ],
)
def test_rejected_mail(mail_server, refusal, reason, may_retry):
    server = mail_server()
    server.handler.refusal = refusal
    with pytest.raises(DeliveryError, match=reason) as failure:
        send(server)
    assert failure.value.may_retry is may_retry


@pytest.fixture
def tls(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate


def test_starttls_with_trusted_certificate(mail_server, tls, monkeypatch):
    context, certificate = tls
    server = mail_server(tls_context=context, authenticator=authenticate, auth_required=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    send(server, security="starttls", user="me", password=PASSWORD)
    assert server.handler.mails[0][1:] == (True, True)


def test_starttls_with_untrusted_certificate_sends_nothing(mail_server, tls):
    seen = []

    def look(*arguments):
        seen.append(arguments)
        return AuthResult(success=True)

    server = mail_server(tls_context=tls[0], authenticator=look)
    with pytest.raises(DeliveryError, match="certificate is not trusted") as failure:
        send(server, security="starttls", user="me", password=PASSWORD)
    assert not failure.value.may_retry
    assert seen == []
    assert server.handler.mails == []


def test_server_without_starttls_is_an_error(mail_server):
    with pytest.raises(DeliveryError, match="does not support STARTTLS"):
        send(mail_server(), security="starttls")


def test_implicit_ssl_connection(mail_server, tls, monkeypatch):
    context, certificate = tls
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    server = mail_server(ssl_context=context)
    send(server, security="ssl")
    assert len(server.handler.mails) == 1


def test_mail_server_unreachable_or_silent(receiver):
    port = int(receiver.address.rpartition(":")[2])
    given = {"host": "127.0.0.1", "port": port, "security": "plain", "to": "a@x.org", "sender": "t@x.org"}
    mail = open_channels(resolve_notify({"email": given}))[0]
    with pytest.raises(DeliveryError, match="did not respond within 0.3 s") as failure:  # HTTP waits for us
        mail.send(message(), 0.3)
    assert failure.value.may_retry
    receiver.close()
    with pytest.raises(DeliveryError, match="cannot be reached: Connection refused") as failure:
        mail.send(message(), 0.3)
    assert failure.value.may_retry
