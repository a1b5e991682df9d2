"""A queue in a Django project: ``path("jobs/", include(urls(queue)))``.

Nothing here needs an entry in ``INSTALLED_APPS`` or a table in the database.
"""

from __future__ import annotations

from .views import urls, user_id, view

__all__ = ["urls", "user_id", "view"]
