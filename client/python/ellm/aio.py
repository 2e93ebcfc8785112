"""The asyncio client. Cancelling a task that waits for an answer cancels its request in the daemon."""
from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Optional, Union, Unpack

from . import _calls, _codec, _forks, _places
from . import messages as m
from ._calls import ChatInput, Completion, Options, Prompt, Scores
from .errors import Error, Lost, ProtocolMismatch, ShuttingDown, from_daemon


class _Call:
    """A request in flight and the queue of what came back."""

    def __init__(self, connection: _Connection, request: m.Numbered) -> None:
        self.connection = connection
        self.request = request
        self.sent = False
        self.cancelled = False
        self.refused = False                            # the error is the daemon's answer to this request
        self.arrived: asyncio.Queue[Union[m.Message, Error]] = asyncio.Queue()

    async def get(self) -> m.Message:
        if _forks.is_child(self.connection):
            raise Lost(_forks.FORKED, request_sent=True)
        item = await self.arrived.get()
        if isinstance(item, Exception):
            self.arrived.put_nowait(item)               # whoever asks again is told again
            raise item
        return item


class _Connection:
    """A task of its own sends, so that a caller that is cancelled leaves no half of a frame; another reads."""

    def __init__(self, sock: socket.socket, first_id: int) -> None:
        self._socket = sock
        self._frames = _codec.Frames()
        self.next_id = first_id
        self._calls: dict[int, _Call] = {}
        self._outbox: asyncio.Queue[Optional[tuple[bytes, Optional[_Call]]]] = asyncio.Queue()   # None: no more
        self.lost = False
        self.server = m.Hello()
        self._sender: asyncio.Task[None]
        self._reader: asyncio.Task[None]

    @classmethod
    async def open(cls, path: str, first_id: int, software: str) -> _Connection:
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        try:
            try:
                await asyncio.get_running_loop().sock_connect(sock, path)
            except OSError as error:
                raise _places.connect_error(path, error) from None
            connection = cls(sock, first_id)
            try:
                connection.server = await asyncio.wait_for(connection._greet(software), _calls.LONGEST_START)
            except asyncio.TimeoutError:
                raise ProtocolMismatch("what listens there does not say hello: is it ellmd?") from None
        except BaseException:
            sock.close()
            raise
        _forks.watch(connection)
        loop = asyncio.get_running_loop()
        connection._sender = loop.create_task(connection._send())
        connection._reader = loop.create_task(connection._read())
        return connection

    async def _greet(self, software: str) -> m.Hello:
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._socket, _codec.encode(m.Hello(software=software)))
        except OSError:
            pass                                        # whether it arrived shows in what comes back
        bodies: list[bytes] = []
        while not bodies:
            try:
                data = await loop.sock_recv(self._socket, 1 << 16)
            except OSError:
                data = b""
            if not data:
                raise _calls.closed_at_once()
            bodies = self._frames.feed(data)
        return _calls.check_hello(_codec.decode(bodies[0]))

    def _new_id(self) -> int:
        number, self.next_id = self.next_id, self.next_id % 0xffffffff + 1
        return number

    def submit(self, request: m.Numbered) -> _Call:
        call = _Call(self, request)
        request.id = self._new_id()
        frame = _codec.encode(request)                  # may raise TooLarge
        if self.lost:
            call.arrived.put_nowait(Lost(_calls.BEFORE))
        else:
            self._calls[request.id] = call
            self._outbox.put_nowait((frame, call))
        return call

    def cancel(self, target: int) -> None:
        call = self._calls.get(target)
        if call and not call.cancelled and not self.lost:
            call.cancelled = True                       # the answer to `cancel` finds no call and is dropped
            self._outbox.put_nowait((_codec.encode(m.Cancel(self._new_id(), target)), None))

    def is_lost(self) -> bool:
        if self.lost:
            return True
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while (item := await self._outbox.get()) is not None:
                frame, call = item
                await loop.sock_sendall(self._socket, frame)
                if call:
                    call.sent = True
        except OSError:
            pass                                        # the reader sees what the peer said last, and its end

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        after: Error = Lost(_calls.AFTER, request_sent=True)
        try:
            while data := await loop.sock_recv(self._socket, 1 << 16):
                for body in self._frames.feed(data):
                    message = _codec.decode(body)
                    if message is not None:
                        self._dispatch(message)
        except OSError:
            pass
        except Error as error:
            after = error
        except asyncio.CancelledError:
            after = Lost("the client was closed before the answer was complete", request_sent=True)
        finally:
            self.lost = True
            await self._stop_sending()
            self._socket.close()
            self._fail_all(after)

    def _dispatch(self, message: m.Message) -> None:
        number: int = getattr(message, "id", 0)
        call = self._calls.get(number)
        if call and _calls.is_last(message):
            del self._calls[number]
        if isinstance(message, m.Error):
            failure = from_daemon(message.code, message.message, message.retry_after_ms)
            if number == 0:
                raise failure                           # about the connection, which is closed after it
            if call:
                call.refused = True
                call.arrived.put_nowait(failure)
        elif call:
            call.arrived.put_nowait(message)

    def _fail_all(self, after: Error) -> None:
        before = Lost(_calls.BEFORE) if isinstance(after, (Lost, ShuttingDown)) else after
        for call in self._calls.values():
            call.arrived.put_nowait(after if call.sent else before)
        self._calls.clear()

    async def _stop_sending(self) -> None:
        """What is being sent fails now; afterwards every `sent` is settled."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._outbox.put_nowait(None)
        await asyncio.wait([self._sender])

    def after_fork(self) -> None:
        """In the child: the connection stays the parent's, whose requests go on."""
        self._socket.close()

    async def close(self) -> None:
        if _forks.is_child(self):
            return                                      # its tasks are the parent's
        self._reader.cancel()
        await asyncio.wait([self._reader])


