"""Search attributes of a run: what operators can filter by, and what must be visible without a worker."""

from typing import Final

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client

from workflows.attributes import ALL

_KEYWORD: Final = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD


async def register(client: Client) -> None:
    """Registers what is missing in the client's namespace; does nothing when all is there."""
    listed = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    missing = [key.name for key in ALL if key.name not in listed.custom_attributes]
    if missing:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=dict.fromkeys(missing, _KEYWORD))
        )
