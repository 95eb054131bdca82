"""The proxy in the agent's pod: what it forwards, what it adds, what it refuses, and when it ends."""

import itertools
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any

import pytest
import trustme

from agent_runs.pod.sidecar.api_proxy import MAX_CONNECTIONS, MAX_REPLAY_BODY
from agent_runs.pod.sidecar.tokens import KEY_PLACEHOLDER, TOOLS_PLACEHOLDER
from dev_stack.cluster.volumes import project
from tests.pod.harness import Sidecar, read_frames
from tests.pod.paperclip import FakePaperclip, serving
from tests.support.cases import case

TIMEOUT = 60


WORD = {"Authorization": f"Bearer {KEY_PLACEHOLDER}"}


@dataclass
class Proxy:
    """A proxy as its container starts it, and the agent's side of it."""

    process: subprocess.Popen[bytes]
    shared: Path
    tokens: Path

    @property
    def port(self) -> int:
        return int((self.shared / "ready").read_text().rpartition(":")[2])

    def rotate(self, token: str, run_id: str, **more: str) -> None:
        files = {"token": token, "run-id": run_id} | ({"tools-token": more["tools"]} if more else {})
        project(self.tokens, {name: (text.encode(), 0o444) for name, text in files.items()})

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            connection.request(
                method,
                path,
                body,
                WORD if headers is None else headers,
                encode_chunked=not isinstance(body, bytes | None),
            )
            with connection.getresponse() as answer:
                return answer, answer.read()
        finally:
            connection.close()

    def raw(self, request: bytes) -> bytes:
        """What comes back for these very bytes, with the proxy's own host and the key's word in place of HOST and KEY,
        until the proxy ends the connection."""
        request = request.replace(b"HOST", b"127.0.0.1:%d" % self.port).replace(b"KEY", KEY_PLACEHOLDER.encode())
        with socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
            return answer

    def open_fifo(self) -> int:
        """Open the FIFO as the runner does."""
        fifo = os.open(self.shared / "agent", os.O_RDWR)
        os.write(fifo, b"started\n")
        return fifo

    def children(self) -> list[int]:
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(child) for child in task.read_text().split()]


@pytest.fixture
def paperclip() -> Iterator[FakePaperclip]:
    with serving() as paperclip:
        yield paperclip


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Proxy]]:
    proxies: list[Proxy] = []

    def start(upstream: str, env: dict[str, str] | None = None) -> Proxy:
        home = tmp_path / f"pod-{len(proxies)}"
        home.mkdir()
        sidecar = Sidecar(home, env={"PAPERCLIP_UPSTREAM_URL": upstream, **(env or {})})
        proxy = Proxy(sidecar.start(), sidecar.out, sidecar.tokens)
        proxies.append(proxy)
        proxy.rotate("token-1", "run-1")
        wait_until((sidecar.out / "ready").exists)
        return proxy

    yield start
    for proxy in proxies:
        proxy.process.send_signal(signal.SIGSTOP)  # it replaces children that die
        children = proxy.children() if proxy.process.poll() is None else []
        proxy.process.kill()
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        output, errors = proxy.process.communicate(timeout=TIMEOUT)
        assert errors == b"", "the proxy logs nothing"
        assert [frame.stream for frame in read_frames(output)] in ([], ["hello"], ["hello", "last"])


@pytest.fixture
def proxy(paperclip: FakePaperclip, start: Callable[[str], Proxy]) -> Proxy:
    return start(paperclip.url)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# tokens


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY_PLACEHOLDER}"},
        {"authorization": f"bearer  {KEY_PLACEHOLDER}", "x-paperclip-run-id": "frozen-in-the-environment"},
    ],
)
def test_the_agents_requests_carry_the_current_token_and_run_id(
    proxy: Proxy, paperclip: FakePaperclip, headers: dict[str, str]
) -> None:
    assert proxy.ask("PATCH", "/api/issues/1", b"{}", headers)[0].status == 200
    paperclip.owner = ("token-2", "run-2")
    assert proxy.ask("PATCH", "/api/issues/1", b"{}", headers)[0].status == 409
    proxy.rotate("token-2", "run-2")
    assert proxy.ask("PATCH", "/api/issues/1", b"{}", headers)[0].status == 200
    assert [request.headers.get_all("X-Paperclip-Run-Id") for request in paperclip.requests] == [
        ["run-1"],
        ["run-1"],
        ["run-2"],
    ]
    assert [len(request.headers.get_all("Authorization") or []) for request in paperclip.requests] == [1, 1, 1]