class AsyncStream:
    """An answer that arrives: iterate over its pieces with `async for`. Leaving the loop, or the `async with` block,
    cancels the request; so does cancelling the task."""

    def __init__(self, client: AsyncClient, request: m.Numbered) -> None:
        self.completion = Completion()
        """What has come so far; whole after the last piece."""
        self._client = client
        self._request = request
        self._call: Optional[_Call] = None
        self._began = self._ended = False

    async def __aiter__(self) -> AsyncIterator[m.Token]:
        try:
            while (piece := await self._next()) is not None:
                yield piece
        finally:
            self.cancel()

    async def _next(self) -> Optional[m.Token]:
        if self._ended:
            return None
        if self._call and self._began:
            message = await self._call.get()
        else:
            call = self._call or await self._client._submit(self._request)
            self._call, message = await self._client._first(call)
            self._began = True
        piece = _calls.add_to_completion(self.completion, message)
        self._ended = piece is None
        return piece

    def cancel(self) -> None:
        """The answer then ends soon, with FinishReason.CANCELLED. No effect after the end."""
        if self._call:
            self._call.connection.cancel(self._call.request.id)

    async def __aenter__(self) -> AsyncStream:
        """Sends the request; without `async with` it is sent when the first piece is asked for."""
        self._call = await self._client._submit(self._request)
        return self

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                        trace: Optional[TracebackType]) -> None:
        self.cancel()


