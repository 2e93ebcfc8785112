"""What the tests of the `ellm` program share: a fake daemon for each class (tests/client/fake_ellmd.cc) and the environment
that leads to it."""
import os
import subprocess
import tempfile
import unittest


class WithFakeDaemon(unittest.TestCase):
    FAKE = None                                             # the program; set by whoever runs the tests
    LOCALE = "C"

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="ellm-cli-")
        cls.socket = cls.directory.name + "/ellmd.sock"
        cls.daemon = subprocess.Popen([cls.FAKE, cls.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert cls.daemon.stdout.readline() == b"ready\n"

    @classmethod
    def tearDownClass(cls):
        cls.daemon.communicate()
        cls.directory.cleanup()

    def environment(self, **more):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ELLM_", "XDG_")) and k != "NO_COLOR"}
        return {**kept, "ELLM_SOCKET": self.socket, "HOME": self.directory.name, "LC_ALL": self.LOCALE, "TERM": "xterm", **more}
