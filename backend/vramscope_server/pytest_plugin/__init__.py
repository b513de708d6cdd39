"""Memory tests in CI without a GPU, as a plugin of pytest."""
