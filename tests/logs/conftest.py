"""The embedded cluster and our client of it, as the tests of the client use them."""

from tests.kube.conftest import cluster, embedded, embedded_session, name

__all__ = ["cluster", "embedded", "embedded_session", "name"]
