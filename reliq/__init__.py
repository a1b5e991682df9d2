"""reliq: a reliable job queue for synchronous, threaded Python."""

from .errors import InvalidJobError
