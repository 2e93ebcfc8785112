"""`ellm pull` over TLS: whom it trusts, and with whom it shares the hub's token."""

import os
import shutil
import subprocess
import tempfile
import unittest

from file_server import File, FileServer
from pulling import MODEL, NOPERM, UNAVAILABLE, Pull


@unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
class Https(Pull):
    """A hub with a certificate of a private authority, as behind a company's proxy."""

    def setUp(self):
        super().setUp()
        self.home = tempfile.mkdtemp(prefix="ellm")
        self.addCleanup(shutil.rmtree, self.home)
        self.ca, self.certificate = self.home + "/ca.pem", self.home + "/server.pem"
        new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        self.openssl(*new, "-subj", "/CN=a private authority", "-keyout", self.home + "/ca.key", "-out", self.ca)
        self.openssl(*new, "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-CA", self.ca, "-CAkey",
                     self.home + "/ca.key", "-addext", "basicConstraints=CA:FALSE", "-keyout", self.home + "/key", "-out", self.home + "/crt")
        with open(self.certificate, "w") as both:
            for part in ("key", "crt"):
                with open(self.home + "/" + part) as file:
                    both.write(file.read())

    def openssl(self, *command):
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_authorities_of_the_environment(self):
        with FileServer({"/o/r/resolve/main/m.gguf": File(MODEL)}, certificate=self.certificate) as hub:
            env = {"HF_ENDPOINT": hub.url}
            self.fails(UNAVAILABLE, "hf:o/r/m.gguf", "--retries", "0", env=env, says=["certificate"])
            self.assertEqual(hub.requests, [])
            for i, name in enumerate(("SSL_CERT_FILE", "CURL_CA_BUNDLE")):
                self.works("hf:o/r/m.gguf", "--name", "m%d" % i, env={**env, name: self.ca})
                self.holds("m%d.gguf" % i, MODEL)
            self.openssl("openssl", "rehash", self.home)
            self.works("hf:o/r/m.gguf", "--name", "m2", env={**env, "SSL_CERT_DIR": self.home})
            self.fails(UNAVAILABLE, "hf:o/r/m.gguf", "--name", "m3", "--retries", "0", env={**env, "CURL_CA_BUNDLE": "/nowhere"})

    def test_the_token_by_tls_and_its_file(self):
        with FileServer(token="hf_secret", certificate=self.certificate) as hub, \
                FileServer({"/store": File(MODEL)}, certificate=self.certificate) as store, FileServer({"/store": File(MODEL)}) as plain:
            hub.files["/o/r/resolve/main/m.gguf"] = File(redirect=store.url + "/store")
            hub.files["/o/r/resolve/main/down.gguf"] = File(redirect=plain.url + "/store")
            env = {"HF_ENDPOINT": hub.url, "SSL_CERT_FILE": self.ca}
            self.fails(NOPERM, "hf:o/r/m.gguf", env=env, says=["401", "HF_TOKEN"])
            places = {
                ".cache/huggingface/token": {},
                "cache/huggingface/token": {"XDG_CACHE_HOME": self.home + "/cache"},
                "hf/token": {"HF_HOME": self.home + "/hf"},
                "elsewhere": {"HF_TOKEN_PATH": self.home + "/elsewhere"},
            }
            for i, (path, more) in enumerate(places.items()):
                path = self.home + "/" + path
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w") as file:
                    file.write("hf_secret\n")
                more = {**env, "HOME": self.home, **more}
                self.works("hf:o/r/m.gguf", "--name", "m%d" % i, env=more)
                self.fails(NOPERM, "hf:o/r/m.gguf", "--name", "x", env={**more, "HF_TOKEN": "another"})
                self.fails(NOPERM, "hf:o/r/m.gguf", "--name", "x", env={**more, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"})
                os.remove(path)
            self.works("hf:o/r/m.gguf", "--name", "m9", env={**env, "HF_TOKEN": " hf_secret\n"})
            self.assertEqual(set(store.asked("authorization")), {None})
            # From https to http: not at all, so that nobody on the way sees or changes what comes.
            self.fails(UNAVAILABLE, "hf:o/r/down.gguf", "--retries", "0", env={**env, "HF_TOKEN": "hf_secret"})
            self.assertEqual(plain.requests, [])


if __name__ == "__main__":
    unittest.main()
