"""The ``reliq`` command. Each module is one subcommand; ``main`` puts them together."""
