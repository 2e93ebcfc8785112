"""What a fork leaves in the child: connections that are its parent's, whose reader does not run there. Such a connection counts
as lost, without a word to the daemon; the next call opens another one, and what was in flight belongs to the parent."""
import os
import weakref
from typing import Any, Protocol

FORKED = "the process was forked: what was in flight is its parent's"


class Watched(Protocol):
    def after_fork(self) -> None: ...


_watched: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()   # whose after_fork is called; the process


def watch(thing: Watched) -> None:
    _watched[thing] = os.getpid()


def is_child(thing: Watched) -> bool:
    """Another process made it."""
    return _watched.get(thing) != os.getpid()


def _after_fork() -> None:
    for thing in list(_watched):
        thing.after_fork()


os.register_at_fork(after_in_child=_after_fork)
