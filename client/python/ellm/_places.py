"""Where the daemon is, and what a failed connect means."""
from __future__ import annotations

import errno
import os

from .errors import Absent, ConnectionFailed, Denied

_HOW_TO_START = ": start it with `ellmd` or `systemctl start ellmd`, or name another socket with $ELLM_SOCKET"


def default_socket_path() -> str:
    """$ELLM_SOCKET, else the first that exists of $XDG_RUNTIME_DIR/ellm/ellmd.sock and /run/ellm/ellmd.sock."""
    named = os.environ.get("ELLM_SOCKET")
    if named:
        return named
    system = "/run/ellm/ellmd.sock"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        own = runtime + "/ellm/ellmd.sock"
        if os.path.exists(own) or not os.path.exists(system):
            return own
    return system


def connect_error(path: str, error: OSError) -> ConnectionFailed:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Absent("no ellmd at " + path + _HOW_TO_START)
    if error.errno == errno.ECONNREFUSED:
        return Absent("no ellmd answers at " + path + " (the socket of one that ended)" + _HOW_TO_START)
    if error.errno in (errno.EACCES, errno.EPERM):
        return Denied("no permission to connect to %s: an administrator can add you to its group (`ls -l %s`)"
                      % (path, path))
    return ConnectionFailed("cannot connect to %s: %s" % (path, error.strerror or error))
