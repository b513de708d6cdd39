"""Metrics of a server and of its running runs, for Prometheus and OpenTelemetry."""
