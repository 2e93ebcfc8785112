"""What both clients share: requests from arguments, answers from replies, and which failures may be repeated."""
from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Generic, Literal, Optional, TypedDict, TypeVar, Union

from . import messages as m
from .errors import Absent, BadRequest, Lost, ProtocolMismatch, ShuttingDown, UnsupportedVersion, from_daemon

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
    """Sampling and length, as in messages.Sampling; `logprobs` asks for the log-probabilities too. `n`: samples of the one
    prompt, which is computed once. `deadline`: seconds from the request's arrival, after which it ends with what there is.
    `priority`: interactive requests go before batch requests."""
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
    namespace: str
    n: int
    deadline: Optional[float]
    priority: PriorityName


PriorityName = Literal["interactive", "batch"]
Prompt = Union[str, Sequence[int]]
ChatInput = Union[str, Iterable[Union[m.ChatMessage, Mapping[str, Any]]]]


@dataclass
class Completion:
    """An answer, whole; with `n` the first sample, and the others in `others`."""
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[m.TokenLogprob] = field(default_factory=list)
    finish_reason: m.FinishReason = m.FinishReason.STOP
    model: str = ""
    seed: int = 0
    usage: m.Usage = field(default_factory=m.Usage)
    timings: m.Timings = field(default_factory=m.Timings)
    sample: int = 0
    others: list[Completion] = field(default_factory=list)

    @property
    def samples(self) -> list[Completion]:
        """All of them. The prompt is counted in the first one's usage alone."""
        return [self, *self.others]

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

MOST_SECONDS = 0xffffffff // 1000


def _urgency(deadline: Optional[float], priority: str) -> dict[str, Any]:
    if deadline is not None and not 0 < deadline <= MOST_SECONDS:
        raise BadRequest("deadline is %r; it is a number of seconds, more than 0 and at most %d" % (deadline, MOST_SECONDS))
    if priority not in ("interactive", "batch"):
        raise BadRequest("priority is %r; it is 'interactive' or 'batch'" % (priority,))
    return {"priority": m.Priority[priority.upper()], "deadline_ms": math.ceil((deadline or 0) * 1000)}


def _options(options: Options) -> dict[str, Any]:
    """As fields of a request."""
    given: dict[str, Any] = dict(options)
    fields = {"n": given.pop("n", 1), "namespace_": given.pop("namespace", ""),
              **_urgency(given.pop("deadline", None), given.pop("priority", "interactive"))}
    if "logprobs" in given:
        given["want_logprobs"] = True
    if "logit_bias" in given:
        given["logit_bias"] = list(given["logit_bias"].items())
    if "stop" in given:
        given["stop"] = [given["stop"]] if isinstance(given["stop"], str) else list(given["stop"])
    return {"sampling": m.Sampling(**given), **fields}


def _text_or_tokens(prompt: Prompt) -> dict[str, Any]:
    if isinstance(prompt, (bytes, bytearray, memoryview)):          # numbers, too, but none that anybody means
        raise TypeError("a prompt is a str or token ids, not bytes: decode them")
    return {} if isinstance(prompt, str) else {"tokens": list(prompt), "use_tokens": True}


def generate(prompt: Prompt, model: str, options: Options) -> m.Generate:
    text = prompt if isinstance(prompt, str) else ""
    return m.Generate(model=model, prompt=text, **_options(options), **_text_or_tokens(prompt))


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
                  **_options(options))


def needs(request: m.Message) -> Iterator[tuple[str, str]]:
    """Features of the daemon without which it would not do what is asked, and what that is."""
    if getattr(request, "namespace_", ""):
        yield m.CACHE, "use a namespace"
    if getattr(request, "n", 1) != 1:
        yield m.SAMPLES, "draw several samples of a prompt"
    if getattr(request, "deadline_ms", 0) != 0:
        yield m.DEADLINE, "end a request at a deadline"
    if isinstance(request, m.AddModel):
        yield m.MANAGE, "take files from its clients"
    if isinstance(request, m.Models) and request.action == m.ModelsAction.REMOVE:
        yield m.MANAGE, "remove models"


# ---- questions: a request, and what its replies come to --------------------------------------------------------------

T = TypeVar("T")
R = TypeVar("R", bound=m.Message)


