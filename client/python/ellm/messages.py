"""The messages of the protocol (client/PROTOCOL.md): dataclasses whose fields stand in the order of the wire.

Fields are only ever appended, each with a default; a reader ignores those that it does not know."""
from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import ClassVar

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 64 << 20


class ErrorCode(enum.IntEnum):
    BAD_REQUEST = 1
    UNKNOWN_MESSAGE = 2
    UNSUPPORTED_VERSION = 3
    TOO_LARGE = 4
    BUSY = 5
    NO_SUCH_MODEL = 6
    MODEL_FAILED = 7
    TEMPLATE_FAILED = 8
    NO_SUCH_REQUEST = 9
    SHUTTING_DOWN = 10
    INTERNAL = 11
    CANCELLED = 12
    DENIED = 13                              # for administrators
    DEADLINE = 14                            # of a score; a completion ends with FinishReason.DEADLINE


class FinishReason(enum.IntEnum):
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    DEADLINE = 4


class Priority(enum.IntEnum):
    INTERACTIVE = 0
    BATCH = 1


class ModelsAction(enum.IntEnum):
    LIST = 1
    LOAD = 2
    UNLOAD = 3
    REMOVE = 4


class CacheAction(enum.IntEnum):
    LIST = 1
    STAT = 2
    PIN = 3
    UNPIN = 4
    FLUSH = 5
    WARM = 6


# ---- parts of messages ---------------------------------------------------------------------------------------------

@dataclass
class Sampling:
    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    max_tokens: int = 0                      # 0: as many as the context leaves
    stop: list[str] = field(default_factory=list)
    logit_bias: list[tuple[int, float]] = field(default_factory=list)
    logprobs: int = 0                        # alternatives per token; with want_logprobs
    want_logprobs: bool = False
    ignore_eos: bool = False


@dataclass
class ChatMessage:
    role: str = ""
    content: str = ""
    token_ids: list[int] = field(default_factory=list)      # of an answer: the ids that were generated
    extra: str = ""                          # JSON: name, tool_calls, tool_call_id …


@dataclass
class Recomputed:
    """Prompt tokens that were computed, by the reason (client/PROTOCOL.md). Names that C++ keeps for itself end in _."""
    new_: int = 0
    last_token: int = 0
    logits_needed: int = 0
    evicted: int = 0
    namespace_: int = 0
    fingerprint: int = 0
    retokenised: int = 0
    unsealed: int = 0


@dataclass
class Usage:
    prompt_tokens: int = 0
    cached_tokens: int = 0                   # that the forward pass skipped
    completion_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    recomputed: Recomputed = field(default_factory=Recomputed)
    disk_tokens: int = 0                     # of cached_tokens: read from disk


@dataclass
class Timings:
    queue_ms: float = 0.0
    ttft_ms: float = 0.0
    total_ms: float = 0.0
    prefill_tokens_per_second: float = 0.0
    decode_tokens_per_second: float = 0.0


@dataclass
class TokenLogprob:
    id: int = 0
    logprob: float = 0.0
    top: list[tuple[int, float]] = field(default_factory=list)     # best first


@dataclass
class ModelInfo:
    name: str = ""
    path: str = ""
    architecture: str = ""
    size_label: str = ""
    weight_types: str = ""
    tokenizer: str = ""
    parameters: int = 0
    file_bytes: int = 0
    resident_bytes: int = 0
    context: int = 0
    loaded: bool = False
    locked: bool = False
    chat: bool = False                       # it has a chat template
    kv_type: str = ""
    kv_pages: int = 0
    kv_pages_free: int = 0
    kv_pages_cached: int = 0                 # hold tokens and are used by no request


@dataclass
class CachedPrefix:
    """A stored text that no other stored text continues."""
    model: str = ""
    namespace_: str = ""                     # empty: your own
    prefix: str = ""                         # what it is called: 16 hexadecimal digits
    tokens: int = 0
    bytes: int = 0
    pinned: bool = False
    in_use: bool = False
    age_s: float = 0.0                       # since it was used last
    head: str = ""                           # its first tokens as text
    tail: str = ""                           # and its last


@dataclass
class CacheOwner:
    """One namespace's part of a model's cache; counts since it last had nothing."""
    model: str = ""
    owner: str = ""                          # "uid 1000", or a namespace's name
    pages: int = 0
    pinned_pages: int = 0
    used_pages: int = 0
    share_pages: int = 0                     # that others cannot take
    bytes: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    evicted_pages: int = 0


@dataclass
class CacheModel:
    model: str = ""
    page_tokens: int = 0
    page_bytes: int = 0
    pages: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    pinned_pages: int = 0
    most_pinned_pages: int = 0
    damaged_pages: int = 0


@dataclass
class RequestInfo:
    request: int = 0
    uid: int = 0
    pid: int = 0
    model: str = ""
    kind: str = ""                           # generate, chat, score, warm
    state: str = ""                          # queued, prefill, decode, preempted
    prompt_tokens: int = 0
    done_tokens: int = 0
    completion_tokens: int = 0
    age_ms: float = 0.0
    priority: Priority = Priority.INTERACTIVE
    deadline_left_ms: float = 0.0            # 0: it has none
    preemptions: int = 0                     # how often it had to make room


# ---- messages ------------------------------------------------------------------------------------------------------

@dataclass
class Message:
    TAG: ClassVar[int] = 0


@dataclass
class Hello(Message):
    TAG = 1
    version: int = PROTOCOL_VERSION
    software: str = ""
    features: list[str] = field(default_factory=list)


@dataclass
class Numbered(Message):
    """A request, or an answer to one."""
    id: int = 0


