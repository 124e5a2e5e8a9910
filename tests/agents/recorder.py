"""What an agent sends and gets: it talks to a recorder, which passes everything on to the server as it comes."""

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Of one connection, not of the message.
OWN = ("connection", "content-length", "host", "transfer-encoding")


class Exchange:
    """A request and its reply."""

    def __init__(self, handler, body):
        self.method, self.path, self.headers = handler.command, handler.path, dict(handler.headers)
        self.body = json.loads(body) if body else None
        self.status, self.reply = None, b""

    def __repr__(self):
        said = self.reply.decode("utf-8", "replace")
        return f"{self.method} {self.path} {self.status}: {said[:300]}"


class Recorder:
    def __init__(self, port):
        """Passes on to this port of the loopback."""
        self.exchanges = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def pass_on(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                exchange = Exchange(self, body)
                recorder.exchanges.append(exchange)
                server = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
                server.request(self.command, self.path, body or None, kept(self.headers.items()))
                reply = server.getresponse()
                exchange.status = reply.status
                self.send_response(reply.status)
                for name, value in kept(reply.getheaders()).items():
                    self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                while piece := reply.read1(65536):
                    exchange.reply += piece
                    self.wfile.write(piece)
                    self.wfile.flush()

            do_GET = do_HEAD = do_POST = pass_on

        self.listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.listener.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.listener.server_port}"
        threading.Thread(target=self.listener.serve_forever, daemon=True).start()

    def close(self):
        self.listener.shutdown()
        self.listener.server_close()


def kept(headers):
    return {name: value for name, value in headers if name.lower() not in OWN}
