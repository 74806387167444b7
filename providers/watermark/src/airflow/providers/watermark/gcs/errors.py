"""What went wrong at Google Cloud Storage, where, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from airflow.providers.watermark.exceptions import (
    ConfigurationError,
    SourceError,
    ThrottledError,
    WatermarkError,
)
from airflow.providers.watermark.gcs.client import RefusedError

__all__ = ["explain", "is_refused_identity"]

_ADVICE: Final[Mapping[int, str]] = {
    400: "correct bucket_name and prefix, or set user_project, if the bucket says that the requester pays",
    401: "correct or renew the connection's credentials; nobody may list the bucket without any",
    403: "grant storage.objects.list (roles/storage.objectViewer) on the bucket to the connection's "
    "identity; with user_project, serviceusage.services.use on that project",
    404: "create the bucket, or correct bucket_name",
}
"""What to do about the answers that do not change by waiting."""

_RATE_LIMITS: Final = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded"})


def explain(error: Exception, where: str) -> WatermarkError:
    """
    Wrap an error of a request, or of the credentials for it. No secret is told.

    :param error: What was raised; one of ours comes back as it is.
    :param where: Names the bucket and the connection.
    """
    if isinstance(error, WatermarkError):
        return error
    if isinstance(error, RefusedError):
        what = f"{where}: listing was refused ({error.status} {error.reason}".rstrip() + ")"
        if error.status in _ADVICE and error.reason not in _RATE_LIMITS:
            return ConfigurationError(f"{what}; {_ADVICE[error.status]}")
        kind = ThrottledError if error.status in {403, 429, 503} else SourceError
        return kind(f"{what}; it is tried again, and nothing is lost")
    name = type(error).__name__
    if is_refused_identity(error):
        return ConfigurationError(
            f"{where}: no token for the connection's identity ({name}); correct its key, or the "
            "impersonation chain, each of which needs roles/iam.serviceAccountTokenCreator on the next"
        )
    return SourceError(f"{where}: listing failed ({name}); it is tried again, and nothing is lost")


def is_refused_identity(error: Exception) -> bool:
    """Tell whether other credentials are needed, which a client that exists does not look for."""
    if isinstance(error, RefusedError):
        return error.status == 401
    from google.auth.exceptions import GoogleAuthError, TransportError

    if isinstance(error, GoogleAuthError):
        return not isinstance(error, TransportError) and not error.retryable
    return False
