"""The entry in ``INSTALLED_APPS``: checks the settings at start, and brings ``manage.py reliq_worker``."""

from __future__ import annotations

from django.apps import AppConfig

from .conf import read_queues


class ReliqConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """``"reliq.contrib.django"``. It has no models."""

    name = "reliq.contrib.django"
    label = "reliq"
    verbose_name = "reliq"

    def ready(self) -> None:
        """Wrong settings end the process now, and not at the first job."""
        read_queues()
