"""The asyncio client. Cancelling a task that waits for an answer cancels its request in the daemon."""
from __future__ import annotations

import asyncio
import itertools
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Optional, Union, Unpack

from . import _calls, _forks, _places, _session
from . import messages as m
from ._calls import ChatInput, Completion, Options, PriorityName, Prompt, Scores
from .errors import Error, Lost, ProtocolMismatch


class _Call(_session.Call):
    """A request in flight and the queue of what came back."""

    def __init__(self, connection: _Connection, request: m.Numbered) -> None:
        self.connection = connection
        self.arrived: asyncio.Queue[_session.Arrived] = asyncio.Queue()
        super().__init__(request, self.arrived.put_nowait)

    async def get(self) -> m.Message:
        if _forks.is_child(self.connection):
            raise Lost(_forks.FORKED, request_sent=True)
        item = await self.arrived.get()
        if isinstance(item, Exception):
            self.arrived.put_nowait(item)               # whoever asks again is told again
            raise item
        return item


class _Outgoing(NamedTuple):
    frame: bytes
    call: Optional[_Call] = None
    descriptors: Sequence[int] = ()


class _Connection:
    """A task of its own sends, so that a caller that is cancelled leaves no half of a frame; another reads."""

    def __init__(self, sock: socket.socket, first_id: int) -> None:
        self._socket = sock
        self.session = _session.Session(first_id)
        self._outbox: asyncio.Queue[Optional[_Outgoing]] = asyncio.Queue()   # None: no more
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
                await asyncio.wait_for(connection._greet(software), _calls.LONGEST_START)
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

    async def _greet(self, software: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._socket, self.session.hello(software))
        except OSError:
            pass                                        # whether it arrived shows in what comes back
        while self.session.server is None:
            try:
                data = await loop.sock_recv(self._socket, 1 << 16)
            except OSError:
                data = b""
            if not data:
                raise _calls.closed_at_once()
            self.session.receive(data)

    def submit(self, request: m.Numbered, descriptors: Sequence[int] = ()) -> _Call:
        call = _Call(self, request)
        frame = self.session.submit(call)
        if frame:
            # Copies, which outlive a caller that is cancelled before they are sent.
            self._outbox.put_nowait(_Outgoing(frame, call, [os.dup(one) for one in descriptors]))
        return call

    def cancel(self, call: _Call) -> None:
        frame = self.session.cancel(call)
        if frame:
            self._outbox.put_nowait(_Outgoing(frame))

    def is_lost(self) -> bool:
        if self.session.lost:
            return True
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    async def _send(self) -> None:
        try:
            while (item := await self._outbox.get()) is not None:
                try:
                    await self._send_one(item)
                finally:
                    _close(item.descriptors)
        except OSError:
            pass                                        # the reader sees what the peer said last, and its end

    async def _send_one(self, item: _Outgoing) -> None:
        loop, sent = asyncio.get_running_loop(), 0
        while item.descriptors and sent == 0:
            try:
                sent = socket.send_fds(self._socket, [item.frame], list(item.descriptors))
            except BlockingIOError:
                writable: asyncio.Future[None] = loop.create_future()
                loop.add_writer(self._socket, writable.set_result, None)
                try:
                    await writable
                finally:
                    loop.remove_writer(self._socket)
        await loop.sock_sendall(self._socket, memoryview(item.frame)[sent:])
        if item.call:
            item.call.sent = True

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        after: Error = Lost(_calls.AFTER, request_sent=True)
        try:
            while data := await loop.sock_recv(self._socket, 1 << 16):
                self.session.receive(data)
        except OSError:
            pass
        except Error as error:
            after = error
        except asyncio.CancelledError:
            after = Lost("the client was closed before the answer was complete", request_sent=True)
        finally:
            self.session.lost = True                    # nothing more is begun
            await self._stop_sending()
            self._socket.close()
            self.session.end(after)

    async def _stop_sending(self) -> None:
        """What is being sent fails now; afterwards every `sent` is settled."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._outbox.put_nowait(None)
        await asyncio.wait([self._sender])
        while not self._outbox.empty():
            item = self._outbox.get_nowait()
            _close(item.descriptors if item else ())

    def after_fork(self) -> None:
        """In the child: the connection stays the parent's, whose requests go on."""
        self._socket.close()

    async def close(self) -> None:
        if _forks.is_child(self):
            return                                      # its tasks are the parent's
        self._reader.cancel()
        await asyncio.wait([self._reader])