class AsyncClient:
    """A connection to ellmd for one event loop; any number of its tasks may call at once. Arguments as of Client; it
    connects with the first call, or `async with`."""

    def __init__(self, socket_path: Optional[str] = None, *, wait: float = _calls.DEFAULT_WAIT,
                 software: str = _calls.SOFTWARE) -> None:
        self._path, self._wait, self._software = socket_path, wait, software
        self._lock = asyncio.Lock()
        self._closed = False
        self._current: Optional[_Connection] = None
        self._former: list[_Connection] = []            # what was begun there comes to its end there
        _forks.watch(self)

    async def _connection(self, other_than: Optional[_Connection] = None) -> _Connection:
        """The connection for the next call."""
        async with self._lock:
            if self._closed:
                raise Lost("the client was closed")
            current = self._current
            if current is None or current is other_than or current.is_lost():
                connection = await self._connect(current.next_id if current else 1)
                self._former = [former for former in self._former if not former.lost]
                if current:
                    self._former.append(current)
                self._current = current = connection
            return current

    async def _connect(self, first_id: int) -> _Connection:
        deadline, pause = time.monotonic() + self._wait, 0.005
        while True:
            try:
                return await _Connection.open(self._path or _places.default_socket_path(), first_id, self._software)
            except Error as error:
                if not _calls.may_come(error) or time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.1)

    async def _submit(self, request: m.Numbered) -> _Call:
        return (await self._connection()).submit(request)

    async def _first(self, call: _Call) -> tuple[_Call, m.Message]:
        """The first that comes back; a request that the daemon cannot have begun is sent again. Cancelled: so is the
        request."""
        for attempt in itertools.count(1):
            try:
                return call, await call.get()
            except asyncio.CancelledError:
                call.connection.cancel(call.request.id)
                raise
            except Error as error:
                if attempt == _calls.ATTEMPTS or not _calls.never_began(error, call.refused):
                    raise
                failure = error
            try:
                call = (await self._connection(other_than=call.connection)).submit(call.request)
            except Error:
                raise failure from None                 # it says more
        raise AssertionError

    async def _ask(self, request: m.Numbered, kind: type[_calls.R]) -> _calls.R:
        return _calls.expect(kind, (await self._first(await self._submit(request)))[1])

    def after_fork(self) -> None:
        self._lock = asyncio.Lock()                     # the next call opens a connection of the child's own

    async def close(self) -> None:
        """Ends what is in flight."""
        self._closed = True
        for connection in [*self._former, *([self._current] if self._current else [])]:
            await connection.close()

    async def __aenter__(self) -> AsyncClient:
        await self._connection()
        return self

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                        trace: Optional[TracebackType]) -> None:
        await self.close()

    # ---- calls -----------------------------------------------------------------------------------------------------

    async def server(self) -> m.Hello:
        """What the daemon said about itself."""
        return (await self._connection()).server

    def generate_stream(self, prompt: Prompt, *, model: str = "", **options: Unpack[Options]) -> AsyncStream:
        """Continues a text, or token ids as they are."""
        return AsyncStream(self, _calls.generate(prompt, model, options))

    async def generate(self, prompt: Prompt, *, model: str = "", **options: Unpack[Options]) -> Completion:
        return await _whole(self.generate_stream(prompt, model=model, **options))

    def chat_stream(self, messages: ChatInput, *, model: str = "", tools: Optional[Sequence[Any]] = None,
                    variables: Optional[Mapping[str, Any]] = None, **options: Unpack[Options]) -> AsyncStream:
        """Answers a text, or messages as in OpenAI's API; `variables` go to the chat template."""
        return AsyncStream(self, _calls.chat(messages, model, tools, variables, options))

    async def chat(self, messages: ChatInput, *, model: str = "", tools: Optional[Sequence[Any]] = None,
                   variables: Optional[Mapping[str, Any]] = None, **options: Unpack[Options]) -> Completion:
        return await _whole(self.chat_stream(messages, model=model, tools=tools, variables=variables, **options))

    async def tokenize(self, text: str, *, model: str = "", add_special: bool = True,
                       parse_special: bool = True) -> m.TokenizeReply:
        """Ids, and the bytes of each."""
        return await self._ask(m.Tokenize(0, model, text, add_special, parse_special), m.TokenizeReply)

    async def detokenize(self, tokens: Sequence[int], *, model: str = "", special: bool = False) -> str:
        return (await self._ask(m.Detokenize(0, model, list(tokens), special), m.TextReply)).text

    async def render_template(self, variables: Mapping[str, Any], *, model: str = "") -> str:
        return (await self._ask(m.RenderTemplate(0, model, json.dumps(variables)), m.TextReply)).text

    async def score(self, text: Prompt, *, model: str = "", top: int = 0) -> Scores:
        """Log-probabilities of the text's own tokens, and of the `top` best at each position."""
        scores = Scores()
        call, message = await self._first(await self._submit(_calls.score(text, model, top)))
        try:
            while not _calls.add_to_scores(scores, message):
                message = await call.get()
        except asyncio.CancelledError:
            call.connection.cancel(call.request.id)
            raise
        return scores

    async def status(self) -> m.StatusReply:
        return await self._ask(m.Status(), m.StatusReply)

    async def models(self) -> list[m.ModelInfo]:
        return (await self._ask(m.Models(0, m.ModelsAction.LIST), m.ModelsReply)).models

    async def load(self, name: str) -> list[m.ModelInfo]:
        return (await self._ask(m.Models(0, m.ModelsAction.LOAD, name), m.ModelsReply)).models

    async def unload(self, name: str) -> list[m.ModelInfo]:
        return (await self._ask(m.Models(0, m.ModelsAction.UNLOAD, name), m.ModelsReply)).models

    # ---- the cache -------------------------------------------------------------------------------------------------

    async def cache_list(self, model: str, *, namespace: str = "") -> list[m.CachedPrefix]:
        """What is cached of your texts, used last first."""
        prefixes: list[m.CachedPrefix] = []
        request = m.Cache(action=m.CacheAction.LIST, model=model, namespace_=namespace)
        while True:
            reply = (await self._ask(request, m.CacheReply))
            prefixes += reply.prefixes
            if reply.next == 0:
                return sorted(prefixes, key=lambda prefix: prefix.age_s)
            request = m.Cache(action=m.CacheAction.LIST, model=model, namespace_=namespace, cursor=reply.next)

    async def cache_stat(self, *, model: str = "", whose: str = "") -> m.CacheReply:
        """Its `models` and `owners`. `whose`: "all" or a uid, for administrators."""
        return (await self._ask(m.Cache(action=m.CacheAction.STAT, model=model, whose=whose), m.CacheReply))

    async def cache_pin(self, prefix: str, *, namespace: str = "") -> m.CachedPrefix:
        """Keeps a prefix (CachedPrefix.prefix) from being given up for others."""
        return (await self._ask(m.Cache(action=m.CacheAction.PIN, prefix=prefix, namespace_=namespace), m.CacheReply)).prefixes[0]

    async def cache_unpin(self, prefix: str, *, namespace: str = "") -> m.CachedPrefix:
        return (await self._ask(m.Cache(action=m.CacheAction.UNPIN, prefix=prefix, namespace_=namespace), m.CacheReply)).prefixes[0]

    async def cache_flush(self, *, model: str = "", namespace: str = "", pinned: bool = False, whose: str = "") -> int:
        """Gives your cached prefixes up, those that are pinned only if `pinned` says so. Returns how many bytes that frees."""
        return (await self._ask(m.Cache(action=m.CacheAction.FLUSH, model=model, namespace_=namespace, pinned=pinned,
                                 whose=whose), m.CacheReply)).bytes

    async def cache_warm(self, prompt: ChatInput, *, model: str = "", namespace: str = "", pin: bool = False) -> m.Usage:
        """Computes a text, or messages, before a request needs it."""
        return (await self._ask(_calls.warm(prompt, model, namespace, pin), m.CacheReply)).usage


async def _whole(stream: AsyncStream) -> Completion:
    async for _ in stream:
        pass
    return stream.completion
