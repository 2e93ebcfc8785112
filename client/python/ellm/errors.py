"""What calls raise. `except ellm.Error` catches all of it."""
from __future__ import annotations

from .messages import ErrorCode


class Error(Exception):
    """Everything that this package raises."""


class DaemonError(Error):
    """The daemon answered with an error; there is a class for each code."""
    code: ErrorCode = ErrorCode.INTERNAL

    def __init__(self, message: str, retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms    # with Busy: when to try again; 0 where nothing is known


class BadRequest(DaemonError):
    code = ErrorCode.BAD_REQUEST


class UnknownMessage(DaemonError):
    """The daemon is older than this package: do without."""
    code = ErrorCode.UNKNOWN_MESSAGE


class UnsupportedVersion(DaemonError):
    code = ErrorCode.UNSUPPORTED_VERSION


class TooLarge(DaemonError):
    code = ErrorCode.TOO_LARGE


class Busy(DaemonError):
    code = ErrorCode.BUSY


class NoSuchModel(DaemonError):
    code = ErrorCode.NO_SUCH_MODEL


class ModelFailed(DaemonError):
    code = ErrorCode.MODEL_FAILED


class TemplateFailed(DaemonError):
    code = ErrorCode.TEMPLATE_FAILED


class NoSuchRequest(DaemonError):
    code = ErrorCode.NO_SUCH_REQUEST


class ShuttingDown(DaemonError):
    code = ErrorCode.SHUTTING_DOWN


class InternalError(DaemonError):
    code = ErrorCode.INTERNAL


class Cancelled(DaemonError):
    """A request other than a completion was cancelled; a completion ends with FinishReason.CANCELLED."""
    code = ErrorCode.CANCELLED


class NotAdmin(DaemonError):
    """It is for administrators."""
    code = ErrorCode.DENIED


class DeadlinePassed(DaemonError):
    """Of a score; a completion ends with FinishReason.DEADLINE."""
    code = ErrorCode.DEADLINE


class ConnectionFailed(Error, ConnectionError):
    """There is no daemon to talk to, or no longer, or it speaks another protocol. The message says what to do."""

    def __init__(self, message: str, request_sent: bool = False) -> None:
        super().__init__(message)
        self.request_sent = request_sent        # the request may have run, so it was not sent again


class Absent(ConnectionFailed):
    """No daemon came within the wait."""


class Denied(ConnectionFailed):
    """This user may not connect."""


class Lost(ConnectionFailed):
    """The daemon stopped or crashed."""


class ProtocolMismatch(ConnectionFailed):
    """What listens there is not ellmd, or of a release that does not fit."""


_BY_CODE = {kind.code: kind for kind in DaemonError.__subclasses__()}


def from_daemon(code: int, message: str, retry_after_ms: int) -> DaemonError:
    kind = next((kind for known, kind in _BY_CODE.items() if known == code), DaemonError)
    return kind(message, retry_after_ms)
