"""Where Temporal is and how to log in there: the SDK's own environment configuration, with its gaps closed.

`TEMPORAL_*` variables have priority over the profile `TEMPORAL_PROFILE` of the TOML file `TEMPORAL_CONFIG_FILE`.
Refused here is what the SDK ignores or misreads: a missing file, misspelt keys, a flag that is neither true nor false
(for the SDK: TLS on), half a client certificate, `TEMPORAL_TLS_DISABLE_HOST_VERIFICATION`; an empty variable is absent
(for the SDK an empty `TEMPORAL_TLS` is: TLS on). Measured with temporalio 1.35.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Self

from pydantic import SecretStr
from temporalio.envconfig import ClientConfigProfile, ClientConfigTLS, DataSource
from temporalio.service import TLSConfig

TEMPORAL: Final = "TEMPORAL_"
FILE: Final = "TEMPORAL_CONFIG_FILE"
PROFILE: Final = "TEMPORAL_PROFILE"
ADDRESS: Final = "TEMPORAL_ADDRESS"
TLS: Final = "TEMPORAL_TLS"
UNVERIFIED: Final = "TEMPORAL_TLS_DISABLE_HOST_VERIFICATION"

TRUE: Final = frozenset({"true", "1"})
FALSE: Final = frozenset({"false", "0"})

HIGHEST_PORT: Final = 65_535
VARIABLES: Final = frozenset(
    f"{TEMPORAL}{name}"
    for name in (
        *("ADDRESS", "NAMESPACE", "API_KEY", "TLS", "PROFILE", "CONFIG_FILE", "TLS_CLIENT_CERT_PATH"),
        *("TLS_CLIENT_CERT_DATA", "TLS_CLIENT_KEY_PATH", "TLS_CLIENT_KEY_DATA", "TLS_SERVER_CA_CERT_PATH"),
        *("TLS_SERVER_CA_CERT_DATA", "TLS_SERVER_NAME", "TLS_DISABLE_HOST_VERIFICATION", "DEPLOYMENT_NAME"),
        *("WORKER_BUILD_ID", "CLI"),
    )
)
"""Variables of Temporal's that mean something here. Others may be of other programs, so only a near miss is refused."""
_HOST_AND_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}")
_UNKNOWN_KEY: Final = re.compile(r"unknown field (`[A-Za-z0-9_-]{1,60}`)")
_LINE: Final = re.compile(r"at (line [0-9]+)")


class UnusableProfile(Exception):
    """A setting of the connection is missing or wrong. One line per setting with the remedy, never a value."""


@dataclass(frozen=True)
class TemporalServer:
    """A Temporal namespace and the login for it.

    Attributes:
        tls: False: none; True: with the system's trusted certificates; else the profile's certificates.
        metadata: gRPC headers of each call (`TEMPORAL_GRPC_META_*`).
    """

    address: str = "127.0.0.1:7233"
    namespace: str = "default"
    api_key: SecretStr | None = None
    tls: bool | TLSConfig = field(default=False, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, environment: Mapping[str, str], *, default_file: bool = True) -> Self:
        """Read it from the environment. An empty variable counts as absent.

        Args:
            default_file: read the SDK's own configuration file if `TEMPORAL_CONFIG_FILE` is not set.

        Raises:
            UnusableProfile: a setting is missing or wrong.
        """
        present = {
            name: text for name in environment if name.startswith(TEMPORAL) and (text := environment[name].strip())
        }
        if problems := list(_wrong_variables(present)):
            raise UnusableProfile("\n".join(problems))
        profile = _load(present, default_file=default_file)
        key = SecretStr(profile.api_key) if profile.api_key else None
        server = cls(
            address=profile.address or cls.address,
            namespace=profile.namespace or cls.namespace,
            api_key=key,
            tls=key is not None if profile.tls is None else _tls(profile.tls, _Blame(present)),
            metadata=profile.grpc_meta,
        )
        port = server.address.rpartition(":")[2]
        if not _HOST_AND_PORT.fullmatch(server.address) or not 0 < int(port) <= HIGHEST_PORT:
            raise UnusableProfile(
                f"{_Blame(present).of(ADDRESS)}: must be HOST:PORT with a port from 1 to {HIGHEST_PORT}, such as "
                "temporal.example:7233"
            )
        return server


