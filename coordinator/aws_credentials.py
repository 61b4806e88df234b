"""What botocore raises where it finds no usable credentials; S3 and Lambda are asked with the same ones."""

from __future__ import annotations

from botocore import exceptions

__all__ = ["NO_CREDENTIALS"]

NO_CREDENTIALS = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.CredentialRetrievalError,
    exceptions.ProfileNotFound,
    exceptions.TokenRetrievalError,
    exceptions.SSOError,
)
