"""An HTTP server that serves files from memory: with ranges, validators and redirects as RFC 9110 has them, and with
every fault that a test asks for. It writes down what it was asked."""
import http.server
import ssl
import threading
import time
import urllib.parse


class File:
    """`cuts`: after how many bytes of the body the connection breaks, one for each answer; then none. `pace`: seconds
    between pieces of 64 KiB. `statuses`: answers before the file is served. `declared`: the length that it claims."""

    def __init__(self, data=b"", etag=None, modified=None, ranges=True, length=True, cuts=(), pace=0.0, statuses=(),
                 redirect=None, headers=(), declared=None):
        self.data, self.etag, self.modified, self.ranges, self.length = data, etag, modified, ranges, length
        self.cuts, self.pace, self.statuses = list(cuts), pace, list(statuses)
        self.redirect, self.headers, self.declared = redirect, dict(headers), declared


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        server = self.server.owner
        path = urllib.parse.unquote(self.path.partition("?")[0])
        server.requests.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        file = server.files.get(path)
        if file is None:
            return self.status_only(404)
        if body and file.statuses:
            return self.status_only(file.statuses.pop(0))
        if server.token and self.headers.get("Authorization") != "Bearer " + server.token:
            return self.status_only(401)
        if file.redirect:
            self.send_response(302)
            self.send_header("Location", file.redirect)
            for name, value in file.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_file(file, body)

    def status_only(self, status):
        page = b"<html>status %d</html>" % status
        self.send_response(status)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page)

    def send_file(self, file, body):
        first, wanted, total = 0, self.headers.get("Range"), file.declared or len(file.data)
        condition = self.headers.get("If-Range")
        if condition is not None and condition not in (file.etag, file.modified):
            wanted = None
        if wanted and file.ranges:
            first = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if first >= total > 0:
            self.send_response(416)
            self.send_header("Content-Range", "bytes */%d" % total)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_response(206 if wanted and file.ranges else 200)
        if wanted and file.ranges:
            self.send_header("Content-Range", "bytes %d-%d/%d" % (first, total - 1, total))
        if file.etag:
            self.send_header("ETag", file.etag)
        if file.modified:
            self.send_header("Last-Modified", file.modified)
        for name, value in file.headers.items():
            self.send_header(name, value)
        if file.length:
            self.send_header("Content-Length", str(total - first))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        if body:
            self.send_body(file, file.data[first:])

    def send_body(self, file, data):
        cut = file.cuts.pop(0) if file.cuts else None
        self.close_connection = cut is not None or not file.length or file.declared is not None
        data = data if cut is None else data[:cut]
        try:
            for at in range(0, len(data), 1 << 16):
                self.wfile.write(data[at:at + (1 << 16)])
                self.server.owner.sent += len(data[at:at + (1 << 16)])
                time.sleep(file.pace)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """A client that leaves is part of the game."""


class FileServer:
    """`certificate`: a file with key and certificate; it speaks TLS then."""
    def __init__(self, files=None, token=None, certificate=None):
        self.files, self.token = dict(files or {}), token
        self.requests, self.sent = [], 0
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.owner = self
        self.port = self.server.server_address[1]
        self.url = "%s://127.0.0.1:%d" % ("https" if certificate else "http", self.port)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            # The handshake belongs to the connection's own thread, not to the one that accepts.
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def asked(self, header):
        """The header of every request so far, None where it was absent."""
        return [headers.get(header) for _, _, headers in self.requests]
