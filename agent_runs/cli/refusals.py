"""The error of a command that cannot do what was requested."""


class Refused(Exception):
    """A command cannot do what was requested. The text names what is wrong and what to do; `code` is the exit code."""

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.code = code
