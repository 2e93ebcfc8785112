"""Who is asked: ellmd through the package ellm, or any endpoint with OpenAI's API over HTTP with server-sent events. A
target's ask() yields the number of tokens of every piece of an answer as it arrives, then a Usage."""
from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import urllib.parse
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Optional, Union

from plan import Request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../client/python"))
import ellm                                             # noqa: E402


@dataclass
class Usage:
    prompt: int = 0
    cached: int = 0
    output: int = 0


class Refused(Exception):
    """The server's answer is an error; `busy`: it has too much to do."""

    def __init__(self, message: str, busy: bool = False) -> None:
        super().__init__(message)
        self.busy = busy


Pieces = AsyncIterator[Union[int, Usage]]


class Ellmd:
    """One connection for all requests of a user; one of its own for a request whose client disconnects."""

    def __init__(self, socket: Optional[str], model: str, chat: bool, temperature: float, ignore_eos: bool) -> None:
        self.socket, self.model, self.chat = socket, model, chat
        self.options = {"temperature": temperature, "ignore_eos": ignore_eos}
        self.shared = ellm.AsyncClient(socket)

    async def ask(self, request: Request) -> Pieces:
        client = ellm.AsyncClient(self.socket) if request.fate == "disconnect" else self.shared
        call = client.chat_stream if self.chat else client.generate_stream
        stream = call(request.prompt, model=self.model, max_tokens=request.max_tokens, seed=request.seed, **self.options)
        try:
            async with aclosing(stream.__aiter__()) as pieces:   # leaving it cancels the request
                async for token in pieces:
                    if token.tokens:
                        yield len(token.tokens)
            usage = stream.completion.usage
            yield Usage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        except ellm.Error as error:
            raise Refused(str(error), isinstance(error, ellm.Busy)) from None
        finally:
            if client is not self.shared:
                await client.close()

    async def close(self) -> None:
        await self.shared.close()


class OpenAi:
    """A connection per request. A cancel and a disconnect are the same here: the connection is closed."""

    def __init__(self, url: str, model: str, chat: bool, temperature: float, ignore_eos: bool) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("'%s' is no URL such as http://127.0.0.1:8080/v1" % url)
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.host, self.port = parts.hostname, parts.port or (443 if self.tls else 80)
        self.path = parts.path.rstrip("/") + ("/chat/completions" if chat else "/completions")
        self.chat = chat
        self.body: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "temperature": temperature}
        if model:
            self.body["model"] = model
        if ignore_eos:
            self.body["ignore_eos"] = True
        self.key = os.environ.get("OPENAI_API_KEY", "")

    async def ask(self, request: Request) -> Pieces:
        prompt = {"messages": [{"role": "user", "content": request.prompt}]} if self.chat else {"prompt": request.prompt}
        body = json.dumps({**self.body, **prompt, "max_tokens": request.max_tokens, "seed": request.seed}).encode()
        head = ["POST %s HTTP/1.1" % self.path, "Host: %s:%d" % (self.host, self.port), "Content-Type: application/json",
                "Accept: text/event-stream", "Content-Length: %d" % len(body), "Connection: close"]
        if self.key:
            head.append("Authorization: Bearer " + self.key)
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self.tls, limit=1 << 24)
        try:
            writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
            await writer.drain()
            usage = Usage()
            async for event in self._events(reader):
                if "error" in event:
                    raise Refused(json.dumps(event["error"]))
                usage = self._usage(event, usage)
                for choice in event.get("choices", []):
                    delta = choice.get("delta", {})
                    if choice.get("text") or delta.get("content") or delta.get("reasoning_content"):
                        usage.output += 1               # where the server says nothing else
                        yield 1
            yield usage
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            raise Refused("%s: %s" % (type(error).__name__, error)) from None
        finally:
            writer.transport.abort()

    @staticmethod
    def _usage(event: dict[str, Any], before: Usage) -> Usage:
        given = event.get("usage")
        if not given:
            return before
        cached = (given.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return Usage(given.get("prompt_tokens", 0), cached, given.get("completion_tokens", before.output))

    async def _events(self, reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
        status = int((await reader.readline() or b"HTTP/1.1 0").split()[1])
        headers: dict[str, str] = {}
        while (line := (await reader.readline()).strip()):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip().lower()
        chunked = headers.get("transfer-encoding") == "chunked"
        if status != 200:
            text = b"".join([piece async for piece in _pieces(reader, chunked)])[:300]
            raise Refused("status %d: %s" % (status, text.decode(errors="replace")), status in (429, 503))
        rest = b""
        async for piece in _pieces(reader, chunked):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    yield json.loads(data)
        if rest.strip():
            raise Refused("the answer ended in the middle of an event")

    async def close(self) -> None:
        pass


async def _pieces(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    """A body as it arrives, without the frame of chunks."""
    while True:
        if not chunked:
            piece = await reader.read(1 << 16)
        elif (size := int((await reader.readline()).split(b";")[0], 16)) > 0:
            piece = await reader.readexactly(size)
            await reader.readline()
        else:
            piece = b""
        if not piece:
            return
        yield piece
