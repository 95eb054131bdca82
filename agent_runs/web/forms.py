"""The fields of a form that a page of ours has sent."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

MAX_FIELDS: Final = 8


async def form(request: Request, limit: int, *, fields: int = MAX_FIELDS) -> dict[str, list[str]]:
    """The values by the names of their fields.

    Args:
        limit: bytes of the whole form.
        fields: how many it may have.

    Raises:
        HTTPException: 400: the body did not arrive or is not form data. 413: it exceeds the limit.
    """
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise HTTPException(413, f"the form has more than {limit} bytes")
    except ClientDisconnect:
        raise HTTPException(400, "the form did not arrive") from None
    try:
        return parse_qs(body.decode("ascii"), max_num_fields=fields, errors="strict")
    except ValueError:
        raise HTTPException(400, "this is no form of ours") from None


def first(fields: Mapping[str, list[str]], name: str) -> str:
    """The first value of a field, or nothing."""
    return fields.get(name, [""])[0]
