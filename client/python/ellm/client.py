"""The synchronous client. One connection; a thread of its own hands out what arrives, so that any number of threads may
call at once and streams may be read in any order."""
from __future__ import annotations

import itertools
import queue
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Optional, Union, Unpack

from . import _calls, _forks, _places, _session
from . import messages as m
from ._calls import ChatInput, Completion, Options, PriorityName, Prompt, Scores
from .errors import Error, Lost, ProtocolMismatch


class _Call(_session.Call):
    """A request in flight and the queue of what came back. `sent` belongs to the connection's send lock."""

    def __init__(self, connection: _Connection, request: m.Numbered) -> None:
        self.connection = connection
        self.arrived: queue.SimpleQueue[_session.Arrived] = queue.SimpleQueue()
        super().__init__(request, self.arrived.put)

    def get(self) -> m.Message:
        if _forks.is_child(self.connection):
            raise Lost(_forks.FORKED, request_sent=True)
        item = self.arrived.get()
        if isinstance(item, Exception):
            self.arrived.put(item)                      # whoever asks again is told again
            raise item
        return item


class _Connection:
    def __init__(self, path: str, first_id: int, software: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._lock = threading.RLock()                  # session; a dropped stream cancels in whichever thread collects it
        self._send_lock = threading.Lock()
        self.session = _session.Session(first_id)
        try:
            try:
                self._socket.connect(path)
            except OSError as error:
                raise _places.connect_error(path, error) from None
            self._greet(software)
        except BaseException:
            self._socket.close()
            raise
        _forks.watch(self)
        threading.Thread(target=self._read, name="ellm", daemon=True).start()

    def _greet(self, software: str) -> None:
        self._socket.settimeout(_calls.LONGEST_START)
        self._send(self.session.hello(software))        # whether it arrived shows in what comes back
        while self.session.server is None:
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                raise ProtocolMismatch("what listens there does not say hello: is it ellmd?") from None
            except OSError:
                data = b""
            if not data:
                raise _calls.closed_at_once()
            self.session.receive(data)
        self._socket.settimeout(None)

    def submit(self, request: m.Numbered, descriptors: Sequence[int] = ()) -> _Call:
        call = _Call(self, request)
        with self._lock:
            frame = self.session.submit(call)
        if frame:
            self._send(frame, call, descriptors)
        return call

    def _send(self, frame: bytes, call: Optional[_Call] = None, descriptors: Sequence[int] = ()) -> None:
        with self._send_lock:
            try:
                sent = socket.send_fds(self._socket, [frame], list(descriptors)) if descriptors else 0
                self._socket.sendall(memoryview(frame)[sent:])
            except OSError:
                return                                  # the reader sees what the peer said last, and its end
            if call:
                call.sent = True

    def cancel(self, call: _Call) -> None:
        with self._lock:
            frame = self.session.cancel(call)
        if frame:
            self._send(frame)

    def is_lost(self) -> bool:
        if not self.session.lost:
            try:
                return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                return True
        return True

    def after_fork(self) -> None:
        """In the child: the connection stays the parent's, whose requests go on."""
        vars(self).update(_lock=threading.RLock(), _send_lock=threading.Lock())   # somebody may have held them
        self._socket.close()

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _read(self) -> None:
        """The reader's thread."""
        after: Error = Lost(_calls.AFTER, request_sent=True)
        try:
            while data := self._socket.recv(1 << 16):
                with self._lock:
                    self.session.receive(data)
        except OSError:
            pass
        except Error as error:
            after = error
        with self._lock:
            self.session.lost = True                    # nothing more is begun
        self.close()
        with self._send_lock:                           # what is being sent fails now; every `sent` is settled
            self._socket.close()
        with self._lock:
            self.session.end(after)


class Stream:
    """An answer that arrives: iterate over its pieces. Leaving the loop, or the `with` block, cancels the request."""

    def __init__(self, client: Client, request: m.Numbered) -> None:
        self.completion = Completion()
        """What has come so far; whole after the last piece."""
        self._client = client
        self._began = self._ended = False
        self._call = client._submit(request)

    def __iter__(self) -> Iterator[m.Token]:
        try:
            while (piece := self._next()) is not None:
                yield piece
        finally:
            self.cancel()

    def _next(self) -> Optional[m.Token]:
        while not self._ended:
            if self._began:
                message = self._call.get()
            else:
                self._call, message = self._client._first(self._call)
                self._began = True
            piece = _calls.add_to_completion(self.completion, message)
            if piece:
                return piece
            self._ended = _calls.is_last(message)
        return None

    def cancel(self) -> None:
        """The answer then ends soon, with FinishReason.CANCELLED. No effect after the end."""
        self._call.connection.cancel(self._call)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.cancel()

    def __del__(self) -> None:
        if hasattr(self, "_call"):
            self.cancel()


class Client:
    """A connection to ellmd. Any number of threads may call at once.

    `socket_path`: default: $ELLM_SOCKET, $XDG_RUNTIME_DIR/ellm/ellmd.sock, /run/ellm/ellmd.sock.
    `wait`: seconds to wait for a daemon that does not listen yet, or no longer because it restarts. A request that the
    daemon cannot have begun is then sent again; another raises Lost with request_sent."""

    def __init__(self, socket_path: Optional[str] = None, *, wait: float = _calls.DEFAULT_WAIT,
                 software: str = _calls.SOFTWARE) -> None:
        self._path, self._wait, self._software = socket_path, wait, software
        self._lock = threading.Lock()
        self._closed = False
        self._current: Optional[_Connection] = None
        self._former: list[_Connection] = []            # what was begun there comes to its end there
        _forks.watch(self)
        self._connection()

    def _connection(self, other_than: Optional[_Connection] = None) -> _Connection:
        """The connection for the next call."""
        with self._lock:
            if self._closed:
                raise Lost("the client was closed")
            current = self._current
            if current is None or current is other_than or current.is_lost():
                connection = self._connect(current.session.next_id if current else 1)
                self._former = [former for former in self._former if not former.session.lost]
                if current:
                    self._former.append(current)
                self._current = current = connection
            return current

    def _connect(self, first_id: int) -> _Connection:
        deadline, pause = time.monotonic() + self._wait, 0.005
        while True:
            try:
                return _Connection(self._path or _places.default_socket_path(), first_id, self._software)
            except Error as error:
                if not _calls.may_come(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 0.1)

    def _submit(self, request: m.Numbered, descriptors: Sequence[int] = ()) -> _Call:
        return self._connection().submit(request, descriptors)

    def _first(self, call: _Call, descriptors: Sequence[int] = ()) -> tuple[_Call, m.Message]:
        """The first that comes back; a request that the daemon cannot have begun is sent again."""
        for attempt in itertools.count(1):
            try:
                return call, call.get()
            except Error as error:
                if attempt == _calls.ATTEMPTS or not _calls.never_began(error, call.refused):
                    raise
                failure = error
            try:
                call = self._connection(other_than=call.connection).submit(call.request, descriptors)
            except Error:
                raise failure from None                 # it says more
        raise AssertionError

    def _run(self, question: _calls.Question[_calls.T]) -> _calls.T:
        call = self._submit(question.request, question.descriptors)
        try:
            call, reply = self._first(call, question.descriptors)
            question.add(reply)
            while not _calls.is_last(reply):
                question.add(reply := call.get())
        except KeyboardInterrupt:
            call.connection.cancel(call)
            raise
        return question.answer

    @property
    def server(self) -> m.Hello:
        """What the daemon said about itself."""
        server = self._connection().session.server
        assert server
        return server

    def after_fork(self) -> None:
        self._lock = threading.Lock()                   # the next call opens a connection of the child's own

    def close(self) -> None:
        """Ends what is in flight."""
        with self._lock:
            self._closed = True
            connections = [*self._former, *([self._current] if self._current else [])]
        for connection in connections:
            connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_former"):
            self.close()

    # ---- calls -----------------------------------------------------------------------------------------------------

    def generate_stream(self, prompt: Prompt, *, model: str = "", **options: Unpack[Options]) -> Stream:
        """Continues a text, or token ids as they are."""
        return Stream(self, _calls.generate(prompt, model, options))

    def generate(self, prompt: Prompt, *, model: str = "", **options: Unpack[Options]) -> Completion:
        return _whole(self.generate_stream(prompt, model=model, **options))

    def chat_stream(self, messages: ChatInput, *, model: str = "", tools: Optional[Sequence[Any]] = None,
                    variables: Optional[Mapping[str, Any]] = None, **options: Unpack[Options]) -> Stream:
        """Answers a text, or messages as in OpenAI's API; `variables` go to the chat template."""
        return Stream(self, _calls.chat(messages, model, tools, variables, options))

    def chat(self, messages: ChatInput, *, model: str = "", tools: Optional[Sequence[Any]] = None,
             variables: Optional[Mapping[str, Any]] = None, **options: Unpack[Options]) -> Completion:
        return _whole(self.chat_stream(messages, model=model, tools=tools, variables=variables, **options))

    def tokenize(self, text: str, *, model: str = "", add_special: bool = True,
                 parse_special: bool = True) -> m.TokenizeReply:
        """Ids, and the bytes of each."""
        return self._run(_calls.tokenize(text, model, add_special, parse_special))

    def detokenize(self, tokens: Sequence[int], *, model: str = "", special: bool = False) -> str:
        return self._run(_calls.detokenize(tokens, model, special))

    def render_template(self, variables: Mapping[str, Any], *, model: str = "") -> str:
        return self._run(_calls.render_template(variables, model))

    def score(self, text: Prompt, *, model: str = "", namespace: str = "", top: int = 0,
              deadline: Optional[float] = None, priority: PriorityName = "interactive") -> Scores:
        """Log-probabilities of the text's own tokens, and of the `top` best at each position."""
        return self._run(_calls.score(text, model, namespace, top, deadline, priority))

    def status(self) -> m.StatusReply:
        return self._run(_calls.status())

    def models(self) -> list[m.ModelInfo]:
        return self._run(_calls.models(m.ModelsAction.LIST))

    def load(self, name: str) -> list[m.ModelInfo]:
        return self._run(_calls.models(m.ModelsAction.LOAD, name))

    def unload(self, name: str) -> list[m.ModelInfo]:
        return self._run(_calls.models(m.ModelsAction.UNLOAD, name))

    def add_model(self, name: str, paths: Union[str, Sequence[str]], *, install: bool = False,
                  replace: bool = False) -> m.ModelInfo:
        """Hands a model's files (all parts of a split one, in order) to the daemon, which need not be able to open them:
        to be loaded, or with `install` to be copied into its models directory. Raises OSError where one cannot be opened."""
        with _calls.opened(paths) as files:
            return self._run(_calls.add_model(name, files, install, replace))

    def remove_model(self, name: str) -> None:
        """From the models directory; one that is not loaded."""
        self._run(_calls.models(m.ModelsAction.REMOVE, name))

    # ---- the cache -------------------------------------------------------------------------------------------------

    def cache_list(self, model: str, *, namespace: str = "") -> list[m.CachedPrefix]:
        """What is cached of your texts, used last first."""
        prefixes: list[m.CachedPrefix] = []
        request = m.Cache(action=m.CacheAction.LIST, model=model, namespace_=namespace)
        while True:
            reply = self._run(_calls.cache(request))
            prefixes += reply.prefixes
            if reply.next == 0:
                return sorted(prefixes, key=lambda prefix: prefix.age_s)
            request = m.Cache(action=m.CacheAction.LIST, model=model, namespace_=namespace, cursor=reply.next)

    def cache_stat(self, *, model: str = "", whose: str = "") -> m.CacheReply:
        """Its `models` and `owners`. `whose`: "all" or a uid, for administrators."""
        return self._run(_calls.cache(m.Cache(action=m.CacheAction.STAT, model=model, whose=whose)))

    def cache_pin(self, prefix: str, *, namespace: str = "") -> m.CachedPrefix:
        """Keeps a prefix (CachedPrefix.prefix) from being given up for others."""
        return self._run(_calls.cache(m.Cache(action=m.CacheAction.PIN, prefix=prefix, namespace_=namespace))).prefixes[0]

    def cache_unpin(self, prefix: str, *, namespace: str = "") -> m.CachedPrefix:
        return self._run(_calls.cache(m.Cache(action=m.CacheAction.UNPIN, prefix=prefix, namespace_=namespace))).prefixes[0]

    def cache_flush(self, *, model: str = "", namespace: str = "", pinned: bool = False, whose: str = "") -> int:
        """Gives your cached prefixes up, those that are pinned only if `pinned` says so. Returns how many bytes that frees."""
        return self._run(_calls.cache(m.Cache(action=m.CacheAction.FLUSH, model=model, namespace_=namespace, pinned=pinned,
                                 whose=whose))).bytes

    def cache_warm(self, prompt: ChatInput, *, model: str = "", namespace: str = "", pin: bool = False) -> m.Usage:
        """Computes a text, or messages, before a request needs it."""
        return self._run(_calls.cache(_calls.warm(prompt, model, namespace, pin))).usage


def _whole(stream: Stream) -> Completion:
    for _ in stream:
        pass
    return stream.completion