@pytest.mark.parametrize("status", [401, 409])
def test_a_request_is_repeated_if_the_token_changed_meanwhile(
    proxy: Proxy, paperclip: FakePaperclip, status: int
) -> None:
    paperclip.refusal = status

    def overtaken(_: object) -> None:
        paperclip.owner = ("token-2", "run-2")
        proxy.rotate("token-2", "run-2")

    paperclip.before = overtaken
    assert proxy.ask("PATCH", "/api/issues/1", b"x" * MAX_REPLAY_BODY)[1] == b"done"
    assert [request.body for request in paperclip.requests] == [b"x" * MAX_REPLAY_BODY] * 2
    proxy.rotate("token-3", "run-3")
    paperclip.requests.clear()
    assert proxy.ask("PATCH", "/api/issues/1", b"x" * (MAX_REPLAY_BODY + 1))[0].status == status
    assert len(paperclip.requests) == 1


def test_a_bearer_token_of_the_agents_own_is_kept(proxy: Proxy, paperclip: FakePaperclip) -> None:
    proxy.ask("GET", "/mcp/tools", None, {"Authorization": "Bearer mine", "X-Paperclip-Run-Id": "mine"})
    (request,) = paperclip.requests
    assert (request.headers["Authorization"], request.headers["X-Paperclip-Run-Id"]) == ("Bearer mine", "mine")


def test_connection_tools_have_a_token_of_their_own(proxy: Proxy, paperclip: FakePaperclip) -> None:
    word = {"Authorization": f"Bearer {TOOLS_PLACEHOLDER}"}
    answer, body = proxy.ask("POST", "/mcp/runtime-tools", b"{}", word)
    assert (answer.status, json.loads(body)["code"]) == (503, "api_proxy_without_token")
    proxy.rotate("token-1", "run-1", tools="tools-1")
    proxy.ask("POST", "/mcp/runtime-tools", b"{}", word)
    proxy.ask("POST", "/mcp/runtime-tools", b"{}", {**word, "X-Paperclip-Run-Id": "old"})
    assert [request.headers["Authorization"] for request in paperclip.requests] == ["Bearer tools-1"] * 2
    assert [request.headers["X-Paperclip-Run-Id"] for request in paperclip.requests] == [None, "run-1"]


def test_nothing_is_forwarded_without_a_token(proxy: Proxy, paperclip: FakePaperclip) -> None:
    proxy.rotate("", "run-1")
    assert proxy.ask("GET", "/api/open")[0].status == 503
    shutil.rmtree(proxy.tokens)
    assert proxy.ask("GET", "/api/open")[0].status == 503
    assert paperclip.requests == []


# who may ask


def test_a_request_without_the_word_gets_no_token(proxy: Proxy, paperclip: FakePaperclip) -> None:
    answer, body = proxy.ask("POST", "/api/issues/1", b"{}", {})
    assert (answer.status, json.loads(body)["error"]) == (
        401,
        "send PAPERCLIP_API_KEY: Authorization: Bearer $PAPERCLIP_API_KEY",
    )
    assert paperclip.requests == []


OF_A_WEB_PAGE = [
    {"Host": "attacker.example"},  # a name that was rebound to the loopback
    {"Host": "localhost"},  # another name of the loopback
    {"Origin": "https://attacker.example"},  # a web page
    {"Origin": "null"},  # a file
    {"Sec-Fetch-Site": "cross-site"},  # a browser says so
    {"Sec-Fetch-Site": "same-site"},  # another port
]


def test_a_web_page_in_the_agents_browser_cannot_ask(proxy: Proxy, paperclip: FakePaperclip) -> None:
    for headers, method in itertools.product(OF_A_WEB_PAGE, ("GET", "POST", "OPTIONS")):
        with case(headers, method):
            answer, body = proxy.ask(method, "/api/issues/1", b"{}", WORD | headers)
            assert (answer.status, json.loads(body)["code"]) == (403, "api_proxy_refused")
            assert paperclip.requests == []


def test_a_page_of_paperclip_itself_that_the_proxy_serves_can_ask(proxy: Proxy) -> None:
    own = {"Origin": f"http://127.0.0.1:{proxy.port}", "Sec-Fetch-Site": "same-origin"}
    assert proxy.ask("GET", "/api/open", None, WORD | own)[0].status == 200


# what is forwarded


