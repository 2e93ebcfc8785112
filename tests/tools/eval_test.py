"""eval_test.py ELLM_EVAL: its exit codes are those of `ellm`, and what is wrong is one line."""
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)


class Eval(unittest.TestCase):
    def fails(self, code, message, *arguments):
        done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertRegex(done.stderr, r"\Aellm-eval: .*%s.*\n\Z" % message)

    def test_a_model_that_is_not_there(self):
        self.fails(66, "there is no model 'no-such-model'", "kv", "no-such-model")

    def test_a_file_that_is_no_model(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            self.fails(65, "", "kv", file.name)


if __name__ == "__main__":
    unittest.main()
