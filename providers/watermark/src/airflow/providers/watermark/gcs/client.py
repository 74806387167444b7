"""
Requests to the JSON API of Google Cloud Storage, with the credentials of an Airflow connection.

The connection is read by the Google provider's asynchronous hook, which also makes the credentials of it. The
request is one of aiohttp's, as in gcloud-aio, whose own listing gives neither the ``Date`` header, which is
the clock, nor the page as it was sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from airflow.providers.watermark.exceptions import ConfigurationError
from airflow.providers.watermark.objects.shared import SharedClients
from airflow.providers.watermark.version_compat import unbroken

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from google.auth.credentials import Credentials

__all__ = ["Answer", "GcsClient", "RefusedError"]

_CONNECT_TIMEOUT: Final = 30.0
_SILENCE_TIMEOUT: Final = 60.0
_REQUEST_TIMEOUT: Final = 300.0

# Google compresses an answer only for agents that say so here, too (Cloud Storage, performance tips). A page
# is then a fifth as long.
_USER_AGENT: Final = "airflow-provider-watermark (gzip)"


class RefusedError(Exception):
    """
    An answer other than 200.

    :ivar status: The HTTP status.
    :ivar reason: Google's own word for it, or nothing. Its longer text may hold anything, and is not kept.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason


class Answer(NamedTuple):
    """
    What was answered.

    :ivar body: A JSON document.
    :ivar date: The ``Date`` header.
    """

    body: bytes
    date: str | None


class GcsClient:
    """
    A session, and the identity it speaks for.

    :param session: Closed with the client.
    :param root: The address of the service, such as ``https://storage.googleapis.com``.
    :param credentials: ``None`` speaks for nobody.
    :ivar parsing: Held by whoever parses a page, up to the loop's next round: pages that arrive together
        must not hold the loop one right after the other.
    """

    _shared: Final[SharedClients[GcsClient]] = SharedClients()

    def __init__(self, session: ClientSession, root: str, credentials: Credentials | None) -> None:
        self._session = session
        self._root = root
        self._credentials = credentials
        self._refreshing = asyncio.Lock()
        self.parsing = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def use(
        cls, conn_id: str, impersonation_chain: str | list[str] | None
    ) -> AsyncGenerator[GcsClient, None]:
        """
        Read a connection, and give the client that is shared by all who use it as it is now.

        :raises ConfigurationError: The connection does not exist, cannot be read, or holds no usable key.
        :raises google.auth.exceptions.GoogleAuthError: No identity was found.
        """
        hook = await _read_connection(conn_id, impersonation_chain)
        root, is_emulator = _service()

        async def build() -> GcsClient:
            credentials = None if is_emulator else await _make_credentials(hook)
            return cls(_open_session(root), root, credentials)

        async with cls._shared.use(
            _fingerprint(conn_id, impersonation_chain, hook.extras, root), build
        ) as client:
            yield client

    def retire(self) -> None:
        """Let nobody else have this client: the next one reads its credentials anew."""
        self._shared.retire(self)

    async def close(self) -> None:
        """Close the session."""
        await self._session.close()

    async def list_objects(self, bucket: str, params: Mapping[str, str]) -> Answer:
        """
        Send one request for a page of a listing.

        :raises RefusedError: It was not answered with 200.
        :raises aiohttp.ClientError: Nothing was answered, or only a part.
        :raises TimeoutError: Nothing was answered in time.
        :raises google.auth.exceptions.GoogleAuthError: The identity could not be proven.
        """
        url = f"{self._root}/storage/v1/b/{quote(bucket, safe='')}/o"
        headers = await self._authorization()
        # A redirect would lead to a page for people, and would take the token along.
        async with self._session.get(url, params=params, headers=headers, allow_redirects=False) as response:
            body = await response.read()
            if response.status != 200:
                raise RefusedError(response.status, _reason(body))
            return Answer(body, response.headers.get("Date"))

    async def _authorization(self) -> dict[str, str]:
        """Prove who asks, with a token that is renewed before it expires."""
        headers: dict[str, str] = {}
        credentials = self._credentials
        if credentials is not None:
            if not credentials.valid:
                async with self._refreshing:
                    if not credentials.valid:  # still, after others had their turn
                        from google.auth.transport.requests import Request

                        await asyncio.to_thread(credentials.refresh, Request())
            credentials.apply(headers)  # type: ignore[no-untyped-call, unused-ignore]  # the quota project, too
        return headers


async def _read_connection(conn_id: str, impersonation_chain: str | list[str] | None) -> Any:
    """
    Read a connection.

    :return: The provider's hook, which holds what was read: with another one than was asked for, or with
        none, the machine's own identity would be used in its place.
    """
    try:
        hooks = await asyncio.to_thread(_import_hooks)  # takes seconds
    except ImportError as error:
        msg = f"{error}; pip install 'airflow-provider-watermark[google]' where the triggerer runs"
        raise ConfigurationError(msg) from error
    hook = hooks.GCSAsyncHook(gcp_conn_id=conn_id, impersonation_chain=impersonation_chain)
    try:
        return await unbroken(hook.get_sync_hook())
    except Exception as error:
        msg = (
            f"the connection {conn_id!r} does not exist or cannot be read ({type(error).__name__}); create "
            "it, without a key for the machine's own identity"
        )
        raise ConfigurationError(msg) from error


async def _make_credentials(hook: Any) -> Credentials:
    """Make the credentials that a connection stands for, of which no secret may be told."""
    from google.auth.exceptions import GoogleAuthError

    try:
        # Off the loop, and not with sync_to_async, whose one thread all triggers share: it may ask a metadata
        # server. The supervisor is not asked, which must not be done from such a thread.
        credentials: Credentials = await asyncio.to_thread(hook.get_credentials)
    except GoogleAuthError:
        raise
    except Exception as error:
        msg = (
            f"the connection {hook.gcp_conn_id!r} holds no usable key ({type(error).__name__}); correct its "
            "keyfile_dict or key_path"
        )
        raise ConfigurationError(msg) from error
    return credentials


def _import_hooks() -> Any:
    from airflow.providers.google.cloud.hooks import gcs

    return gcs


def _fingerprint(*contents: object) -> bytes:
    """Tell what was read from anything else, without keeping it: it holds secrets."""
    return hashlib.blake2b(json.dumps(contents, sort_keys=True, default=str).encode()).digest()


def _service() -> tuple[str, bool]:
    """Give the address of the service, and whether it is an emulator, which is sent no credentials."""
    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
        return (emulator if "://" in emulator else f"http://{emulator}").rstrip("/"), True
    domain = os.environ.get("GOOGLE_CLOUD_UNIVERSE_DOMAIN") or "googleapis.com"
    return f"https://storage.{domain}", False


def _open_session(root: str) -> ClientSession:
    from aiohttp import ClientSession, ClientTimeout

    parts = urlsplit(root)
    # As requests does for google-auth. aiohttp's own trust_env would also take passwords from .netrc, and
    # refuse the request because it has a token.
    proxy = None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)
    timeout = ClientTimeout(total=_REQUEST_TIMEOUT, sock_connect=_CONNECT_TIMEOUT, sock_read=_SILENCE_TIMEOUT)
    return ClientSession(timeout=timeout, proxy=proxy, headers={"User-Agent": _USER_AGENT})


def _reason(body: bytes) -> str:
    """Find Google's word for an error."""
    try:
        reason = json.loads(body)["error"]["errors"][0]["reason"]
    except (ValueError, LookupError, TypeError):
        return ""
    return reason if isinstance(reason, str) and re.fullmatch(r"[A-Za-z]{1,40}", reason) else ""
