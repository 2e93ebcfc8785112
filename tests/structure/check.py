#!/usr/bin/env python3
"""check.py [--root DIR] includes|circles|lengths|headers: fails, naming file and line, where the source tree has not the
shape that HACKING.md states (as data in table.py).

headers compiles every header alone, and twice in one translation unit, with the command given after `--`."""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

import table

SOURCE_ROOTS = ["client", "daemon", "kernels", "shm", "tools"]
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
LEVEL_FLAGS = {
    "kernels/avx2": ["-mavx2", "-mfma", "-mf16c"],
    "kernels/avx512": ["-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"],
}
LEVEL_FLAGS["kernels/amx"] = LEVEL_FLAGS["kernels/avx512"] + ["-mamx-tile", "-mamx-int8"]


def files_under(root, folders, suffixes):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path.relative_to(root).as_posix()


def room_of(path):
    """The room with the longest path that holds the file; None outside of all."""
    fitting = [room for room in table.ROOMS if path.startswith(room + "/")]
    return max(fitting, key=len, default=None)


def includes_of(root, path):
    """(line number, name, whether quoted) of every include line, conditional ones too."""
    text = (root / path).read_text(encoding="utf-8")
    for number, line in enumerate(text.split("\n"), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) or match.group(2), match.group(1) is not None


def library_of(name):
    for library, places in table.LIBRARIES.items():
        if any(name == place or (place.endswith("/") and name.startswith(place)) for place in places):
            yield library


def refusal_inside(path, name):
    """Why `path` may not include the project's header `name`; None if it may."""
    room, target = room_of(path), room_of(name)
    if (path, name) in table.EXCEPTIONS:
        return None
    if target is None:
        return "no room of the include table holds it (paths start at the repository's root)"
    rules = table.ROOMS[room]
    if target == room or target in rules["rooms"] or name in rules["rooms"]:
        return None
    return f"{room}/ may not include {target}/"


def refusal_outside(path, name):
    """Why `path` may not include <name>."""
    room = room_of(path)
    rules = table.ROOMS[room]
    if name in table.C_HEADERS | table.C_HEADERS_IN_CXX | table.TYPES_ONLY:
        return None
    libraries = list(library_of(name))
    if libraries:
        allowed = [library for library in libraries if library in rules["libraries"]]
        hidden = table.PUBLIC_HEADER_ROOMS.get(room, []) if path.endswith(".h") else []
        if any(library not in hidden for library in allowed):
            return None
        return f"a public header shows {libraries[0]}" if allowed else f"{room}/ may not use {libraries[0]}"
    if rules.get("c_only"):
        return "a level's objects include C headers and intrinsics only (weak symbols of the standard library)"
    if name in table.SYSTEM_HEADERS or name.startswith(table.SYSTEM_FOLDERS):
        return None if room != "kernels" else "kernels/ knows no operating system"
    if "/" not in name and "." not in name:
        return None   # the C++ standard library
    return "a library that the include table does not know"


def check_includes(root):
    problems = []
    for path in files_under(root, SOURCE_ROOTS, {".h", ".cc", ".inc", ".c"}):
        if room_of(path) is None:
            problems.append(f"{path}: stands in no room of the include table")
            continue
        for line, name, quoted in includes_of(root, path):
            why = refusal_inside(path, name) if quoted else refusal_outside(path, name)
            if why:
                problems.append(f"{path}:{line}: includes {name}: {why}")
    return problems


def check_circles(root):
    graph = {path: [name for _, name, quoted in includes_of(root, path) if quoted]
             for path in files_under(root, SOURCE_ROOTS, {".h", ".inc"})}
    problems, done = [], set()

    def visit(path, trail):
        if path in trail:
            problems.append("a circle: " + " -> ".join(trail[trail.index(path):] + [path]))
        elif path not in done and path in graph:
            for name in graph[path]:
                visit(name, trail + [path])
            done.add(path)

    for path in graph:
        visit(path, [])
    return problems


def check_lengths(root):
    problems = []
    for path in files_under(root, SOURCE_ROOTS + ["tests", "cmake"], {".h", ".cc", ".c", ".inc", ".py", ".sh", ".cmake"}):
        lines = (root / path).read_bytes().count(b"\n")
        if lines > table.MAX_LINES and path not in table.LONG_FILES:
            problems.append(f"{path}: {lines} lines, at most {table.MAX_LINES}: cut it where it does two things")
    return problems


def compile_alone(root, header, objects, command):
    flags = next((flags for room, flags in LEVEL_FLAGS.items() if header.startswith(room + "/")), [])
    stem = header.replace("/", "__")
    source, out = objects / (stem + ".cc"), objects / (stem + ".o")
    text = f'#include "{header}"\n#include "{header}"\n'
    if not source.exists() or source.read_text() != text:
        source.write_text(text)
    # An object and not -fsyntax-only: compiler caches keep objects.
    run = subprocess.run(command + flags + ["-Wno-unused-function", "-O0", "-c", str(source), "-o", str(out)],
                         cwd=root, capture_output=True, text=True)
    return f"{header} does not compile alone:\n{run.stderr}" if run.returncode else None


def check_headers(root, objects, command):
    if not command:
        return ["headers: no compiler given after --"]
    objects = pathlib.Path(objects)
    objects.mkdir(parents=True, exist_ok=True)
    headers = [path for path in files_under(root, SOURCE_ROOTS, {".h"}) if path not in table.NOT_ALONE]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = pool.map(lambda header: compile_alone(root, header, objects, command), headers)
    return [problem for problem in results if problem]


def main():
    arguments, command = sys.argv[1:], []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, command = arguments[:cut], arguments[cut + 1:]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parents[2], type=pathlib.Path)
    parser.add_argument("--objects", default="build/headers", help="where to put what headers compiles")
    parser.add_argument("what", choices=["includes", "circles", "lengths", "headers"])
    options = parser.parse_args(arguments)
    if options.what == "headers":
        problems = check_headers(options.root, options.objects, command)
    else:
        check = {"includes": check_includes, "circles": check_circles, "lengths": check_lengths}[options.what]
        problems = check(options.root)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
