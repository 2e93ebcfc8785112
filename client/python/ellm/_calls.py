"""What both clients share: requests from arguments, answers from replies, and which failures may be repeated."""
from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, TypeVar, Union

from . import messages as m
from .errors import Absent, Lost, ProtocolMismatch, ShuttingDown, UnsupportedVersion, from_daemon

DEFAULT_WAIT = 3.0          # seconds, for a daemon that starts or restarts
LONGEST_START = 600.0       # a daemon listens before it loads a model
ATTEMPTS = 3                # connections in a row that end between hello and the request
VERSION = "0.1.0"
SOFTWARE = "ellm-python " + VERSION

AFTER = ("ellmd closed the connection (stopped or crashed) after the request was sent: it may have run, so it is not "
         "sent again. See `journalctl -u ellmd`, or its output")
BEFORE = ("ellmd closed the connection (stopped or crashed) before the request was sent: see `journalctl -u ellmd`, or "
          "its output")


class Options(TypedDict, total=False):
    """Sampling and length, as in messages.Sampling; `logprobs` asks for the log-probabilities too."""
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    max_tokens: int
    stop: Union[str, Sequence[str]]
    logit_bias: Mapping[int, float]
    logprobs: int
    ignore_eos: bool


Prompt = Union[str, Sequence[int]]
ChatInput = Union[str, Iterable[Union[m.ChatMessage, Mapping[str, Any]]]]


@dataclass
class Completion:
    """An answer, whole."""
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[m.TokenLogprob] = field(default_factory=list)
    finish_reason: m.FinishReason = m.FinishReason.STOP
    model: str = ""
    seed: int = 0
    usage: m.Usage = field(default_factory=m.Usage)
    timings: m.Timings = field(default_factory=m.Timings)

    @property
    def message(self) -> m.ChatMessage:
        """For the next turn; with the ids, so that its prefix is found computed."""
        return m.ChatMessage("assistant", self.text, self.tokens)


@dataclass
class Scores:
    """Log-probabilities (natural logarithm) of a text's own tokens."""
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)                      # of all tokens but the first
    top: list[list[tuple[int, float]]] = field(default_factory=list)         # per position, best first
    usage: m.Usage = field(default_factory=m.Usage)

    @property
    def perplexity(self) -> float:
        return math.exp(-sum(self.log_probs) / len(self.log_probs)) if self.log_probs else math.nan


# ---- requests ------------------------------------------------------------------------------------------------------

def _sampling(options: Options) -> m.Sampling:
    given: dict[str, Any] = dict(options)
    if "logprobs" in given:
        given["want_logprobs"] = True
    if "logit_bias" in given:
        given["logit_bias"] = list(given["logit_bias"].items())
    if "stop" in given:
        given["stop"] = [given["stop"]] if isinstance(given["stop"], str) else list(given["stop"])
    return m.Sampling(**given)


def _text_or_tokens(prompt: Prompt) -> dict[str, Any]:
    if isinstance(prompt, (bytes, bytearray, memoryview)):          # numbers, too, but none that anybody means
        raise TypeError("a prompt is a str or token ids, not bytes: decode them")
    return {} if isinstance(prompt, str) else {"tokens": list(prompt), "use_tokens": True}


def generate(prompt: Prompt, model: str, options: Options) -> m.Generate:
    text = prompt if isinstance(prompt, str) else ""
    return m.Generate(model=model, prompt=text, sampling=_sampling(options), **_text_or_tokens(prompt))


def _chat_message(given: m.ChatMessage | Mapping[str, Any]) -> m.ChatMessage:
    if isinstance(given, m.ChatMessage):
        return given
    extra = {key: value for key, value in given.items() if key not in ("role", "content", "token_ids")}
    return m.ChatMessage(given["role"], given.get("content") or "", list(given.get("token_ids", ())),
                         json.dumps(extra) if extra else "")


def chat(messages: ChatInput, model: str, tools: Sequence[Any] | None, variables: Mapping[str, Any] | None,
         options: Options) -> m.Chat:
    if isinstance(messages, str):
        messages = [m.ChatMessage("user", messages)]
    return m.Chat(model=model, messages=[_chat_message(message) for message in messages],
                  tools=json.dumps(tools) if tools else "", variables=json.dumps(variables) if variables else "",
                  sampling=_sampling(options))


def score(text: Prompt, model: str, top: int) -> m.Score:
    return m.Score(model=model, text=text if isinstance(text, str) else "", top=top, **_text_or_tokens(text))


def warm(prompt: ChatInput, model: str, namespace: str, pin: bool) -> m.Cache:
    """A text is a plain text; messages go through the chat template, without what asks for an answer."""
    request = m.Cache(action=m.CacheAction.WARM, model=model, namespace_=namespace, pinned=pin)
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.messages = [_chat_message(message) for message in prompt]
        request.variables = json.dumps({"add_generation_prompt": False})
    return request


# ---- answers -------------------------------------------------------------------------------------------------------

R = TypeVar("R", bound=m.Message)


def expect(kind: type[R], message: m.Message) -> R:
    if not isinstance(message, kind):
        raise ProtocolMismatch("ellmd answered with an unexpected %s" % type(message).__name__, request_sent=True)
    return message


def add_to_completion(completion: Completion, message: m.Message) -> m.Token | None:
    """The piece; None where the message was the last."""
    if isinstance(message, m.Token):
        completion.text += message.text
        completion.tokens += message.tokens
        completion.logprobs += message.logprobs
        return message
    done = expect(m.Done, message)
    completion.finish_reason, completion.model, completion.seed = done.finish_reason, done.model, done.seed
    completion.usage, completion.timings = done.usage, done.timings
    return None


def add_to_scores(scores: Scores, message: m.Message) -> bool:
    """True where the message was the last."""
    piece = expect(m.ScoreReply, message)
    scores.tokens += piece.tokens
    scores.log_probs += piece.log_probs
    scores.top += piece.top
    scores.usage = piece.usage
    return piece.last


def is_last(message: m.Message) -> bool:
    return not isinstance(message, m.Token) and not (isinstance(message, m.ScoreReply) and not message.last)


# ---- connections ---------------------------------------------------------------------------------------------------

def raise_error(error: m.Error) -> None:
    raise from_daemon(error.code, error.message, error.retry_after_ms)


def check_hello(message: m.Message | None) -> m.Hello:
    """The daemon's first message. Raises what is wrong with it."""
    if isinstance(message, m.Error):
        failure = from_daemon(message.code, message.message, message.retry_after_ms)
        raise ProtocolMismatch(message.message) if isinstance(failure, UnsupportedVersion) else failure
    if not isinstance(message, m.Hello):
        raise ProtocolMismatch("the program at this socket did not say hello")
    if message.version != m.PROTOCOL_VERSION:
        raise ProtocolMismatch("ellmd (%s) speaks protocol version %d, this program version %d: install the same release "
                               "of both, and restart ellmd" % (message.software, message.version, m.PROTOCOL_VERSION))
    return message


def closed_at_once() -> Lost:
    return Lost("ellmd closed the connection at once: see `journalctl -u ellmd`, or its output")


def may_come(error: BaseException) -> bool:
    """Whether it is worth connecting again: no daemon yet, or one that stops."""
    return isinstance(error, (Absent, Lost, ShuttingDown))


def never_began(error: BaseException, answered_by_id: bool) -> bool:
    """Whether a request that failed so, with nothing before, can be sent again."""
    return (isinstance(error, ShuttingDown) and answered_by_id) or (isinstance(error, Lost) and not error.request_sent)
