#!/usr/bin/env python3
"""Shows that check.py finds what it is there to find: small trees with one fault each."""
import pathlib
import shutil
import tempfile
import unittest

import check


class Tree(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="ellm-structure-"))
        self.addCleanup(shutil.rmtree, self.root)

    def file(self, path, *lines):
        full = self.root / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text("\n".join(lines) + "\n")

    def one_problem(self, check_function, *parts):
        problems = check_function(self.root)
        self.assertEqual(len(problems), 1, problems)
        for part in parts:
            self.assertIn(part, problems[0])

    def refused(self, path, include, *parts):
        self.file(path, "// text", include)
        self.one_problem(check.check_includes, path + ":2", *parts)
        (self.root / path).unlink()

    def allowed(self, path, include):
        self.file(path, include)
        self.assertEqual(check.check_includes(self.root), [])


class Includes(Tree):
    def test_rooms(self):
        self.refused("shm/a.cc", '#include "kernels/blocks.h"', "shm/ may not include kernels/")
        self.refused("daemon/format/a.cc", '#include "daemon/model/config.h"')
        self.refused("daemon/runtime/a.h", '#include "daemon/main.h"')
        self.refused("client/a.cc", '#include "daemon/format/gguf.h"')
        self.refused("client/cli/a.cc", '#include "shm/kv_pages.h"')
        self.refused("client/cli/a.cc", '#include "client/pull/wheel.h"')
        self.refused("daemon/a.cc", '#include "client/client.h"')
        self.refused("daemon/a.cc", '#include "tests/support/x.h"', "no room")
        self.refused("daemon/a.cc", '#include "neighbour.h"', "no room")
        self.refused("kernels/a.cc", '  #  include "shm/geometry.h"')
        for path, name in [("daemon/a.cc", "daemon/serve/engine.h"), ("daemon/a.cc", "client/codec.h"),
                           ("client/cli/a.cc", "shm/geometry.h"), ("client/cli/a.cc", "client/cli/b.h"),
                           ("daemon/model/a.cc", "kernels/kernel_set.h"), ("kernels/avx2/a.cc", "kernels/panel.h"),
                           ("kernels/amx/a.cc", "kernels/avx512/level.h")]:
            self.allowed(path, f'#include "{name}"')

    def test_libraries(self):
        self.refused("daemon/serve/a.cc", "#include <boost/asio.hpp>", "may not use asio")
        self.refused("daemon/a.cc", "#include <msgpack.hpp>", "may not use msgpack")
        self.refused("daemon/model/a.h", "#include <numa.h>")
        self.refused("daemon/format/a.cc", "#include <boost/algorithm/string.hpp>", "does not know")
        self.refused("client/a.h", "#include <msgpack.hpp>", "public header")
        self.refused("client/a.h", "#include <boost/asio/io_context.hpp>", "public header")
        self.refused("kernels/a.cc", "#include <unistd.h>", "operating system")
        self.refused("kernels/avx512/a.cc", "#include <vector>", "C headers")
        self.refused("kernels/avx512/a.cc", "#include <unistd.h>", "C headers")
        for path, name in [("client/a.cc", "msgpack.hpp"), ("kernels/a.cc", "vector"), ("kernels/avx2/a.cc", "string.h"),
                           ("kernels/avx2/a.cc", "immintrin.h"), ("daemon/a.cc", "systemd/sd-daemon.h"),
                           ("shm/a.cc", "sys/mman.h"), ("client/cli/a.cc", "boost/json/value.hpp")]:
            self.allowed(path, f"#include <{name}>")

    def test_a_file_outside_of_the_rooms(self):
        self.assertIsNone(check.room_of("tests/a.cc"))
        self.assertEqual(check.room_of("daemon/model/llama.cc"), "daemon/model")
        self.assertEqual(check.room_of("daemon/main.cc"), "daemon")


class Circles(Tree):
    def test_found(self):
        self.file("shm/a.h", '#include "shm/b.h"')
        self.file("shm/b.h", '#include "shm/c.h"', '#include "shm/d.h"')
        self.file("shm/c.h", "#include <vector>")
        self.file("shm/d.h", '#include "shm/b.h"')
        self.one_problem(check.check_circles, "shm/b.h -> shm/d.h -> shm/b.h")

    def test_a_diamond_is_none(self):
        self.file("shm/a.h", '#include "shm/b.h"', '#include "shm/c.h"')
        self.file("shm/b.h", '#include "shm/d.h"')
        self.file("shm/c.h", '#include "shm/d.h"')
        self.file("shm/d.h", "")
        self.assertEqual(check.check_circles(self.root), [])


class Lengths(Tree):
    def test_lengths(self):
        self.file("daemon/a.cc", *[""] * 600)
        self.assertEqual(check.check_lengths(self.root), [])
        self.file("tests/b/c.cc", *[""] * 601)
        self.one_problem(check.check_lengths, "tests/b/c.cc: 601 lines")


class Headers(Tree):
    def problems(self):
        return check.check_headers(self.root, self.root / "objects", ["c++", "-std=c++20", f"-I{self.root}"])

    def test_alone_and_twice(self):
        self.file("shm/good.h", "#pragma once", "#include <string>", "struct Good { std::string s; };")
        self.assertEqual(self.problems(), [])
        self.file("shm/needy.h", "#pragma once", "struct Needy { std::string s; };")
        self.file("shm/unguarded.h", "struct Unguarded {};")
        names = [problem.split(" ")[0] for problem in self.problems()]
        self.assertEqual(names, ["shm/needy.h", "shm/unguarded.h"])

    def test_without_a_compiler(self):
        self.assertNotEqual(check.check_headers(self.root, self.root / "objects", []), [])


if __name__ == "__main__":
    unittest.main()
