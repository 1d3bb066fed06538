"""Reads the argument of `pagantic pull`: a catalog name, a file on a hub, a URL, or a local file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gateway.pulling.http_file import UrlSource
from gateway.pulling.hub import PREFIX as HUB_PREFIX
from gateway.pulling.hub import HubSource
from gateway.pulling.local_file import LocalFile
from gateway.pulling.packages import CatalogSource
from gateway.pulling.source import Source
from pagantic_common.models.catalog import CatalogModel, find_in_catalog
from pagantic_common.models.folder import SUFFIX
from pagantic_common.models.settings import ModelSettings


def source_of(
    reference: str, settings: ModelSettings, silence_s: float, models: Mapping[str, CatalogModel] | None = None
) -> Source:
    """Return the source that a reference names, without contacting the source.

    Args:
    reference: The text that the user typed.
    settings: The hub and the allowed hosts.
    silence_s: Maximum time for which a source may be silent.
    models: The catalog, or None for the built-in catalog.

    Raises InvalidRequest for an invalid form, or NotFound for an unknown name.
    """
    if reference.startswith(HUB_PREFIX):
        return HubSource(reference, settings.hub_endpoint, silence_s)
    if "://" in reference:
        return UrlSource(reference, settings.hosts, silence_s)
    if "/" in reference or reference.endswith(SUFFIX):
        return LocalFile(Path(reference))
    return CatalogSource(find_in_catalog(reference, models), silence_s)
