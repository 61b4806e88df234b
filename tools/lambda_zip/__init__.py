"""Builds the function's package for AWS Lambda, a zip for each architecture, without docker.

``make lambda-zip`` runs it. :mod:`wheels` brings the wheels that ``infra/function/requirements.txt`` pins,
:mod:`bundle` says which files go in, :mod:`archive` writes them so that the same input gives the same bytes.
Deploying the zip is ``infra/``'s.
"""

from __future__ import annotations

__all__: list[str] = []
