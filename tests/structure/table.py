"""The include table of HACKING.md as data. Change both together, and say why in the commit."""

# Rooms, by the longest path that fits. A room's own headers are always allowed to it.
# "rooms": whose headers; a path with a suffix means that one header. "libraries": keys of LIBRARIES.
ROOMS = {
    "kernels": dict(rooms=["kernels/lanes", "kernels/scalar", "kernels/avx2", "kernels/avx512", "kernels/amx"],
                    libraries=["intrinsics"]),
    "kernels/lanes": dict(rooms=["kernels"], libraries=["intrinsics"], c_only=True),
    "kernels/scalar": dict(rooms=["kernels", "kernels/lanes"], libraries=[], c_only=True),
    "kernels/avx2": dict(rooms=["kernels", "kernels/lanes", "kernels/scalar"], libraries=["intrinsics"], c_only=True),
    "kernels/avx512": dict(rooms=["kernels", "kernels/lanes", "kernels/scalar"], libraries=["intrinsics"], c_only=True),
    "kernels/amx": dict(rooms=["kernels", "kernels/lanes", "kernels/scalar", "kernels/avx512"], libraries=["intrinsics"], c_only=True),
    "shm": dict(rooms=[], libraries=["interprocess", "intrusive", "xxhash"]),
    "client": dict(rooms=[], libraries=["msgpack", "asio"]),
    "client/c_abi": dict(rooms=["client"], libraries=[]),
    "client/examples": dict(rooms=[], libraries=["ellm"]),
    "client/describe": dict(rooms=[], libraries=["cli11", "json"]),
    "client/cli": dict(rooms=["client", "client/describe", "daemon/format", "daemon/model/survey.h", "shm/geometry.h"], libraries=["cli11", "json", "libedit"]),
    "client/pull": dict(rooms=["client", "client/describe", "daemon/format"],
                        libraries=["cli11", "json", "curl", "archive", "crypto"]),
    "daemon/runtime": dict(rooms=[], libraries=["numa", "intrinsics"]),
    "daemon/format": dict(rooms=[], libraries=["pcre2", "utf8proc", "json"]),
    "daemon/model": dict(rooms=["daemon/format", "daemon/runtime", "kernels", "shm"], libraries=["xxhash"]),
    "daemon/serve": dict(rooms=["daemon/model", "daemon/runtime", "shm"], libraries=[]),
    "daemon": dict(rooms=["daemon/runtime", "daemon/format", "daemon/model", "daemon/serve", "shm", "kernels",
                          "client/messages.h", "client/codec.h", "client/places.h", "client/utf8.h", "client/stats_page.h",
                          "client/describe"],
                   libraries=["asio", "beast", "cli11", "json", "prometheus", "systemd", "tomlplusplus"]),
    "tools": dict(rooms=["client", "client/describe", "shm", "kernels", "daemon/format", "daemon/runtime", "daemon/model", "daemon/serve"],
                  libraries=["cli11", "json", "benchmark", "intrinsics", "curl"]),
}

# The include files of each library: an exact name, or a folder with its slash.
LIBRARIES = {
    "intrinsics": ["immintrin.h", "cpuid.h"],
    "interprocess": ["boost/interprocess/"],
    "intrusive": ["boost/intrusive/"],
    "xxhash": ["xxhash.h"],
    "ellm": ["ellm.h"],
    "msgpack": ["msgpack.hpp", "msgpack/"],
    "asio": ["boost/asio.hpp", "boost/asio/", "boost/system/"],
    "beast": ["boost/beast/"],
    "prometheus": ["prometheus/"],
    "json": ["boost/json.hpp", "boost/json/", "boost/system/"],
    "cli11": ["CLI/"],
    "libedit": ["histedit.h"],
    "curl": ["curl/"],
    "archive": ["archive.h", "archive_entry.h"],
    "crypto": ["openssl/"],
    "numa": ["numa.h", "numaif.h"],
    "pcre2": ["pcre2.h"],
    "utf8proc": ["utf8proc.h"],
    "systemd": ["systemd/"],
    "tomlplusplus": ["toml++/"],
    "benchmark": ["benchmark/"],
}

# What the C library and the kernel offer; C++ headers have neither suffix nor slash.
C_HEADERS = {
    "assert.h", "errno.h", "float.h", "inttypes.h", "limits.h", "locale.h", "math.h", "stdalign.h", "stdarg.h", "stdbool.h",
    "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h", "time.h",
}
C_HEADERS_IN_CXX = {"cassert", "cerrno", "cfloat", "cinttypes", "climits", "cstdarg", "cstddef", "cstdint", "cstring"}
TYPES_ONLY = {"type_traits", "utility"}   # C++ headers whose use in a level emits nothing
SYSTEM_HEADERS = {
    "arpa/inet.h", "dirent.h", "dlfcn.h", "fcntl.h", "getopt.h", "glob.h", "grp.h", "langinfo.h", "malloc.h", "netdb.h",
    "poll.h", "pthread.h", "pwd.h", "sched.h", "semaphore.h", "signal.h", "spawn.h", "strings.h", "sysexits.h", "syslog.h",
    "termios.h", "ucontext.h", "unistd.h", "wchar.h", "wordexp.h",
}
SYSTEM_FOLDERS = ("sys/", "linux/", "netinet/", "asm/")

# Headers that other programs compile against: nothing of the implementation's libraries may show in them.
PUBLIC_HEADER_ROOMS = {"client": ["msgpack", "asio"]}

# (file, include): why it is allowed all the same.
EXCEPTIONS = {
    ("kernels/avx512/intrinsics.h", "tests/kernels/emulated_avx512.h"):
        "the level compiled over an emulation of its intrinsics, by the tests only",
    ("kernels/amx/intrinsics.h", "tests/kernels/emulated_amx.h"): "the same",
    ("kernels/amx/intrinsics.h", "tests/kernels/emulated_avx512.h"): "the same",
    ("tools/bench/peer/depth_bench.cc", "llama.h"): "a program of the peer's, built by hand against its headers",
    ("tools/bench/peer/depth_bench.cc", "ggml-backend.h"): "the same",
}

# Headers that are pieces of something and not meant to be compiled alone: why.
NOT_ALONE = {}

MAX_LINES = 600
LONG_FILES = {}   # path: why it is longer
