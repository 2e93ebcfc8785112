"""One connection's side of the protocol, without a socket and without waiting: what is to be sent, and whose call what
arrived belongs to. Both clients move its bytes, each in its way; one thread at a time."""
from __future__ import annotations

from collections.abc import Callable
from typing import Optional, Union

from . import _calls, _codec
from . import messages as m
from .errors import Error, Lost, ShuttingDown, UnknownMessage, from_daemon

Arrived = Union[m.Message, Error]


class Call:
    """A request in flight; `put` takes what comes back."""

    def __init__(self, request: m.Numbered, put: Callable[[Arrived], None]) -> None:
        self.request, self.put = request, put
        self.sent = False                               # the daemon may have begun it
        self.cancelled = False
        self.refused = False                            # the error is the daemon's answer to this request


class Session:
    def __init__(self, first_id: int) -> None:
        self.next_id = first_id
        self.server: Optional[m.Hello] = None           # what the daemon said about itself
        self.lost = False                               # nothing more can be sent
        self._frames = _codec.Frames()
        self._calls: dict[int, Call] = {}

    @staticmethod
    def hello(software: str) -> bytes:
        return _codec.encode(m.Hello(software=software, features=["denied"]))

    def submit(self, call: Call) -> Optional[bytes]:
        """Its frame; None where it has failed already, because the connection is lost. Raises TooLarge, UnknownMessage."""
        for feature, what in _calls.needs(call.request):
            if self.server and feature not in self.server.features:
                raise UnknownMessage("%s is too old to %s: install the same release of both, and restart ellmd"
                                     % (self.server.software, what))
        call.request.id = self._new_id()
        frame = _codec.encode(call.request)
        if self.lost:
            call.put(Lost(_calls.BEFORE))
            return None
        self._calls[call.request.id] = call
        return frame

    def cancel(self, call: Call) -> Optional[bytes]:
        """What to send, once; its answer finds no call and is dropped."""
        if self._calls.get(call.request.id) is not call or call.cancelled or self.lost:
            return None
        call.cancelled = True
        return _codec.encode(m.Cancel(self._new_id(), call.request.id))

    def receive(self, data: bytes) -> None:
        """Hands out what arrived. What it raises ends the connection."""
        for body in self._frames.feed(data):
            message = _codec.decode(body)
            if self.server is None:
                self.server = _calls.check_hello(message)
            elif message is not None:
                self._dispatch(message)

    def end(self, after: Error) -> None:
        """The connection is lost: every call fails, those that the daemon cannot have begun saying so."""
        self.lost = True
        before = Lost(_calls.BEFORE) if isinstance(after, (Lost, ShuttingDown)) else after
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.put(after if call.sent else before)

    def _new_id(self) -> int:
        number, self.next_id = self.next_id, self.next_id % 0xffffffff + 1
        return number

    def _dispatch(self, message: m.Message) -> None:
        number: int = getattr(message, "id", 0)
        call = self._calls.pop(number, None) if _calls.is_last(message) else self._calls.get(number)
        if isinstance(message, m.Error):
            failure = from_daemon(message.code, message.message, message.retry_after_ms)
            if number == 0:
                raise failure                           # about the connection, which is closed after it
            if call:
                call.refused = True
                call.put(failure)
        elif call:
            call.put(message)
