"""E-mail by SMTP."""

from __future__ import annotations

import contextlib
import smtplib
import ssl
from collections.abc import Iterator
from email.message import EmailMessage
from email.utils import formatdate

from tachograph._base.http import DeliveryError
from tachograph.sinks.notify._message import Message, one_line, subject_of, text_of
from tachograph.sinks.notify._secret import Cleaner
from tachograph.sinks.notify._settings import EmailSettings

__all__ = ["EmailChannel", "open_channel"]

_PORTS = {"starttls": 587, "ssl": 465, "plain": 25}


class EmailChannel:
    """Sends by a mail server."""

    name = "email"

    def __init__(self, settings: EmailSettings) -> None:
        self._settings = settings
        self.clean = Cleaner(settings.password)

    def send(self, message: Message, timeout_s: float) -> None:
        """Send a message."""
        failure = None
        try:
            with self._server(timeout_s) as server:
                refused = server.send_message(self._mail(message))
        except (OSError, smtplib.SMTPException, ValueError) as error:
            failure = self._undelivered(error, timeout_s)
        if failure is not None:
            raise failure  # here, where the error that may quote a password is no longer its context
        if refused:
            raise DeliveryError(f"the mail server refused {len(refused)} of {len(self._settings.to)} recipients")

    @contextlib.contextmanager
    def _server(self, timeout_s: float) -> Iterator[smtplib.SMTP]:
        chosen = self._settings
        port = chosen.port or _PORTS[chosen.security]
        if chosen.security == "ssl":
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                chosen.host, port, timeout=timeout_s, context=ssl.create_default_context()
            )
        else:
            server = smtplib.SMTP(chosen.host, port, timeout=timeout_s)
        try:
            if chosen.security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if chosen.user and chosen.password is not None:
                server.login(chosen.user, chosen.password.reveal())
            yield server
            with contextlib.suppress(smtplib.SMTPException, OSError):
                server.quit()  # the mail is taken by now, whatever becomes of the farewell
        finally:
            server.close()

    def _mail(self, message: Message) -> EmailMessage:
        mail = EmailMessage()
        mail["Subject"] = one_line(subject_of(message), 200)
        mail["From"] = self._settings.sender
        mail["To"] = ", ".join(self._settings.to)
        mail["Date"] = formatdate(message.time)
        mail["Message-ID"] = f"<{message.id}@tachograph.invalid>"
        mail["Auto-Submitted"] = "auto-generated"  # or an absent reader's mailbox would answer
        mail.set_content(text_of(message))
        return mail

    def _undelivered(self, error: Exception, timeout_s: float) -> DeliveryError:
        if isinstance(error, smtplib.SMTPAuthenticationError):
            return DeliveryError(f"the mail server does not accept the user or the password (SMTP {error.smtp_code})")
        if isinstance(error, smtplib.SMTPRecipientsRefused):
            codes = {code for code, _ in error.recipients.values()}
            return DeliveryError(
                f"the mail server refused every recipient (SMTP {', '.join(map(str, sorted(codes)))})",
                may_retry=all(400 <= code < 500 for code in codes),
            )
        if isinstance(error, smtplib.SMTPNotSupportedError):
            return DeliveryError("the mail server offers no STARTTLS or no log-in; see notify.email.security")
        if isinstance(error, smtplib.SMTPResponseException):
            said = (
                error.smtp_error.decode("utf-8", "replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
            )
            is_passing = 400 <= error.smtp_code < 500 or error.smtp_code <= 0
            return DeliveryError(f"SMTP {error.smtp_code}: {self.clean(str(said), 200)}", may_retry=is_passing)
        if isinstance(error, (TimeoutError, smtplib.SMTPServerDisconnected)):  # which a time-out may look like, too
            return DeliveryError(f"the mail server hung up, or gave no answer within {timeout_s:g} s", may_retry=True)
        if isinstance(error, ssl.SSLCertVerificationError):
            return DeliveryError(f"the mail server's certificate is not trusted: {error.verify_message}")
        if isinstance(error, ValueError):
            return DeliveryError(f"it cannot be sent: {type(error).__name__}")
        words = getattr(error, "strerror", None) or type(error).__name__
        return DeliveryError(f"the mail server cannot be reached: {words}", may_retry=True)


def open_channel(settings: EmailSettings) -> EmailChannel:
    """Return the channel."""
    return EmailChannel(settings)
