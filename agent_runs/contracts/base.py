"""The base of every message that enters a history."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Contract(BaseModel):
    """Lives in histories for weeks: new fields get defaults, existing ones keep name and meaning.

    Validation errors never quote the input, because they are written to histories and logs.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="ignore", hide_input_in_errors=True, allow_inf_nan=False
    )


class PaperclipContract(Contract):
    """A contract in Paperclip's own spelling: camelCase on the wire, snake_case in Python."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )
