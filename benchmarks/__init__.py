"""How fast is reliq? One question per script, all of them by ``python -m benchmarks``. See README.rst."""
