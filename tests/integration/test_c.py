"""libellm against the built daemon: the example in C, as the build made it, and compiled anew against an installed tree."""
import json
import os
import subprocess
import tempfile
import unittest

from harness import DATA, STORIES, needs_model, running

EXAMPLE = os.environ.get("ELLM_EXAMPLE_C", "../../build/release/bin/example-c")
BUILD = os.environ.get("ELLM_BUILD", "../../build/release")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SANITIZED = os.environ.get("ELLM_SANITIZE")


@needs_model
class Example(unittest.TestCase):
    def check(self, program, **environment):
        """What it prints is the reference text, in both ways of streaming."""
        with open(os.path.join(DATA, "reference/greedy_stories260K.json")) as file:
            text = next(run["text"] for run in json.load(file)["runs"] if run["model"] == "stories260K" and run["prompt"] == "I")
        with running(models={"stories": STORIES}, options=["--model", "stories"]) as daemon:
            done = subprocess.run([program, "I"], env={**os.environ, **environment, "ELLM_SOCKET": daemon.socket},
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            head, _, rest = done.stdout.partition("pieces: ")
            callback = head[len("callback: "):].rsplit("\n", 2)[0]
            self.assertGreater(len(callback), 40)
            self.assertTrue(text.startswith(callback.strip()), (text, callback))
            self.assertTrue(rest.startswith(callback + "\nnot cancelled\n"), rest)
            self.assertIn("\ncancelled\n", rest)
            self.assertIn("\nback: I\n", rest)
            self.assertIn("24 tokens of stories", done.stdout)
            self.assertRegex(rest, r"warmed 2 tokens\npinned: \d+ tokens of stories, \"")
            self.assertIn("model stories (llama), loaded", rest)
            daemon.wait_idle()

    def test_as_built(self):
        self.check(EXAMPLE)

    def test_without_a_daemon(self):
        done = subprocess.run([EXAMPLE], env={**os.environ, "ELLM_SOCKET": "/nowhere/s"}, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("connect: no ellmd at /nowhere/s", done.stderr)
        self.assertIn("(absent)", done.stderr)

    @unittest.skipIf(SANITIZED, "a sanitizer's library needs its program")
    def test_installed(self):
        with tempfile.TemporaryDirectory(prefix="ellm") as prefix:
            subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix, "--component", "library"], check=True,
                           stdout=subprocess.DEVNULL)
            libraries = [os.path.join(folder, name) for folder, _, names in os.walk(prefix) for name in names]
            pkgconfig = os.path.dirname(next(path for path in libraries if path.endswith("/ellm.pc")))
            library = os.path.dirname(pkgconfig)
            self.assertTrue(os.path.islink(library + "/libellm.so"))
            self.assertTrue(os.path.islink(library + "/libellm.so.1"))
            # The file names the prefix that was configured.
            flags = subprocess.run(["pkg-config", "--define-variable=prefix=" + prefix, "--cflags", "--libs", "ellm"],
                                   env={**os.environ, "PKG_CONFIG_PATH": pkgconfig}, capture_output=True, text=True, check=True)
            source = os.path.join(ROOT, "client/examples/complete.c")
            command = ["cc", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", source, "-o", prefix + "/complete"]
            subprocess.run(command + flags.stdout.split(), check=True)
            self.check(prefix + "/complete", LD_LIBRARY_PATH=library)


if __name__ == "__main__":
    unittest.main()
