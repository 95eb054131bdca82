"""The HTTP server: the Kubernetes API for the kinds of this cluster, and the faults that may befall a request."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from aiohttp import web

from local.cluster.deletion import begin, default_propagation
from local.cluster.discovery import document
from local.cluster.execution import ExecOptions, Execution
from local.cluster.faults import Faults, HttpFault
from local.cluster.kinds import PODS, REVIEWS, Kind, Object
from local.cluster.kubelet import Kubelet
from local.cluster.refusals import Refused, bad_request, conflict, no_such_path
from local.cluster.requests import Target, continue_token, flag, log_options, read_continue_token, version_of
from local.cluster.selectors import Predicate, by_fields, by_labels
from local.cluster.store import Store
from local.cluster.streams import FAULTS, Stream, send_part
from local.cluster.tables import table
from local.cluster.watching import Watch
from local.cluster.writing import create, patched, read_body, replace

log = logging.getLogger(__name__)
_BODY_LIMIT = 3 * 1024 * 1024  # bytes of a request, as on a real API server


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
                return await self._order_faults(request)
            self._requests.append((request.method, request.path_qs))
            hits = self._faults.taken_by(request.method, request.path_qs)
            request[FAULTS] = hits
            await self._suffer(hits)
            answer: web.StreamResponse = await handler(request)
        except Refused as refusal:
            answer = _json(refusal.status, refusal.code)
            if refusal.retry_after is not None:
                answer.headers["Retry-After"] = str(refusal.retry_after)
        cut = next((hit for hit in request.get(FAULTS, ()) if hit.cut_after is not None), None)
        if cut is not None and isinstance(answer, web.Response):
            return await send_part(request, answer, cut)
        return answer

    def _authenticate(self, request: web.Request) -> None:
        given = request.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, self._token):
            raise Refused(401, "Unauthorized", "Unauthorized")

    @staticmethod
    async def _suffer(hits: list[HttpFault]) -> None:
        for hit in hits:
            if hit.delay:
                await asyncio.sleep(hit.delay)
            if hit.status is not None:
                reasons = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired",
                           429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable",
                           504: "Timeout"}  # fmt: skip
                details = {} if hit.retry_after is None else {"retryAfterSeconds": hit.retry_after}
                refusal = Refused(hit.status, reasons.get(hit.status, "Unknown"), hit.message, **details)
                refusal.retry_after = hit.retry_after
                raise refusal

    async def _order_faults(self, request: web.Request) -> web.Response:
        if request.method == "DELETE":
            self._faults.clear()
        elif request.method == "POST":
            try:
                order = await request.json()
            except ValueError as error:
                raise bad_request(str(error)) from None
            await self._faults.do(order)
        else:
            raise Refused(405, "MethodNotAllowed", "POST one fault, or DELETE all")
        return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    # ---------------------------------------------------------------- dispatch

    async def _dispatch(self, request: web.Request) -> web.StreamResponse:
        if request.path in ("/healthz", "/livez", "/readyz"):
            return web.Response(text="ok")
        if request.method == "GET" and (found := document(request.path, request.host)) is not None:
            return _json(found)
        if request.method == "POST" and (review := _review(request.path)):
            return _json(await self._answer_review(request, *review), 201)
        target = Target.parse(request.path)
        if target is None:
            raise no_such_path()
        handler = self._handler(request.method, target)
        if handler is None:
            message = "the server does not allow this method on the requested resource"
            raise Refused(405, "MethodNotAllowed", message)
        answer: web.StreamResponse = await handler(request, target)
        return answer

    def _handler(self, method: str, target: Target) -> Callable[..., Any] | None:
        if target.subresource == "log":
            return self._log if method == "GET" else None
        if target.subresource == "exec":
            return self._exec if method in ("GET", "POST") else None
        if not target.name:
            return {"GET": self._collection, "POST": self._create, "DELETE": self._delete_collection}.get(method)
        handlers: dict[str, Callable[..., Any]] = {"GET": self._get, "PUT": self._put, "PATCH": self._patch}
        if not target.subresource:
            handlers["DELETE"] = self._delete
        return handlers.get(method)

    async def _answer_review(self, request: web.Request, api_version: str, name: str) -> Object:
        body = await _object_of(request)
        status: Object
        if name == "SelfSubjectAccessReview":
            status = {"allowed": True, "reason": "the embedded cluster has one user, who may do everything"}
        elif name == "SelfSubjectRulesReview":
            every = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            urls = [{"verbs": ["*"], "nonResourceURLs": ["*"]}]
            status = {"resourceRules": [every], "nonResourceRules": urls, "incomplete": False}
        else:
            status = {"userInfo": {"username": "embedded", "groups": ["system:masters", "system:authenticated"]}}
        spec = {"spec": body.get("spec", {})} if name != "SelfSubjectReview" else {}
        meta = {"metadata": {"creationTimestamp": None}}
        return {"kind": name, "apiVersion": api_version, **meta, **spec, "status": status}

    # ---------------------------------------------------------------- reading

    async def _get(self, request: web.Request, target: Target) -> web.Response:
        body = self._store.get(target.kind, target.namespace, target.name)
        return self._show(request, target.kind, body)

    @staticmethod
    def _show(request: web.Request, kind: Kind, body: Object, code: int = 200) -> web.Response:
        return _json(_form(request, kind)(body), code)

    @staticmethod
    def _filter(request: web.Request, kind: Kind) -> Predicate:
        labels = by_labels(request.query.get("labelSelector", ""))
        fields = by_fields(kind, request.query.get("fieldSelector", ""))
        return lambda body: labels(body) and fields(body)

    async def _collection(self, request: web.Request, target: Target) -> web.StreamResponse:
        kind, wanted = target.kind, self._filter(request, target.kind)
        if flag(request.query, "watch"):
            return await Watch(self._store, request, target, wanted, _form(request, kind)).serve(self.closing)
        asked = version_of(request.query)
        if asked is not None and asked > self._store.version:
            details = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}
            raise Refused(
                504, "Timeout", f"Too large resource version: {asked}, current: {self._store.version}", **details
            )
        found = [body for body in self._store.every(kind, target.namespace) if wanted(body)]
        meta: Object = {"resourceVersion": str(self._store.version)}
        found = self._page(request, found, meta)
        accept = request.headers.get("Accept", "")
        if "as=Table" in accept:
            return _json(table(kind, found, meta, request.query.get("includeObject", "Metadata")))
        if "as=PartialObjectMetadataList" in accept:
            items = [_metadata_only(body) for body in found]
            about = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
            return _json({**about, "metadata": meta, "items": items})
        return _json({"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": meta, "items": found})

    @staticmethod
    def _page(request: web.Request, found: list[Object], meta: Object) -> list[Object]:
        """Cut one page out. Later pages show what is there then, not what was there for the first."""
        limit = request.query.get("limit", "0")
        if not limit.isdigit():
            raise bad_request(f'strconv.ParseInt: parsing "{limit}": invalid syntax')
        if token := request.query.get("continue"):
            version, last = read_continue_token(token)
            meta["resourceVersion"] = str(version)
            found = [one for one in found if (one["metadata"].get("namespace", ""), one["metadata"]["name"]) > last]
        size = int(limit)
        if size and len(found) > size:
            meta["remainingItemCount"] = len(found) - size
            found = found[:size]
            last_one = found[-1]["metadata"]
            version = int(meta["resourceVersion"])
            meta["continue"] = continue_token(version, last_one.get("namespace", ""), last_one["name"])
        return found

    # ---------------------------------------------------------------- writing

    async def _create(self, request: web.Request, target: Target) -> web.Response:
        body = await _object_of(request, target.kind)
        dry_run = request.query.get("dryRun") == "All"
        return self._show(request, target.kind, create(self._store, target, body, dry_run=dry_run), 201)

    async def _put(self, request: web.Request, target: Target) -> web.Response:
        body = await _object_of(request, target.kind)
        before = self._store.get(target.kind, target.namespace, target.name)
        if body["metadata"].get("name", target.name) != target.name:
            raise bad_request("the name of the object does not match the name on the URL")
        return self._show(request, target.kind, replace(self._store, target, body, before))

    async def _patch(self, request: web.Request, target: Target) -> web.Response:
        raw = await request.read()
        before = self._store.find(target.kind, target.namespace, target.name)
        if before is None and request.content_type == "application/apply-patch+yaml":
            body = await _object_of(request, target.kind)
            body["metadata"].setdefault("name", target.name)
            return self._show(request, target.kind, create(self._store, target, body), 201)
        before = self._store.get(target.kind, target.namespace, target.name)
        body = patched(target.kind, before, raw, request.content_type)
        return self._show(request, target.kind, replace(self._store, target, body, before))

    async def _delete(self, request: web.Request, target: Target) -> web.Response:
        options = await _delete_options(request)
        body = self._store.get(target.kind, target.namespace, target.name)
        return _json(self._begin_deletion(target.kind, body, options))

    async def _delete_collection(self, request: web.Request, target: Target) -> web.Response:
        options = await _delete_options(request)
        wanted = self._filter(request, target.kind)
        found = [body for body in self._store.every(target.kind, target.namespace) if wanted(body)]
        gone = [self._begin_deletion(target.kind, body, options) for body in found]
        kind = target.kind
        meta = {"resourceVersion": str(self._store.version)}
        return _json({"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": meta, "items": gone})

    def _begin_deletion(self, kind: Kind, body: Object, options: Object) -> Object:
        meta = body["metadata"]
        for field, wanted in (options.get("preconditions") or {}).items():
            if meta.get(field) != wanted:
                what = {"uid": "UID", "resourceVersion": "ResourceVersion"}.get(field, field)
                why = f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {meta.get(field)}"
                raise conflict(kind, meta["name"], why)
        propagation = options.get("propagationPolicy")
        if options.get("orphanDependents") is not None:
            propagation = "Orphan" if options["orphanDependents"] else "Background"
        grace = options.get("gracePeriodSeconds")
        if "All" in (options.get("dryRun") or ()):
            return body
        left = begin(self._store, kind, body, propagation or default_propagation(kind), grace)
        if self._store.find(kind, meta.get("namespace", ""), meta["name"]) is not None or kind is PODS:
            return left
        about = {"name": meta["name"], "kind": kind.plural, "uid": meta["uid"]}
        about |= {"group": kind.group} if kind.group else {}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": about}

    # ---------------------------------------------------------------- logs

    async def _log(self, request: web.Request, target: Target) -> web.StreamResponse:
        options = log_options(request.query)
        body = self._store.get(PODS, target.namespace, target.name)
        container = request.query.get("container") or None
        previous = flag(request.query, "previous")
        source = self._kubelet.open_log(body, container, options, previous=previous)
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
        options = ExecOptions.parse(request.query, request.query.getall("command", []))
        body = self._store.get(PODS, target.namespace, target.name)
        instance = self._kubelet.running(body, request.query.get("container") or None)
        return await Execution(request, instance, options).serve(self.closing)


def _form(request: web.Request, kind: Kind) -> Callable[[Object], Object]:
    """In which form the client wants to see an object: whole, as a table of one row, or its metadata alone."""
    accept = request.headers.get("Accept", "")
    include = request.query.get("includeObject", "Metadata")
    if "as=Table" in accept:
        return lambda body: table(kind, [body], {"resourceVersion": body["metadata"]["resourceVersion"]}, include)
    if "as=PartialObjectMetadata;" in accept:
        return _metadata_only
    return lambda body: body


def _metadata_only(body: Object) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": body["metadata"]}


def _review(path: str) -> tuple[str, str] | None:
    for group, version, plural, name in REVIEWS:
        if path == f"/apis/{group}/{version}/{plural}":
            return f"{group}/{version}", name
    return None


async def _object_of(request: web.Request, kind: Kind | None = None) -> Object:
    if request.content_type not in ("application/json", "application/octet-stream", "application/apply-patch+yaml"):
        message = "the body of the request was in an unknown format - accepted media types include: application/json"
        raise Refused(415, "UnsupportedMediaType", message)
    raw = await request.read()
    if kind is not None:
        return read_body(kind, raw)
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise bad_request(f"error decoding request body: {error}") from None
    return body if isinstance(body, dict) else {}


async def _delete_options(request: web.Request) -> Object:
    raw = await request.read()
    options: Object = {}
    if raw.strip():
        try:
            options = json.loads(raw)
        except ValueError as error:
            raise bad_request(f"error decoding delete options: {error}") from None
    query = request.query
    if "propagationPolicy" in query:
        options["propagationPolicy"] = query["propagationPolicy"]
    if "gracePeriodSeconds" in query:
        options["gracePeriodSeconds"] = int(query["gracePeriodSeconds"])
    return options


def _json(body: Object, code: int = 200) -> web.Response:
    text = json.dumps(body, separators=(",", ":"))
    return web.Response(text=text, status=code, content_type="application/json")