@pytest.mark.parametrize("size", [0, 1, 70_000, MAX_REPLAY_BODY, MAX_REPLAY_BODY + 1, 5 * MAX_REPLAY_BODY])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_arrives_whole_and_comes_back_whole(
    proxy: Proxy, paperclip: FakePaperclip, size: int, chunked: bool
) -> None:
    body = os.urandom(size)
    pieces = iter([body[at : at + 50_000] for at in range(0, size, 50_000)])
    headers = WORD | ({"Transfer-Encoding": "chunked"} if chunked else {})
    answer, back = proxy.ask("POST", "/api/open?x=%2F&y", pieces if chunked else body, headers)
    (request,) = paperclip.requests
    assert (request.method, request.path, request.body) == ("POST", "/api/open?x=%2F&y", body)
    assert (answer.status, back) == (200, body or b"open")
    assert answer.headers.get_all("Set-Cookie") == ["one=1", "two=2"]
    assert request.headers["Host"] == paperclip.url.removeprefix("http://")


def test_a_stream_arrives_as_it_comes(proxy: Proxy, paperclip: FakePaperclip) -> None:
    connection = HTTPConnection("127.0.0.1", proxy.port, timeout=TIMEOUT)
    connection.request("GET", "/api/stream", headers=WORD)
    answer = connection.getresponse()
    assert answer.read1(100) == b"first\n\n"
    paperclip.second_event.set()
    assert answer.read() == b"second\n\n"
    connection.close()


def test_one_connection_serves_many_requests(proxy: Proxy) -> None:
    connection = HTTPConnection("127.0.0.1", proxy.port, timeout=TIMEOUT)
    for method, body in (("GET", None), ("PATCH", b"{}"), ("HEAD", None), ("POST", b""), ("DELETE", None)):
        connection.request(method, "/api/open", body, WORD)
        answer = connection.getresponse()
        assert (answer.status, answer.will_close) == (200, False)
        answer.read()
    connection.close()


def test_an_answer_that_is_cut_is_not_completed(proxy: Proxy) -> None:
    with pytest.raises(IncompleteRead):
        proxy.ask("GET", "/api/cut")


def test_an_answer_that_comes_before_the_whole_body_is_passed_on(proxy: Proxy) -> None:
    assert proxy.ask("POST", "/api/early", b"x" * 3 * MAX_REPLAY_BODY)[0].status == 413


@pytest.mark.parametrize("length", [b"Content-Length: 4", b"Transfer-Encoding: chunked"])
def test_a_client_may_wait_before_it_sends_the_body(proxy: Proxy, paperclip: FakePaperclip, length: bytes) -> None:
    head = b"POST /api/open HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer %s\r\n"
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=TIMEOUT) as agent:
        agent.sendall(
            head % (proxy.port, KEY_PLACEHOLDER.encode()) + b"Expect: 100-continue\r\n" + length + b"\r\n\r\n"
        )
        assert agent.recv(1000).startswith(b"HTTP/1.1 100 ")
        agent.sendall(b"4\r\nbody\r\n0\r\n\r\n" if b"chunked" in length else b"body")
        assert agent.recv(1000).startswith(b"HTTP/1.1 200 ")
    (request,) = paperclip.requests
    assert (request.body, request.headers["Expect"]) == (b"body", None)


def test_a_refused_client_gets_its_answer_although_it_sends_more(proxy: Proxy) -> None:
    answer, body = proxy.ask("POST", "/api/open", b"x" * 8 * MAX_REPLAY_BODY, WORD | {"Host": "elsewhere"})
    assert (answer.status, json.loads(body)["code"]) == (403, "api_proxy_refused")


@pytest.mark.parametrize("path", ["/api/open", "/api/stream"])
def test_an_answer_without_a_body_has_none(proxy: Proxy, paperclip: FakePaperclip, path: str) -> None:
    paperclip.second_event.set()
    connection = HTTPConnection("127.0.0.1", proxy.port, timeout=TIMEOUT)
    for method in ("HEAD", "HEAD", "GET"):
        connection.request(method, path.replace("stream", "empty"), headers=WORD)
        with connection.getresponse() as answer:
            assert (answer.status, answer.read()) in ((200, b"" if method == "HEAD" else b"open"), (204, b""))
    connection.close()


