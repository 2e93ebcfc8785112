"""Starts the built ellmd on a private socket with a private models directory, and ends it."""
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from protocol import Connection

ELLMD = os.environ.get("ELLMD", "build/release/bin/ellmd")
DATA = os.environ.get("ELLM_TEST_DATA")
STORIES = os.path.join(DATA, "models/stories260K.gguf") if DATA else None
needs_model = unittest.skipUnless(DATA, "ELLM_TEST_DATA is unset")


def find_real_model(*names):
    """The file of the first of these models that is there; None without one."""
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for name in names:
        for folder in (os.environ.get("ELLM_TEST_MODELS"), data + "/ellm/models", cache + "/ellm-test/models"):
            path = "%s/%s.gguf" % (folder, name)
            if folder and os.path.exists(path):
                return path
    return None


def environment(directory):
    kept = {key: value for key, value in os.environ.items() if key.startswith(("ASAN", "TSAN", "UBSAN", "LSAN", "PATH"))}
    return {**kept, "HOME": directory, "XDG_RUNTIME_DIR": directory}


def allow_core():
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class Daemon:
    """`models`: name -> file, linked into the models directory. `config`: TOML text. `keep`: prefixes outlive it. `user`:
    a uid that it runs as, with a directory of its own; root's to ask. `core`: it may leave one in its directory."""

    def __init__(self, models=None, config="", options=(), directory=None, wait=True, keep=False, variables=None, user=None,
                 core=False):
        self.directory = directory or tempfile.mkdtemp(prefix="ellm")
        self.keep = directory is not None
        self.models_dir = os.path.join(self.directory, "models")
        os.makedirs(self.models_dir, exist_ok=True)
        for name, path in (models or {}).items():
            link = os.path.join(self.models_dir, name + ".gguf")
            if not os.path.lexists(link):
                os.symlink(path, link)
        self.config = os.path.join(self.directory, "ellmd.toml")
        with open(self.config, "w") as file:
            file.write('models_dir = "%s"\n' % self.models_dir + config)
        self.socket = os.path.join(self.directory, "s")
        self.log = open(os.path.join(self.directory, "log"), "a+")
        command = [ELLMD, "--config", self.config, "--socket", self.socket, "--threads", "2", *options]
        if not keep:
            command += ["--kv-keep", "off", "--memory-keep", "off"]      # nothing stays in /dev/shm
        if user is not None:
            command[0] = shutil.copy(ELLMD, self.directory)   # where it was built others may not look
            for path in (self.directory, self.models_dir):
                os.chown(path, user, user)
        self.process = subprocess.Popen(command, stderr=self.log, env={**environment(self.directory), **(variables or {})},
                                        cwd=self.directory if core else None,
                                        preexec_fn=allow_core if core else None,
                                        user=user, group=user, extra_groups=None if user is None else [])
        if wait:
            self.wait_ready()

    def wait_ready(self):
        deadline = time.monotonic() + 60
        while True:
            try:
                return self.connect().close()
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError("ellmd did not start:\n" + self.output())
                time.sleep(0.01)

    def connect(self, **options):
        return Connection(self.socket, **options)

    def output(self):
        self.log.flush()
        with open(self.log.name) as file:
            return file.read()

    def wait_idle(self):
        """Nothing runs or waits, and no KV page is in use."""
        deadline = time.monotonic() + 20
        with self.connect() as connection:
            while True:
                status = connection.status()
                idle = status["running"] == 0 and status["queued"] == 0
                if idle and all(model["kv_pages"] == model["kv_pages_free"] + model["kv_pages_cached"] for model in status["models"]):
                    return status
                assert time.monotonic() < deadline, status
                time.sleep(0.005)

    def address_space(self):
        """Bytes."""
        with open("/proc/%d/statm" % self.process.pid) as file:
            return int(file.read().split()[0]) * 4096

    def is_sanitized(self):
        """Whether it was built with a sanitizer, which reserves terabytes of addresses."""
        return self.address_space() > 1 << 40

    def discard(self):
        """Of a daemon that has ended otherwise."""
        self.log.close()
        shutil.rmtree(self.directory)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(20)
        finally:
            self.process.kill()
            output = self.output()
            self.log.close()
            if not self.keep:
                shutil.rmtree(self.directory)
        assert code == 0, "ellmd ended with %d:\n%s" % (code, output)


class OneDaemon(unittest.TestCase):
    """All tests of a class call one daemon, which serves stories260K."""

    OPTIONS = ()

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(models={"stories": STORIES}, options=["--model", "stories", *cls.OPTIONS])

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()


class running:
    """A daemon of its own for one test."""
    def __init__(self, **options):
        self.options = options

    def __enter__(self):
        self.daemon = Daemon(**self.options)
        return self.daemon

    def __exit__(self, *_):
        self.daemon.stop()


def run(*options, directory=None, config=None, timeout=30):
    """A run of ellmd that is expected to end by itself: exit code, stdout, stderr."""
    with tempfile.TemporaryDirectory(prefix="ellm") as own:
        directory = directory or own
        command = [ELLMD, *options]
        if config is not None:
            path = os.path.join(directory, "given.toml")
            with open(path, "w") as file:
                file.write(config)
            command += ["--config", path]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(directory), timeout=timeout)
        return done.returncode, done.stdout, done.stderr
