"""The HTTP server: the Kubernetes API for the kinds of this cluster, and the faults that hit requests."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections import deque
from collections.abc import Callable
from typing import Any

from aiohttp import web

from dev_stack.cluster.deletion import begin_deletion, orphan
from dev_stack.cluster.discovery import document
from dev_stack.cluster.errors import ApiError, bad_request, conflict
from dev_stack.cluster.exec import Exec
from dev_stack.cluster.faults import Faults, HttpFault
from dev_stack.cluster.kinds import JOBS, PODS, Kind, Object
from dev_stack.cluster.kubelet import Kubelet
from dev_stack.cluster.requests import Predicate, Target, by_fields, by_labels, flag, log_options
from dev_stack.cluster.store import Store
from dev_stack.cluster.streams import FAULTS, Stream, cutting, send_part
from dev_stack.cluster.watching import Watch
from dev_stack.cluster.writing import create, patched, read_body, read_json, replace

_BODY_LIMIT = 3 * 1024 * 1024  # bytes of a request, as on a real API server
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired",
            429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}  # fmt: skip


class Api:
    """Answers requests from the store, and logs from the kubelet."""

    def __init__(
        self, store: Store, kubelet: Kubelet, faults: Faults, token: str, requests: deque[tuple[str, str]]
    ) -> None:
        self._store = store
        self._kubelet = kubelet
        self._faults = faults
        self._token = f"Bearer {token}".encode()
        self._requests = requests
        self.closing = asyncio.Event()

    def application(self) -> web.Application:
        """The aiohttp application: one handler for all paths, behind authentication and faults."""
        app = web.Application(client_max_size=_BODY_LIMIT, middlewares=[self._outermost])
        app.router.add_route("*", "/{path:.*}", self._dispatch)
        return app

    # ---------------------------------------------------------------- around every request

    @web.middleware
    async def _outermost(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            self._authenticate(request)
            if request.path == "/faults":
                return await self._handle_faults(request)
            self._requests.append((request.method, request.path_qs))
            request[FAULTS] = hits = self._faults.hitting(request.method, request.path_qs)
            for hit in hits:
                await _apply(hit)
            response: web.StreamResponse = await handler(request)
        except ApiError as error:
            response = _json(error.status, error.code)
            if error.retry_after is not None:
                response.headers["Retry-After"] = str(error.retry_after)
        cut = cutting(request)
        if cut is not None and isinstance(response, web.Response):
            return await send_part(request, response, cut)
        return response

    def _authenticate(self, request: web.Request) -> None:
        if not hmac.compare_digest(request.headers.get("Authorization", "").encode(), self._token):
            raise ApiError(401, "Unauthorized", "Unauthorized")

    async def _handle_faults(self, request: web.Request) -> web.Response:
        if request.method == "DELETE":
            self._faults.clear()
        else:
            await self._faults.inject(read_json(await request.read()))
        return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    # ---------------------------------------------------------------- dispatch

    async def _dispatch(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" and (discovery := document(request.path)) is not None:
            return _json(discovery)
        if request.method == "POST" and request.path == _ACCESS_REVIEWS:  # the one user may do everything
            return _json({**read_json(await request.read()), "status": {"allowed": True}}, 201)
        target = Target.parse(request.path)
        if target is None:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        if "dryRun" in request.query and (request.method, target.name) != ("POST", ""):
            raise bad_request("dryRun: the embedded cluster imitates it of creations only")
        handler = self._handler(request.method, target)
        if handler is None:
            message = "the server does not allow this method on the requested resource"
            raise ApiError(405, "MethodNotAllowed", message)
        response: web.StreamResponse = await handler(request, target)
        return response

    def _handler(self, method: str, target: Target) -> Callable[..., Any] | None:
        if target.subresource == "log":
            return self._log if method == "GET" else None
        if target.subresource == "exec":
            return self._exec if method in ("GET", "POST") else None
        if not target.name:
            return {"GET": self._collection, "POST": self._create, "DELETE": self._delete_collection}.get(method)
        return {"GET": self._get, "PUT": self._put, "PATCH": self._patch, "DELETE": self._delete}.get(method)

    # ---------------------------------------------------------------- reading

    async def _get(self, request: web.Request, target: Target) -> web.Response:
        body = self._store.get(target.kind, target.namespace, target.name)
        if "as=PartialObjectMetadata;" in request.headers.get("Accept", ""):
            body = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": body["metadata"]}
        return _json(body)

    async def _collection(self, request: web.Request, target: Target) -> web.StreamResponse:
        kind, selected = target.kind, _selector(request, target.kind)
        if flag(request.query, "watch"):
            return await Watch(self._store, request, target, selected).serve(self.closing)
        return self._list(kind, [body for body in self._store.every(kind, target.namespace) if selected(body)])

    def _list(self, kind: Kind, items: list[Object]) -> web.Response:
        meta = {"resourceVersion": str(self._store.version)}
        return _json({"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": meta, "items": items})

    # ---------------------------------------------------------------- writing

    async def _create(self, request: web.Request, target: Target) -> web.Response:
        body = await _object_of(request, target.kind)
        return _json(create(self._store, target, body, stored=not _dry_run(request)), 201)

    async def _put(self, request: web.Request, target: Target) -> web.Response:
        body = await _object_of(request, target.kind)
        before = self._store.get(target.kind, target.namespace, target.name)
        return _json(replace(self._store, target, body, before))

    async def _patch(self, request: web.Request, target: Target) -> web.Response:
        raw = await request.read()
        before = self._store.get(target.kind, target.namespace, target.name)
        body = patched(target.kind, before, raw, request.content_type)
        return _json(replace(self._store, target, body, before))

    async def _delete(self, request: web.Request, target: Target) -> web.Response:
        options = await _delete_options(request)
        body = self._store.get(target.kind, target.namespace, target.name)
        return _json(self._begin_deletion(target.kind, body, options))

    async def _delete_collection(self, request: web.Request, target: Target) -> web.Response:
        options, selected = await _delete_options(request), _selector(request, target.kind)
        bodies = [body for body in self._store.every(target.kind, target.namespace) if selected(body)]
        return self._list(target.kind, [self._begin_deletion(target.kind, body, options) for body in bodies])

    def _begin_deletion(self, kind: Kind, body: Object, options: Object) -> Object:
        uid = (options.get("preconditions") or {}).get("uid", body["metadata"]["uid"])
        if uid != body["metadata"]["uid"]:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {body['metadata']['uid']}"
            raise conflict(kind, body["metadata"]["name"], why)
        default = "Orphan" if kind is JOBS else "Background"  # batch/v1 is gentle to clients of its first days
        propagation = options.get("propagationPolicy", default)
        if propagation == "Foreground":
            raise bad_request("propagationPolicy: the embedded cluster knows Background and Orphan only")
        if propagation == "Orphan":
            orphan(self._store, body)
        return begin_deletion(self._store, kind, body, options.get("gracePeriodSeconds"))

    # ---------------------------------------------------------------- logs and exec

    async def _log(self, request: web.Request, target: Target) -> web.StreamResponse:
        options = log_options(request.query)
        body = self._store.get(PODS, target.namespace, target.name)
        source = self._kubelet.open_log(body, request.query.get("container") or None, options)
        if source is None:
            return web.Response(status=204)
        stream = Stream(request)
        await stream.open("text/plain")
        async with contextlib.aclosing(source):
            with contextlib.suppress(ConnectionError):
                async for data in source:
                    if not await stream.write(data):
                        break
        return await stream.close()

    async def _exec(self, request: web.Request, target: Target) -> web.StreamResponse:
        body = self._store.get(PODS, target.namespace, target.name)
        container = self._kubelet.container(body, request.query.get("container") or None)
        return await Exec(request, container, request.query.getall("command", [])).serve(self.closing)


async def _apply(fault: HttpFault) -> None:
    if fault.delay:
        await asyncio.sleep(fault.delay)
    if fault.status is not None:
        details = {} if fault.retry_after is None else {"retryAfterSeconds": fault.retry_after}
        reason = _REASONS.get(fault.status, "Unknown")
        raise ApiError(fault.status, reason, fault.message, retry_after=fault.retry_after, **details)


def _dry_run(request: web.Request) -> bool:
    values = request.query.getall("dryRun", [])
    if set(values) - {"All"}:
        text = f'dryRun: Unsupported value: "{values[0]}": supported values: "All"'
        raise ApiError(422, "Invalid", f'CreateOptions.meta.k8s.io "" is invalid: {text}')
    return bool(values)


def _selector(request: web.Request, kind: Kind) -> Predicate:
    labels = by_labels(request.query.get("labelSelector", ""))
    fields = by_fields(kind, request.query.get("fieldSelector", ""))
    return lambda body: labels(body) and fields(body)


async def _object_of(request: web.Request, kind: Kind) -> Object:
    if request.content_type not in ("application/json", "application/octet-stream"):
        message = "the body of the request was in an unknown format - accepted media types include: application/json"
        raise ApiError(415, "UnsupportedMediaType", message)
    return read_body(kind, await request.read())


async def _delete_options(request: web.Request) -> Object:
    raw = await request.read()
    options = read_json(raw) if raw.strip() else {}
    if not isinstance(options, dict):
        raise bad_request("error decoding delete options: an object is needed")
    for name, kind in (("propagationPolicy", str), ("gracePeriodSeconds", int)):
        if name in request.query:
            options[name] = kind(request.query[name])
    return options


def _json(body: Object, code: int = 200) -> web.Response:
    text = json.dumps(body, separators=(",", ":"))
    return web.Response(text=text, status=code, content_type="application/json")
