"""The command line ``vramscope``: one file a subcommand, all over HTTP but ``server``. Being written here."""
