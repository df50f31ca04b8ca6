"""E-mail over SMTP."""

from __future__ import annotations

import contextlib
import smtplib
import ssl
from collections.abc import Iterator
from email.message import EmailMessage
from email.utils import formatdate

from tachograph._base.guard import faults, suppress
from tachograph._base.http import DeliveryError
from tachograph._base.tls import tls_section
from tachograph.sinks.notify._message import Message, format_subject, format_text, single_line
from tachograph.sinks.notify._secrets import SecretMasker
from tachograph.sinks.notify._settings import EmailSettings

__all__ = ["EmailChannel", "open_channel"]

_PORTS = {"starttls": 587, "ssl": 465, "plain": 25}


class EmailChannel:
    """Sends through a mail server."""

    name = "email"

    def __init__(self, settings: EmailSettings) -> None:
        self._settings = settings
        self.mask_secrets = SecretMasker(settings.password)

    def send(self, message: Message, timeout_s: float) -> None:
        """Send a message."""
        failure = None
        try:
            is_plain = self._settings.security == "plain"
            with contextlib.nullcontext() if is_plain else tls_section(), self._connect(timeout_s) as server:
                rejected_recipients = server.send_message(self._build_mail(message))
        except faults(OSError, smtplib.SMTPException, ValueError) as error:
            failure = self._delivery_error(error, timeout_s)
        if failure is not None:
            # Raised outside the except block: the original error may quote the password and must not be its context.
            raise failure
        if rejected_recipients:
            raise DeliveryError(
                f"the mail server rejected {len(rejected_recipients)} of {len(self._settings.to)} recipients"
            )

    @contextlib.contextmanager
    def _connect(self, timeout_s: float) -> Iterator[smtplib.SMTP]:
        settings = self._settings
        port = settings.port or _PORTS[settings.security]
        if settings.security == "ssl":
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                settings.host, port, timeout=timeout_s, context=ssl.create_default_context()
            )
        else:
            server = smtplib.SMTP(settings.host, port, timeout=timeout_s)
        try:
            if settings.security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if settings.user and settings.password is not None:
                server.login(settings.user, settings.password.reveal())
            yield server
            with suppress(smtplib.SMTPException, OSError):
                server.quit()  # the mail is accepted by now, so a failure here does not matter
        finally:
            server.close()

    def _build_mail(self, message: Message) -> EmailMessage:
        mail = EmailMessage()
        mail["Subject"] = single_line(format_subject(message), 200)
        mail["From"] = self._settings.sender
        mail["To"] = ", ".join(self._settings.to)
        mail["Date"] = formatdate(message.time)
        mail["Message-ID"] = f"<{message.id}@tachograph.invalid>"
        mail["Auto-Submitted"] = "auto-generated"  # prevents out-of-office replies
        mail.set_content(format_text(message))
        return mail

    def _delivery_error(self, error: Exception, timeout_s: float) -> DeliveryError:
        if isinstance(error, smtplib.SMTPAuthenticationError):
            return DeliveryError(f"the mail server rejected the user name or the password (SMTP {error.smtp_code})")
        if isinstance(error, smtplib.SMTPRecipientsRefused):
            codes = {code for code, _ in error.recipients.values()}
            return DeliveryError(
                f"the mail server rejected every recipient (SMTP {', '.join(map(str, sorted(codes)))})",
                may_retry=all(400 <= code < 500 for code in codes),
            )
        if isinstance(error, smtplib.SMTPNotSupportedError):
            return DeliveryError("the mail server does not support STARTTLS or login; see notify.email.security")
        if isinstance(error, smtplib.SMTPResponseException):
            text = (
                error.smtp_error.decode("utf-8", "replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
            )
            is_temporary = 400 <= error.smtp_code < 500 or error.smtp_code <= 0
            reason = f"SMTP {error.smtp_code}: {self.mask_secrets(str(text), 200)}"
            return DeliveryError(reason, may_retry=is_temporary)
        if isinstance(error, (TimeoutError, smtplib.SMTPServerDisconnected)):  # smtplib raises either for a timeout
            return DeliveryError(
                f"the mail server closed the connection or did not respond within {timeout_s:g} s", may_retry=True
            )
        if isinstance(error, ssl.SSLCertVerificationError):
            return DeliveryError(f"the mail server's certificate is not trusted: {error.verify_message}")
        if isinstance(error, ValueError):
            return DeliveryError(f"the mail cannot be sent: {type(error).__name__}")
        reason = getattr(error, "strerror", None) or type(error).__name__
        return DeliveryError(f"the mail server cannot be reached: {reason}", may_retry=True)


def open_channel(settings: EmailSettings) -> EmailChannel:
    """Return the channel."""
    return EmailChannel(settings)
