"""
Clients of Amazon S3, made from Airflow connections and shared by all watchers that use the same.

Building one takes 60 to 180 ms and 12 MB.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import Any, Final, NamedTuple

from airflow.providers.watermark.exceptions import ConfigurationError
from airflow.providers.watermark.objects.shared import SharedClients
from airflow.providers.watermark.s3.parsing import BEFORE_PARSE, read_answer
from airflow.providers.watermark.version_compat import call_supervised

__all__ = ["Account", "S3Client"]

PACKAGE: Final = "airflow-provider-watermark"
MAX_CONNECTIONS: Final = 128
"""Sockets of one client, unless its Airflow connection says otherwise: botocore's 10 hold watchers back."""


class Account(NamedTuple):
    """
    What a client is made from.

    :ivar conn_id: The Airflow connection; ``None`` means boto's own search for credentials.
    :ivar region_name: Overrides the connection's region.
    :ivar verify: Overrides the connection's TLS verification.
    """

    conn_id: str | None
    region_name: str | None = None
    verify: bool | str | None = None


class S3Client:
    """
    A client of aiobotocore's.

    :param api: The client, whose listings :func:`~airflow.providers.watermark.s3.parsing.read_answer` reads.
    :param resources: Closed with it.
    """

    _shared: Final[SharedClients[S3Client]] = SharedClients()

    def __init__(self, api: Any, resources: AsyncExitStack) -> None:
        self.api = api
        self._resources = resources
        api.meta.events.register(BEFORE_PARSE, read_answer)

    @classmethod
    @asynccontextmanager
    async def use(cls, account: Account) -> AsyncGenerator[S3Client, None]:
        """
        Read a connection, and give the client that is shared by all who use it as it is now.

        :raises ConfigurationError: The connection does not exist or cannot be read.
        :raises Exception: Whatever the provider or botocore raises.
        """
        hook = await _read_connection(account)

        async def build() -> S3Client:
            resources = AsyncExitStack()
            return cls(await call_supervised(_make_client, hook, resources), resources)

        async with cls._shared.use((account, _fingerprint(hook.conn_config)), build) as client:
            yield client

    def retire(self) -> None:
        """Let nobody else have this client: the next one looks for its credentials anew."""
        self._shared.retire(self)

    async def close(self) -> None:
        """Close its sockets."""
        await self._resources.aclose()


async def _read_connection(account: Account) -> Any:
    """
    Read a connection.

    :return: The provider's hook, which holds what was read.
    """
    try:
        hook_class = await asyncio.to_thread(_import_hook)  # takes seconds
    except ImportError as error:
        msg = f"{error}; pip install 'airflow-provider-watermark[amazon]' where the triggerer runs"
        raise ConfigurationError(msg) from error
    hook = hook_class(aws_conn_id=account.conn_id, region_name=account.region_name, verify=account.verify)
    await call_supervised(lambda: hook.conn_config)
    # The hook takes a connection that is missing, or cannot be read just now, for an empty one, and would ask
    # another S3 with other credentials: a listing from there must never move the watermark.
    if account.conn_id is not None and hook.conn_config.conn_id != account.conn_id:
        msg = (
            f"the connection {account.conn_id!r} does not exist or cannot be read; create it, or set "
            "aws_conn_id=None for boto's own search for credentials"
        )
        raise ConfigurationError(msg)
    return hook


def _make_client(hook: Any, resources: AsyncExitStack) -> Any:
    """
    Make a client, off the loop: it is all work.

    In one go, since a client that is begun and not finished warns that it was never awaited. In a loop of its
    own, of which nothing is left: no socket is opened before the first request.
    """
    from botocore.config import Config

    # A name of our own tells in S3's logs who lists; botocore would put one together twice for each request.
    # The hook adds Airflow's, and the connection may say otherwise.
    user_agent = f"{PACKAGE}/{version(PACKAGE)}"
    own = Config(max_pool_connections=MAX_CONNECTIONS, user_agent=user_agent)
    config = own.merge(hook.config)
    client = hook.get_client_type(region_name=hook.region_name, config=config, deferrable=True)
    return asyncio.run(resources.enter_async_context(client))


def _import_hook() -> Any:
    import aiobotocore.session  # noqa: F401 - the hook imports it on the loop

    from airflow.providers.amazon.aws.hooks.s3 import S3Hook

    return S3Hook


def _fingerprint(connection: Any) -> bytes:
    """Tell what was read from anything else, without keeping it: it holds secrets."""
    contents = [connection.login, connection.password, connection.schema, connection.extra_config]
    return hashlib.blake2b(json.dumps(contents, sort_keys=True, default=str).encode()).digest()