def test_further_connections_wait(proxy: Proxy) -> None:
    busy = [socket.create_connection(("127.0.0.1", proxy.port), timeout=TIMEOUT) for _ in range(MAX_CONNECTIONS)]
    for agent in busy:
        agent.sendall(b"GET ")
    waiting = socket.create_connection(("127.0.0.1", proxy.port), timeout=0.5)
    waiting.sendall(b"GET / HTTP/1.1\r\nHost: elsewhere\r\n\r\n")
    with pytest.raises(TimeoutError):
        waiting.recv(1000)
    waiting.settimeout(TIMEOUT)
    busy[7].close()
    assert waiting.recv(1000).startswith(b"HTTP/1.1 403 ")
    for agent in (waiting, *busy):
        agent.close()


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", None])
def test_paperclip_may_have_a_private_authority(
    tmp_path: Path, start: Callable[..., Proxy], variable: str | None
) -> None:
    authority = trustme.CA()
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(trust)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with serving(tls=trust) as paperclip:
        proxy = start(paperclip.url, {variable: str(tmp_path / "ca.pem")} if variable else {})
        body = os.urandom(3 * MAX_REPLAY_BODY)
        answer, back = proxy.ask("POST", "/api/open", body)
        if variable is None:
            assert (answer.status, json.loads(back)["code"]) == (502, "api_proxy_upstream_unreachable")
        else:
            assert (answer.status, back) == (200, body)
            assert proxy.ask("POST", "/api/early", body)[0].status == 413


def test_an_old_client_gets_an_answer_without_chunks(proxy: Proxy, paperclip: FakePaperclip) -> None:
    paperclip.second_event.set()
    head, _, body = proxy.raw(b"GET /api/stream HTTP/1.0\r\nAuthorization: Bearer KEY\r\n\r\n").partition(b"\r\n\r\n")
    assert (b"chunked" in head.lower(), body) == (False, b"first\n\nsecond\n\n")


def test_a_redirection_within_paperclip_leads_through_the_proxy(proxy: Proxy) -> None:
    assert proxy.ask("GET", "/api/moved")[0].headers["Location"] == f"http://127.0.0.1:{proxy.port}/api/there"


def test_an_upgrade_is_not_offered(proxy: Proxy, paperclip: FakePaperclip) -> None:
    asking = {"Connection": "Upgrade, X-Hop", "Upgrade": "websocket", "X-Hop": "1", "TE": "trailers", "X-Kept": "1"}
    assert proxy.ask("GET", "/api/open", None, WORD | asking)[0].status == 200
    (request,) = paperclip.requests
    assert [request.headers[name] for name in ("Upgrade", "X-Hop", "TE", "X-Kept")] == [None, None, None, "1"]
    assert request.headers["Connection"] == "close"


def test_a_base_path_comes_before_every_path(paperclip: FakePaperclip, start: Callable[[str], Proxy]) -> None:
    start(f"{paperclip.url}/base/").ask("GET", "/api/open")
    assert paperclip.requests[0].path == "/base/api/open"


# what is refused


HOSTILE_LINES = [
    b"GET http://elsewhere/api/open HTTP/1.1",
    b"GET https://127.0.0.1/api/open HTTP/1.1",
    b"CONNECT elsewhere:443 HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"GET api/open HTTP/1.1",
    b"GET /api/../../admin HTTP/1.1",
    b"GET /api/%2e%2E/admin HTTP/1.1",
    b"GET /api/..%2fadmin HTTP/1.1",
    b"GET /api\\..\\admin HTTP/1.1",
    b"GET /api/open#x HTTP/1.1",
    b"GET /api/\xc3\xa4 HTTP/1.1",
    b"GET /api/a\x01b HTTP/1.1",
    b"GET /api/open",
    b"GET /api/open HTTP/9",
    b"BREW /api/open HTTP/1.1",
    b"\x16\x03\x01\x02\x00",
    b"GET /" + b"x" * 70_000 + b" HTTP/1.1",
]


def test_a_hostile_request_line_is_refused(proxy: Proxy, paperclip: FakePaperclip) -> None:
    for line in HOSTILE_LINES:
        with case(line):
            answer = proxy.raw(line + b"\r\nHost: HOST\r\n\r\n")
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.split()[1] in (b"400", b"414", b"501", b"505")
            assert set(json.loads(body)) == {"error", "code"}
            assert paperclip.requests == []


HOSTILE_HEADERS = [
    b"Content-Length: 1\r\nContent-Length: 2",
    b"Content-Length: 4\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Content-Length: -1",
    b"Content-Length: +4",
    b"Content-Length: 0x4",
    b"Authorization: Bearer a\r\nAuthorization: Bearer b",
    b"X-Folded: a\r\n Authorization: Bearer b",
    b"X Bad: a",
    b"X-Bad\x0b: a",
    b"no colon at all",
    b"X-Zero: a\x00b",
    b"\r\n".join(b"X-%d: 1" % number for number in range(200)),
]


