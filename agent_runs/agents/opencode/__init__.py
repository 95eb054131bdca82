"""OpenCode's command line and configuration; no clock, file or network.

Facts about OpenCode were observed on 1.18.33 unless a comment names another version.
"""

from typing import Final

VERSIONS: Final = (("1.18.3", "1.18.33"), ("2.0.15", "2.0.15"))
"""The oldest and the newest of each first number that are supported."""
