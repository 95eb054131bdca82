"""Parses Kubernetes quantities, as far as a request must be compared with its limit."""

import re
from decimal import Decimal
from typing import Final

_SCALE: Final = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([a-zA-Z]*)")


def amount(quantity: str) -> Decimal:
    """Return the number that a quantity stands for: cores, or bytes.

    Raises:
        ValueError: not a quantity.

    Source: kubernetes.io, resource.Quantity.
    """
    match = _QUANTITY.fullmatch(quantity.strip())
    if match is None or match[2] not in _SCALE:
        raise ValueError("not a Kubernetes quantity")
    return Decimal(match[1]) * _SCALE[match[2]]
