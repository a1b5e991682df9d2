"""Breaks the package on purpose, one invariant at a time, and fails unless a test notices.

``python -m tests.mutations``: what is broken stands in ``lua.py``, ``sql.py`` and ``python.py``.
"""