class Question(Generic[T]):
    """`add` takes reply after reply, until `is_last(reply)`; then there is an `answer`."""
    answer: T

    def __init__(self, request: m.Numbered, descriptors: Sequence[int] = ()) -> None:
        self.request, self.descriptors = request, descriptors

    def add(self, reply: m.Message) -> None:
        raise NotImplementedError


class _One(Question[T], Generic[T, R]):
    def __init__(self, request: m.Numbered, kind: type[R], pick: Callable[[R], T], descriptors: Sequence[int] = ()) -> None:
        super().__init__(request, descriptors)
        self._kind, self._pick = kind, pick

    def add(self, reply: m.Message) -> None:
        self.answer = self._pick(_expect(self._kind, reply))


class _Score(Question[Scores]):
    def __init__(self, request: m.Score) -> None:
        super().__init__(request)
        self.answer = Scores()

    def add(self, reply: m.Message) -> None:
        piece = _expect(m.ScoreReply, reply)
        self.answer.tokens += piece.tokens
        self.answer.log_probs += piece.log_probs
        self.answer.top += piece.top
        self.answer.usage = piece.usage


def tokenize(text: str, model: str, add_special: bool, parse_special: bool) -> Question[m.TokenizeReply]:
    return _One(m.Tokenize(0, model, text, add_special, parse_special), m.TokenizeReply, lambda reply: reply)


def detokenize(tokens: Sequence[int], model: str, special: bool) -> Question[str]:
    return _One(m.Detokenize(0, model, list(tokens), special), m.TextReply, lambda reply: reply.text)


def render_template(variables: Mapping[str, Any], model: str) -> Question[str]:
    return _One(m.RenderTemplate(0, model, json.dumps(variables)), m.TextReply, lambda reply: reply.text)


def score(text: Prompt, model: str, namespace: str, top: int, deadline: Optional[float],
          priority: PriorityName) -> Question[Scores]:
    return _Score(m.Score(model=model, namespace_=namespace, text=text if isinstance(text, str) else "", top=top,
                          **_urgency(deadline, priority), **_text_or_tokens(text)))


def status() -> Question[m.StatusReply]:
    return _One(m.Status(), m.StatusReply, lambda reply: reply)


def models(action: m.ModelsAction, name: str = "") -> Question[list[m.ModelInfo]]:
    return _One(m.Models(0, action, name), m.ModelsReply, lambda reply: reply.models)


def cache(request: m.Cache) -> Question[m.CacheReply]:
    return _One(request, m.CacheReply, lambda reply: reply)


@contextlib.contextmanager
def opened(paths: Union[str, Sequence[str]]) -> Iterator[list[IO[bytes]]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(open(path, "rb")) for path in ([paths] if isinstance(paths, str) else paths)]


def add_model(name: str, files: list[IO[bytes]], install: bool, replace: bool) -> Question[m.ModelInfo]:
    handed = [m.HandedFile(str(file.name), os.fstat(file.fileno()).st_size) for file in files]
    return _One(m.AddModel(0, name, handed, install or replace, replace), m.ModelsReply, lambda reply: reply.models[0],
                [file.fileno() for file in files])


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

def _expect(kind: type[R], message: m.Message) -> R:
    if not isinstance(message, kind):
        raise ProtocolMismatch("ellmd answered with an unexpected %s" % type(message).__name__, request_sent=True)
    return message


def _sample(completion: Completion, index: int) -> Completion:
    while index > len(completion.others):
        completion.others.append(Completion(sample=len(completion.others) + 1))
    return completion.samples[index]


def add_to_completion(completion: Completion, message: m.Message) -> Optional[m.Token]:
    """The piece; None where the message is the end of a sample."""
    if isinstance(message, m.Token):
        sample = _sample(completion, message.sample)
        sample.text += message.text
        sample.tokens += message.tokens
        sample.logprobs += message.logprobs
        return message
    done = _expect(m.Done, message)
    sample = _sample(completion, done.sample)
    sample.finish_reason, sample.model, sample.seed = done.finish_reason, done.model, done.seed
    sample.usage, sample.timings = done.usage, done.timings
    return None


def is_last(message: m.Message) -> bool:
    if isinstance(message, m.Done):
        return message.remaining == 0
    return not isinstance(message, m.Token) and not (isinstance(message, m.ScoreReply) and not message.last)


# ---- connections ---------------------------------------------------------------------------------------------------

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
