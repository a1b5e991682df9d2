"""Thin adapters to frameworks. Each imports its framework; nothing else of reliq imports them."""