def _close(descriptors: Sequence[int]) -> None:
    for one in descriptors:
        os.close(one)


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
        while not self._ended:
            if self._call and self._began:
                message = await self._call.get()
            else:
                call = self._call or await self._client._submit(self._request)
                self._call, message = await self._client._first(call)
                self._began = True
            piece = _calls.add_to_completion(self.completion, message)
            if piece:
                return piece
            self._ended = _calls.is_last(message)
        return None

    def cancel(self) -> None:
        """The answer then ends soon, with FinishReason.CANCELLED. No effect after the end."""
        if self._call:
            self._call.connection.cancel(self._call)

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
                connection = await self._connect(current.session.next_id if current else 1)
                self._former = [former for former in self._former if not former.session.lost]
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

    async def _submit(self, request: m.Numbered, descriptors: Sequence[int] = ()) -> _Call:
        return (await self._connection()).submit(request, descriptors)

    async def _first(self, call: _Call, descriptors: Sequence[int] = ()) -> tuple[_Call, m.Message]:
        """The first that comes back; a request that the daemon cannot have begun is sent again. Cancelled: so is the
        request."""
        for attempt in itertools.count(1):
            try:
                return call, await call.get()
            except asyncio.CancelledError:
                call.connection.cancel(call)
                raise
            except Error as error:
                if attempt == _calls.ATTEMPTS or not _calls.never_began(error, call.refused):
                    raise
                failure = error
            try:
                call = (await self._connection(other_than=call.connection)).submit(call.request, descriptors)
            except Error:
                raise failure from None                 # it says more
        raise AssertionError

    async def _run(self, question: _calls.Question[_calls.T]) -> _calls.T:
        call, reply = await self._first(await self._submit(question.request, question.descriptors), question.descriptors)
        question.add(reply)
        try:
            while not _calls.is_last(reply):
                question.add(reply := await call.get())
        except asyncio.CancelledError:
            call.connection.cancel(call)
            raise
        return question.answer

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
        server = (await self._connection()).session.server
        assert server
        return server

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
        return await self._run(_calls.tokenize(text, model, add_special, parse_special))

    async def detokenize(self, tokens: Sequence[int], *, model: str = "", special: bool = False) -> str:
        return await self._run(_calls.detokenize(tokens, model, special))

    async def render_template(self, variables: Mapping[str, Any], *, model: str = "") -> str:
        return await self._run(_calls.render_template(variables, model))

    async def score(self, text: Prompt, *, model: str = "", namespace: str = "", top: int = 0,
                    deadline: Optional[float] = None, priority: PriorityName = "interactive") -> Scores:
        """Log-probabilities of the text's own tokens, and of the `top` best at each position."""
        return await self._run(_calls.score(text, model, namespace, top, deadline, priority))

    async def status(self) -> m.StatusReply:
        return await self._run(_calls.status())

    async def models(self) -> list[m.ModelInfo]:
        return await self._run(_calls.models(m.ModelsAction.LIST))

    async def load(self, name: str) -> list[m.ModelInfo]:
        return await self._run(_calls.models(m.ModelsAction.LOAD, name))

    async def unload(self, name: str) -> list[m.ModelInfo]:
        return await self._run(_calls.models(m.ModelsAction.UNLOAD, name))

    async def add_model(self, name: str, paths: Union[str, Sequence[str]], *, install: bool = False,
                        replace: bool = False) -> m.ModelInfo:
        """Hands a model's files (all parts of a split one, in order) to the daemon, which need not be able to open them:
        to be loaded, or with `install` to be copied into its models directory. Raises OSError where one cannot be opened."""
        with _calls.opened(paths) as files:
            return await self._run(_calls.add_model(name, files, install, replace))

    async def remove_model(self, name: str) -> None:
        """From the models directory; one that is not loaded."""
        await self._run(_calls.models(m.ModelsAction.REMOVE, name))

    # ---- the cache -------------------------------------------------------------------------------------------------

    async def cache_list(self, model: str, *, namespace: str = "") -> list[m.CachedPrefix]:
        """What is cached of your texts, used last first."""
        prefixes: list[m.CachedPrefix] = []
        request = m.Cache(action=m.CacheAction.LIST, model=model, namespace_=namespace)
        while True:
            reply = (await self._run(_calls.cache(request)))
            prefixes += reply.prefixes
            if reply.next == 0:
                return sorted(prefixes, key=lambda prefix: prefix.age_s)
            request = m.Cache(action=m.CacheAction.LIST, model=model, namespace_=namespace, cursor=reply.next)

    async def cache_stat(self, *, model: str = "", whose: str = "") -> m.CacheReply:
        """Its `models` and `owners`. `whose`: "all" or a uid, for administrators."""
        return (await self._run(_calls.cache(m.Cache(action=m.CacheAction.STAT, model=model, whose=whose))))

    async def cache_pin(self, prefix: str, *, namespace: str = "") -> m.CachedPrefix:
        """Keeps a prefix (CachedPrefix.prefix) from being given up for others."""
        return (await self._run(_calls.cache(m.Cache(action=m.CacheAction.PIN, prefix=prefix, namespace_=namespace)))).prefixes[0]

    async def cache_unpin(self, prefix: str, *, namespace: str = "") -> m.CachedPrefix:
        return (await self._run(_calls.cache(m.Cache(action=m.CacheAction.UNPIN, prefix=prefix, namespace_=namespace)))).prefixes[0]

    async def cache_flush(self, *, model: str = "", namespace: str = "", pinned: bool = False, whose: str = "") -> int:
        """Gives your cached prefixes up, those that are pinned only if `pinned` says so. Returns how many bytes that frees."""
        return (await self._run(_calls.cache(m.Cache(action=m.CacheAction.FLUSH, model=model, namespace_=namespace, pinned=pinned,
                                 whose=whose)))).bytes

    async def cache_warm(self, prompt: ChatInput, *, model: str = "", namespace: str = "", pin: bool = False) -> m.Usage:
        """Computes a text, or messages, before a request needs it."""
        return (await self._run(_calls.cache(_calls.warm(prompt, model, namespace, pin)))).usage


async def _whole(stream: AsyncStream) -> Completion:
    async for _ in stream:
        pass
    return stream.completion
