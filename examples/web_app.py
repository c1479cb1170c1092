"""Run a web app in a sandbox without a network, and open it from this machine."""

import urllib.request

from sandboxkit import Session

APP = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        page = f"<title>Inside</title><h1>You asked for {self.path}</h1>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *args):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 8000), Page)
print("listening", flush=True)
server.serve_forever()
"""

with Session(network="none") as session:
    sandbox = session.sandbox()
    app = sandbox.exec(["python", "-c", APP])
    next(iter(app.stdout.lines()))

    with sandbox.expose(8000).result() as web:
        # A person would open web.url in a browser of this machine.
        print(urllib.request.urlopen(f"{web.url}/hello").read().decode())

    try:
        urllib.request.urlopen(web.url)
    except OSError:
        print("the port is closed")
