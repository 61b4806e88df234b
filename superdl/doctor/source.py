"""Checks of the source: this machine's AWS credentials, and the listing's beginning."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from superdl.coordinator.executors import executor_classes
from superdl.doctor.checking import Finding, bad, doubtful, good, skipped
from superdl.super_wire.errors import SourceError, SourceForbiddenError, SourceNotFoundError
from superdl.super_wire.objects.s3_account import Account

if TYPE_CHECKING:
    from superdl.doctor.checking import Case

_ENOUGH = 20_000  # samples: twenty requests to S3
_SHOWN = 4
_HOWTO = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role"


def check_credentials(case: Case) -> Finding:
    """Check this machine's credentials for S3 and Lambda, and report their origin."""
    executors = executor_classes(case.settings.executors)
    anonymous = Account().anonymous
    of_s3 = case.source.startswith("s3://") and not anonymous
    if not (of_s3 or any(executor.uses_aws for executor in executors)):
        why = ", and SUPER_S3_ANONYMOUS is set" if anonymous else ""
        return skipped(f"no AWS credentials needed ({case.source or 'no source'}{why})")
    import boto3
    from botocore import exceptions

    try:
        session = boto3.session.Session()
        credentials = session.get_credentials()
        region = session.region_name or os.environ.get("AWS_REGION", "")
        if credentials is not None:
            credentials.get_frozen_credentials()  # renews expired ones
    except (exceptions.BotoCoreError, exceptions.ClientError, RuntimeError, OSError, ValueError) as error:
        # RuntimeError: expired even after a renewal. OSError, ValueError: from programs and files.
        failure = doubtful if case.elsewhere else bad
        return failure(f"AWS credentials cannot be had: {error}", _HOWTO)
    if credentials is None:
        if case.elsewhere:
            why = "this machine has no AWS credentials; with a coordinator named it needs none"
            return skipped(why, f"to look at the bucket from here, {_HOWTO}")
        return bad("this machine has no AWS credentials", _HOWTO)
    if not region and not os.environ.get("SUPER_S3_ENDPOINT_URL"):
        why = f"from {credentials.method}; no region is set, us-east-1 is assumed"
        return doubtful(why, "set AWS_DEFAULT_REGION to the region of bucket and functions")
    return good(f"from {credentials.method}, region {region or 'not needed'}")


def check_listing(case: Case) -> Finding:
    """Check that the coordinator's own listing gives a catalog, up to a limited length."""
    if not case.source:
        return skipped("no source is named", "name one: superdl doctor s3://bucket/prefix")
    from superdl.coordinator.catalog.lister import list_source
    from superdl.coordinator.catalog.listing import ListingCancelledError

    enough = threading.Event()

    def count(listed: int | None) -> None:
        if listed is not None and listed >= _ENOUGH:
            enough.set()

    try:
        catalog = list_source(case.source, case.key_list, count, enough)
    except ListingCancelledError:
        return good(f"{case.source} can be listed: {_ENOUGH:,} samples and more")
    except SourceError as error:
        return _refused(case, error)
    classes = len(catalog.classes)
    classes_text = ", ".join(catalog.classes[:_SHOWN]) + (", ..." if classes > _SHOWN else "")
    summary = f"{len(catalog.keys):,} samples" + (
        f" of {classes:,} classes ({classes_text})" if classes else ""
    )
    return good(f"{case.source} can be listed: {summary}", samples=len(catalog.keys), classes=classes)


def _refused(case: Case, error: SourceError) -> Finding:
    unreadable = isinstance(error, SourceNotFoundError | SourceForbiddenError)
    if case.elsewhere and unreadable and case.source.startswith("file:"):
        return skipped(f"not visible from this machine; the coordinator's machine may have it ({error})")
    if not case.elsewhere or isinstance(error, SourceNotFoundError):
        return bad(str(error), "")
    if isinstance(error, SourceForbiddenError):
        return skipped(
            f"not to be looked at from here, and no fault: the coordinator's role does it ({error})"
        )
    return doubtful(str(error), "it may do no harm: the coordinator and functions read it from elsewhere")