# Features of the daemon: what hello names.
MANAGE = "manage"                            # ModelsAction.REMOVE, AddModel
CACHE = "cache"                              # Cache, `namespace_`
SAMPLES = "samples"                          # `n`
DEADLINE = "deadline"                        # `deadline_ms`, `priority`


@dataclass
class Generate(Numbered):
    TAG = 2
    model: str = ""
    prompt: str = ""
    tokens: list[int] = field(default_factory=list)
    use_tokens: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    priority: Priority = Priority.INTERACTIVE
    deadline_ms: int = 0                     # from the request's arrival; 0: none
    n: int = 1                               # samples of the one prompt
    namespace_: str = ""                     # of the configuration; empty: your own


@dataclass
class Chat(Numbered):
    TAG = 3
    model: str = ""
    messages: list[ChatMessage] = field(default_factory=list)
    tools: str = ""
    variables: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    priority: Priority = Priority.INTERACTIVE
    deadline_ms: int = 0
    n: int = 1
    namespace_: str = ""                     # of the configuration; empty: your own


@dataclass
class Tokenize(Numbered):
    TAG = 4
    model: str = ""
    text: str = ""
    add_special: bool = True
    parse_special: bool = True


@dataclass
class Detokenize(Numbered):
    TAG = 5
    model: str = ""
    tokens: list[int] = field(default_factory=list)
    special: bool = False


@dataclass
class RenderTemplate(Numbered):
    TAG = 6
    model: str = ""
    variables: str = ""


@dataclass
class Score(Numbered):
    TAG = 7
    model: str = ""
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    use_tokens: bool = False
    top: int = 0
    priority: Priority = Priority.INTERACTIVE
    deadline_ms: int = 0
    namespace_: str = ""


@dataclass
class Cancel(Numbered):
    TAG = 8
    target: int = 0


@dataclass
class Status(Numbered):
    TAG = 9


@dataclass
class Models(Numbered):
    TAG = 10
    action: ModelsAction = ModelsAction.LIST
    name: str = ""


@dataclass
class HandedFile:
    path: str = ""
    bytes: int = 0


@dataclass
class AddModel(Numbered):
    """Its files travel with the frame as descriptors, one each."""
    TAG = 11
    name: str = ""
    files: list[HandedFile] = field(default_factory=list)
    install: bool = False                    # false: load it
    replace: bool = False


@dataclass
class Token(Numbered):
    """A piece of an answer: whole characters, perhaps none, and the ids behind them."""
    TAG = 32
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    sample: int = 0


@dataclass
class Done(Numbered):
    TAG = 33
    finish_reason: FinishReason = FinishReason.STOP
    model: str = ""
    seed: int = 0
    usage: Usage = field(default_factory=Usage)          # over all samples it adds up: the prompt is sample 0's
    timings: Timings = field(default_factory=Timings)
    sample: int = 0
    remaining: int = 0                       # samples that have not ended


@dataclass
class Error(Numbered):
    TAG = 34
    code: ErrorCode = ErrorCode.INTERNAL
    message: str = ""
    retry_after_ms: int = 0


@dataclass
class TokenizeReply(Numbered):
    TAG = 35
    tokens: list[int] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)


@dataclass
class TextReply(Numbered):
    TAG = 36
    text: str = ""


@dataclass
class ScoreReply(Numbered):
    TAG = 37
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    last: bool = False
    usage: Usage = field(default_factory=Usage)


@dataclass
class DiskInfo:
    bytes: int = 0
    budget_bytes: int = 0                    # 0: no prefixes are kept on disk
    pages_written: int = 0
    pages_read: int = 0
    pages_damaged: int = 0
    files_skipped: int = 0
    writing: bool = False


@dataclass
class StatusReply(Numbered):
    TAG = 38
    version: str = ""
    kernels: str = ""
    cpu: str = ""
    threads: int = 0
    pid: int = 0
    uptime_s: float = 0.0
    models: list[ModelInfo] = field(default_factory=list)
    requests: list[RequestInfo] = field(default_factory=list)
    running: int = 0
    queued: int = 0
    connections: int = 0
    served: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    warnings: list[str] = field(default_factory=list)
    cached_tokens: int = 0                   # of prompt_tokens
    admin: bool = False                      # the caller may load, unload, add and remove models
    stats_page: str = ""                     # the path of the daemon's page of totals, or empty
    disk: DiskInfo = field(default_factory=DiskInfo)


@dataclass
class ModelsReply(Numbered):
    TAG = 39
    models: list[ModelInfo] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)    # what could not be read


@dataclass
class Ok(Numbered):
    TAG = 40


@dataclass
class Cache(Numbered):
    TAG = 12
    action: CacheAction = CacheAction.LIST
    model: str = ""
    namespace_: str = ""
    prefix: str = ""
    cursor: int = 0
    whose: str = ""
    pinned: bool = False
    text: str = ""
    messages: list[ChatMessage] = field(default_factory=list)
    tools: str = ""
    variables: str = ""


@dataclass
class CacheReply(Numbered):
    TAG = 41
    prefixes: list[CachedPrefix] = field(default_factory=list)
    next: int = 0
    models: list[CacheModel] = field(default_factory=list)
    owners: list[CacheOwner] = field(default_factory=list)
    pages: int = 0
    bytes: int = 0
    usage: Usage = field(default_factory=Usage)


ALL: tuple[type[Message], ...] = (
    Hello, Generate, Chat, Tokenize, Detokenize, RenderTemplate, Score, Cancel, Status, Models, AddModel, Cache, Token, Done,
    Error, TokenizeReply, TextReply, ScoreReply, StatusReply, ModelsReply, Ok, CacheReply)
