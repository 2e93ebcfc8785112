"""Client of ellmd, the language model service for CPUs.

    with ellm.Client() as client:
        print(client.chat("Why is the sky blue?").text)
"""
from ._calls import DEFAULT_WAIT, VERSION, Completion, Options, Scores
from ._places import default_socket_path
from .aio import AsyncClient, AsyncStream
from .client import Client, Stream
from .errors import (Absent, BadRequest, Busy, Cancelled, ConnectionFailed, DaemonError, DeadlinePassed, Denied, Error,
                     InternalError, Lost, ModelFailed, NoSuchModel, NoSuchRequest, NotAdmin, ProtocolMismatch, ShuttingDown,
                     TemplateFailed, TooLarge, UnknownMessage, UnsupportedVersion)
from .messages import (CachedPrefix, CacheModel, CacheOwner, CacheReply, ChatMessage, ErrorCode, FinishReason, Hello,
                       ModelInfo, Priority, RequestInfo, Sampling, StatusReply, Timings, Token, TokenizeReply,
                       TokenLogprob, Usage)

__version__ = VERSION

__all__ = [
    "AsyncClient", "AsyncStream", "Client", "Stream", "Completion", "Options", "Scores", "DEFAULT_WAIT",
    "default_socket_path",
    "Error", "DaemonError", "BadRequest", "UnknownMessage", "UnsupportedVersion", "TooLarge", "Busy", "NoSuchModel",
    "ModelFailed", "TemplateFailed", "NoSuchRequest", "ShuttingDown", "InternalError", "Cancelled", "NotAdmin", "DeadlinePassed",
    "ConnectionFailed", "Absent", "Denied", "Lost", "ProtocolMismatch",
    "CachedPrefix", "CacheModel", "CacheOwner", "CacheReply", "ChatMessage", "ErrorCode", "FinishReason", "Hello",
    "ModelInfo", "Priority", "RequestInfo", "Sampling", "StatusReply", "Timings",
    "Token", "TokenizeReply", "TokenLogprob", "Usage",
]