def test_hostile_headers_are_refused(proxy: Proxy, paperclip: FakePaperclip) -> None:
    for headers in HOSTILE_HEADERS:
        with case(headers):
            answer = proxy.raw(b"POST /api/open HTTP/1.1\r\nHost: HOST\r\n" + headers + b"\r\n\r\nbody")
            assert answer.split()[1] in (b"400", b"431")
            assert paperclip.requests == []


def test_a_header_cannot_contain_another_one(proxy: Proxy, paperclip: FakePaperclip) -> None:
    returned = b"X-Return: a\rX-Paperclip-Run-Id: b"
    answer = proxy.raw(b"GET /api/open HTTP/1.0\r\nAuthorization: Bearer KEY\r\n" + returned + b"\r\n\r\n")
    assert answer.split()[1] == b"400"
    assert paperclip.requests == []


def test_a_request_of_today_names_its_host(proxy: Proxy, paperclip: FakePaperclip) -> None:
    assert proxy.raw(b"GET /api/open HTTP/1.1\r\nAuthorization: Bearer KEY\r\n\r\n").split()[1] == b"400"
    assert paperclip.requests == []


MALFORMED_CHUNKS = [b"zz\r\n", b"-1\r\n", b"3\r\nabcdef\r\n", b"fffffffff\r\n", b"1" * 2000]


def test_malformed_chunks_are_refused(proxy: Proxy, paperclip: FakePaperclip) -> None:
    head = b"POST /api/open HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer KEY\r\nTransfer-Encoding: chunked\r\n\r\n"
    for chunks in MALFORMED_CHUNKS:
        with case(chunks):
            answer = proxy.raw(head + chunks + b"0\r\n\r\n")
            assert answer.split()[1] == b"400"
            assert paperclip.requests == []


def test_a_body_that_is_cut_is_not_forwarded(proxy: Proxy, paperclip: FakePaperclip) -> None:
    head = b"POST /api/open HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer KEY\r\n"
    assert proxy.raw(head + b"Content-Length: 10\r\n\r\nhalf") == b""
    assert proxy.raw(head + b"Transfer-Encoding: chunked\r\n\r\n9\r\nhalf").split()[1] == b"400"
    assert paperclip.requests == []


def test_a_paperclip_that_cannot_be_reached_is_reported(start: Callable[[str], Proxy]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    answer, body = start(f"http://127.0.0.1:{port}").ask("GET", "/api/open")
    assert answer.status == 502
    assert json.loads(body) == {
        "error": f"Paperclip at http://127.0.0.1:{port} cannot be reached: ConnectionRefusedError",
        "code": "api_proxy_upstream_unreachable",
    }


@pytest.mark.parametrize("url", ["", "paperclip:80", "ftp://h", "http://ada:pw@h", "http://"])
def test_an_unusable_address_ends_the_sidecar_at_once(tmp_path: Path, url: str) -> None:
    sidecar = Sidecar(tmp_path, env={"PAPERCLIP_UPSTREAM_URL": url})
    process = sidecar.start()
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1
    assert b"PAPERCLIP_UPSTREAM_URL must be" in errors
    assert not (sidecar.out / "ready").exists()


# when it ends


def test_the_proxy_serves_in_the_agents_grace_and_ends_with_it(proxy: Proxy) -> None:
    fifo = proxy.open_fifo()
    proxy.process.send_signal(signal.SIGTERM)
    assert proxy.ask("GET", "/api/open")[0].status == 200
    assert proxy.process.poll() is None
    os.close(fifo)
    assert proxy.process.wait(TIMEOUT) == 0


def test_a_stop_before_the_agents_start_ends_the_sidecar(proxy: Proxy) -> None:
    proxy.process.send_signal(signal.SIGTERM)
    assert proxy.process.wait(TIMEOUT) == 0


def test_what_an_agent_writes_into_the_fifo_does_not_end_the_proxy(proxy: Proxy) -> None:
    fifo = proxy.open_fifo()
    os.write(fifo, b"x" * 4000)
    assert proxy.ask("GET", "/api/open")[0].status == 200
    assert proxy.process.poll() is None
    os.close(fifo)


def test_a_serving_process_that_dies_is_replaced_at_the_same_address(proxy: Proxy) -> None:
    wait_until(lambda: proxy.children() != [])
    port, (first,) = proxy.port, proxy.children()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: proxy.children() not in ([], [first]))
    assert proxy.port == port
    assert proxy.ask("GET", "/api/open")[0].status == 200
