"""Training loops as users write them, each labelled with its truth (see ../README.md)."""
