"""A server that plays scripts to the page: answers, cut at odd places, late, broken or refused, as a test wants them."""
import http.server
import json
import os
import re
import threading
import time

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# As in apps/server/page.h, read from there.
POLICY = re.compile(r'kPagePolicy =\s*((?:"[^"]*"\s*)+);')


def policy(folder):
    with open(os.path.join(folder, os.pardir, "page.h"), encoding="utf-8") as file:
        return "".join(re.findall(r'"([^"]*)"', POLICY.search(file.read())[1]))


def event(body):
    return "data: " + json.dumps(body, ensure_ascii=False) + "\n\n"


def chunk(text=None, reason=None, **more):
    delta = {} if text is None else {"content": text}
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **more}


def tokens_chunk(tokens, rounds=(), **more):
    """tokens: [(text, depth)]; rounds: [(drafted, accepted, ms, plain_ms)]"""
    details = {"tokens": [{"text": t, "depth": d} for t, d in tokens],
               "rounds": [{"drafted": d, "verified": d, "accepted": a, "ms": ms, "plain_ms": p} for d, a, ms, p in rounds], **more}
    return chunk("".join(t for t, _ in tokens), specextend=details)


def last_chunks(predicted=10, ms=100.0, plain=50.0, reason="stop", drafted=8, accepted=6):
    timings = {"cache_n": 3, "prompt_n": 7, "prompt_ms": 20.0, "prompt_per_second": 350.0, "predicted_n": predicted, "predicted_ms": ms,
               "predicted_per_second": 1000 * predicted / ms, "draft_n": drafted, "draft_n_accepted": accepted, "plain_per_second": plain}
    metrics = {"speculative_decoding": {"mean_acceptance_length": 2.5, "num_accepted_draft_tokens": accepted, "num_draft_tokens": drafted}}
    usage = {"prompt_tokens": 10, "completion_tokens": predicted, "total_tokens": 10 + predicted}
    numbers = {"object": "chat.completion.chunk", "choices": [], "usage": usage, "timings": timings, "metrics": metrics}
    return [chunk(reason=reason), numbers]


def stream_of(chunks):
    return "".join(event(c) for c in chunks) + "data: [DONE]\n\n"


class MockServer:
    """`script(request)` answers a chat: a generator of str or bytes (written as they come) and numbers (seconds to wait),
    or a tuple (status, headers, body). `requests` holds the bodies of the chats."""

    def __init__(self, folder):
        self.folder = folder
        self.requests = []
        self.keys = []          # of the chats: what Authorization said
        self.key = None         # demanded if set
        self.script = None
        self.broken = threading.Event()  # set when the page closed a stream
        self.props = {"model_alias": "tiny", "n_ctx": 8192, "presets": ["specextend", "suffix"]}
        mock = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def reply(self, status, body, kind="application/json", **headers):
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", kind + "; charset=utf-8")
                self.send_header("Content-Length", str(len(data)))
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(data)

            def refused(self):
                if mock.key is None or self.headers.get("Authorization") == f"Bearer {mock.key}":
                    return False
                self.reply(401, {"error": {"message": "a valid API key is needed", "code": "invalid_api_key"}})
                return True

            def do_GET(self):
                if self.path == "/props":
                    loading = {"error": {"message": "the model is being loaded"}}
                    return self.refused() or (self.reply(200, mock.props) if mock.props else self.reply(503, loading))
                name = "icon.svg" if self.path == "/favicon.ico" else os.path.basename(self.path)
                path = os.path.join(mock.folder, name or "index.html")
                kind = TYPES.get(os.path.splitext(path)[1])
                if not kind or not os.path.isfile(path):
                    return self.reply(404, {"error": {"message": "there is no such path"}})
                with open(path, "rb") as file:
                    self.reply(200, file.read(), kind, Content_Security_Policy=policy(mock.folder))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/v1/chat/completions":
                    mock.requests.append(body)
                    mock.keys.append(self.headers.get("Authorization"))
                if self.refused():
                    return
                if self.path == "/tokenize":
                    return self.reply(200, {"tokens": list(range(len(body["content"].split())))})
                answer = mock.script(body)
                if isinstance(answer, tuple):
                    status, headers, content = answer
                    return self.reply(status, content, **headers)
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                try:
                    for piece in answer:
                        if isinstance(piece, (int, float)):
                            time.sleep(piece)
                        else:
                            self.wfile.write(piece.encode() if isinstance(piece, str) else piece)
                            self.wfile.flush()
                except OSError:
                    mock.broken.set()

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 32

        self.server = Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}/"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