def misspelt_temporal_variable(name: str) -> str | None:
    """The variable of Temporal's that this one is nearly, but not; None: it is one, or nothing like any."""
    if not name.startswith(TEMPORAL[:-2]) or name in VARIABLES or name.startswith(f"{TEMPORAL}GRPC_META_"):
        return None
    nearest = get_close_matches(name, VARIABLES, 1, cutoff=0.9)
    return nearest[0] if nearest else None


def _wrong_variables(present: Mapping[str, str]) -> Iterator[str]:
    for name in (TLS, UNVERIFIED):
        if present.get(name, "true").lower() not in TRUE | FALSE:
            yield f"{name}: must be true or false"
    if present.get(UNVERIFIED, "false").lower() in TRUE:
        yield (
            f"{UNVERIFIED}: the server's certificate is always verified. Remove it, and set "
            "TEMPORAL_TLS_SERVER_CA_CERT_PATH, and TEMPORAL_TLS_SERVER_NAME if the certificate is for another name"
        )
    if FILE in present and not Path(present[FILE]).exists():
        yield f"{FILE}: {present[FILE]} does not exist. Set it to a TOML file with profiles, or unset it"


def _load(present: Mapping[str, str], *, default_file: bool) -> ClientConfigProfile:
    try:
        return ClientConfigProfile.load(
            disable_file=not default_file and not present.keys() & {FILE, PROFILE},
            config_file_strict=True,
            override_env_vars=present,
        )
    except RuntimeError as error:  # the bridge's ConfigError; its text quotes the file
        raise UnusableProfile(_config_error(str(error), present)) from None


def _config_error(text: str, present: Mapping[str, str]) -> str:
    if "Cannot specify both" in text:
        names = sorted(set(re.findall(r"TEMPORAL_TLS_[A-Z_]+", text)))
        return f"{', '.join(names)}: set one of them, not both"
    if text.startswith("Profile"):
        return f"{PROFILE}: {_Blame(present).file} has no such profile. Name one of its profiles, or unset it"
    reason = f"unknown key {key[1]}" if (key := _UNKNOWN_KEY.search(text)) else "it is not a readable TOML file"
    place = f" ({line[1]})" if (line := _LINE.search(text)) else ""
    return f"{FILE}: {_Blame(present).file}: {reason}{place}. Correct it; the SDK's documentation lists its keys"


@dataclass(frozen=True)
class _Blame:
    """Says where a value comes from: a variable, or the file."""

    present: Mapping[str, str]

    @property
    def file(self) -> str:
        return self.present.get(FILE, "the SDK's default file")

    def of(self, *variables: str) -> str:
        """The first of these variables that is set, else the file; without one the first variable."""
        named = next((name for name in variables if name in self.present), None)
        if named is None and FILE in self.present:
            return f"{FILE}: {self.file}: {variables[0].removeprefix(TEMPORAL).lower()}"
        return named or variables[0]


def _tls(profile: ClientConfigTLS, blame: _Blame) -> bool | TLSConfig:
    if profile.disabled:
        return False
    certificate = _read("CLIENT_CERT", profile.client_cert, b"CERTIFICATE", blame)
    key = _read("CLIENT_KEY", profile.client_private_key, b"PRIVATE KEY", blame)
    if (certificate is None) != (key is None):
        missing = "CLIENT_CERT" if certificate is None else "CLIENT_KEY"
        raise UnusableProfile(
            f"TEMPORAL_TLS_{missing}_PATH: a client needs a certificate and its key. Set it, too, or unset both"
        )
    return TLSConfig(
        server_root_ca_cert=_read("SERVER_CA_CERT", profile.server_root_ca_cert, b"CERTIFICATE", blame),
        domain=profile.server_name,
        client_cert=certificate,
        client_private_key=key,
    )


def _read(name: str, source: DataSource | None, kind: bytes, blame: _Blame) -> bytes | None:
    if source is None:
        return None
    setting = blame.of(f"TEMPORAL_TLS_{name}_PATH", f"TEMPORAL_TLS_{name}_DATA")
    content = _content(source, setting)
    if kind + b"-----" not in content:
        raise UnusableProfile(f"{setting}: it holds no PEM block {kind.decode()}. Set it to a PEM file with one")
    return content


def _content(source: DataSource, setting: str) -> bytes:
    if not isinstance(source, Path):
        return source.encode() if isinstance(source, str) else source
    try:
        return source.read_bytes()
    except OSError as error:
        raise UnusableProfile(f"{setting}: {source}: {error.strerror}. Set it to a readable PEM file") from None
